"""`ottla group export`, `import` and `remove-member`, against a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from tests.cli.conftest import Ottla

from ottla.client import Cluster
from ottla.client.admin import GroupAdmin
from ottla.client.errors import values_of
from ottla.client.positions import OffsetAndMetadata
from ottla.client.settings import ClientConfig
from ottla.types import TopicPartition

pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def topic(brokers: str) -> str:
    """Ten records in each of two partitions; groups files-a and files-b have committed."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": brokers})
    admin.create_topics([NewTopic("files", 2, 1)])["files"].result(180)
    producer = Producer({"bootstrap.servers": brokers})
    for at in range(20):
        producer.produce("files", b"%d" % at, partition=at % 2)
    assert producer.flush(180) == 0
    with Cluster(ClientConfig.from_mapping({"bootstrap.servers": brokers})) as cluster:
        for group, offsets in (("files-a", (4, 10)), ("files-b", (0, 1))):
            places = {
                TopicPartition("files", number): OffsetAndMetadata(offset, metadata=f"of {group}")
                for number, offset in enumerate(offsets)
            }
            values_of(GroupAdmin(cluster).alter_group_offsets(group, places))
    return "files"


def committed(ottla: Ottla, group: str) -> list[dict]:
    shown = ottla("group", "export", group, "-o", "jsonl")
    assert shown.exit_code == 0, shown.stderr
    return [json.loads(line) for line in shown.stdout.splitlines()]


def test_what_is_exported(ottla: Ottla, topic: str) -> None:
    assert ottla("group", "export", "files-a").stdout == "files,0,4\nfiles,1,10\n"
    assert ottla("group", "export", "files-a", "-t", "files:1", "--with-group").stdout == "files-a,files,1,10\n"
    both = "files-a,files,0,4\nfiles-a,files,1,10\nfiles-b,files,0,0\nfiles-b,files,1,1\n"
    assert ottla("group", "export", "files-a", "files-b").stdout == both
    assert committed(ottla, "files-a")[0] == {
        "group": "files-a", "topic": "files", "partition": 0, "offset": 4, "metadata": "of files-a",
    }  # fmt: skip
    nothing = ottla("group", "export", "files-unknown")
    assert (nothing.exit_code, nothing.stdout) == (0, "")


@pytest.mark.parametrize("output", ["csv", "json", "jsonl"])
def test_a_group_is_copied_by_a_file(ottla: Ottla, topic: str, tmp_path: Path, output: str) -> None:
    exported = ottla("group", "export", "files-a", "files-b", "-o", output).stdout
    text = exported.replace("files-a", f"copy-a-{output}").replace("files-b", f"copy-b-{output}")
    file = tmp_path / "offsets"
    file.write_text(text)
    shown = ottla("group", "import", str(file))
    assert (shown.exit_code, "nothing was changed" in shown.stderr) == (0, True)
    assert committed(ottla, f"copy-a-{output}") == []
    done = ottla("group", "import", str(file), "--execute", "-o", "jsonl")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[1]) == {
        "group": f"copy-a-{output}", "topic": "files", "partition": 1, "old_offset": None, "new_offset": 10,
    }  # fmt: skip
    for group in "ab":
        found = committed(ottla, f"copy-{group}-{output}")
        assert [each["offset"] for each in found] == [each["offset"] for each in committed(ottla, f"files-{group}")]
    kept = "" if output == "csv" else f"of copy-b-{output}"
    assert committed(ottla, f"copy-b-{output}")[0]["metadata"] == kept


def test_a_csv_file_of_one_group_needs_its_name(ottla: Ottla, topic: str) -> None:
    text = ottla("group", "export", "files-a").stdout
    refused = ottla("group", "import", "-", "--execute", stdin=text)
    assert (refused.exit_code, "add --group" in refused.stderr) == (2, True)
    words = ("group", "import", "-", "--group", "files-named", "-t", "files:0", "--execute")
    assert ottla(*words, stdin=text).exit_code == 0
    assert [each["partition"] for each in committed(ottla, "files-named")] == [0]


def test_an_offset_outside_of_the_log_is_moved(ottla: Ottla, topic: str) -> None:
    shown = ottla("group", "import", "-", "-g", "files-far", "--execute", "-o", "json", stdin="files,0,99\n")
    assert json.loads(shown.stdout)[0]["new_offset"] == 10
    assert "offset 99 of files-0 is outside of its log: using 10" in shown.stderr


def test_a_file_with_an_unknown_partition_changes_nothing(ottla: Ottla, topic: str) -> None:
    text = "files-x,files,0,1\nfiles-y,files,9,1\n"
    shown = ottla("group", "import", "-", "--execute", stdin=text)
    assert shown.exit_code == 3
    assert committed(ottla, "files-x") == []


@pytest.mark.parametrize(
    "text",
    ["", "topic,partition,offset\n", "a,b\n", "t,0,-1\n", "t,0,1e3\n", "t,0,99999999999999999999\n", "t,0,1\nt,0,2\n",
     "t,4294967296,1\n", '"t,0,1\n', "[", "[1]", '[{"group": "g", "topic": "t", "partition": 0}]', "{}", "[" * 100_000,
     '[{"group": "g", "topic": "t", "partition": 0, "offset": true}]', '{"topic": 1, "partition": 0, "offset": 1}',
     '[{"group": "g", "topic": "t", "partition": 0, "offset": 1, "epoch": 3}]'],
)  # fmt: skip
def test_bad_files(ottla: Ottla, text: str) -> None:
    shown = ottla("group", "import", "-", "-g", "files-bad", "--execute", stdin=text)
    assert shown.exit_code == 2, shown.stderr
    assert "has no offsets" in shown.stderr


@pytest.fixture
def members(topic: str, brokers: str) -> Iterator[list[Consumer]]:
    """A static and a dynamic member of group files-members, both assigned."""
    made = []
    for more in ({"group.instance.id": "still"}, {}):
        settings = {"bootstrap.servers": brokers, "group.id": "files-members", "auto.offset.reset": "earliest"}
        made.append(Consumer({**settings, **more}))
        made[-1].subscribe([topic])
    while not all(each.assignment() for each in made):
        for each in made:
            each.poll(0.05)
    yield made
    for each in made:
        each.close()


def member_ids(ottla: Ottla, group: str) -> dict[str | None, str]:
    """The member ids by instance id."""
    (found,) = json.loads(ottla("group", "describe", group, "-o", "json").stdout)
    return {each["instance_id"]: each["consumer_id"] for each in found["members"]}


def test_members_are_removed(ottla: Ottla, members: list[Consumer]) -> None:
    ids = member_ids(ottla, "files-members")
    refused = ottla("group", "remove-member", "files-members", ids[None])
    assert (refused.exit_code, "add --yes" in refused.stderr) == (2, True)
    removed = ottla("group", "remove-member", "files-members", ids[None], "-y", "-o", "jsonl")
    assert json.loads(removed.stdout) == {"group": "files-members", "member_id": ids[None], "instance_id": None}
    static = ottla("group", "remove-member", "files-members", "--instance", "still", "-y")
    assert static.stdout == "instance still removed\n"
    gone = ottla("group", "remove-member", "files-members", "--instance", "other", "not-there", "-y")
    assert gone.exit_code == 1
    assert "instance other of group files-members: UNKNOWN_MEMBER_ID" in gone.stderr
    while len(member_ids(ottla, "files-members")) < 2:  # both notice it, and join again
        for each in members:
            each.poll(0.05)
    everyone = ottla("group", "remove-member", "files-members", "--all", "-y", "-o", "json")
    assert everyone.exit_code == 0, everyone.stderr
    assert len(json.loads(everyone.stdout)) == 2


def test_wrong_words(ottla: Ottla) -> None:
    assert ottla("group", "remove-member", "g", "-y").exit_code == 2
    assert ottla("group", "remove-member", "g", "m", "--all", "-y").exit_code == 2
    assert ottla("group", "remove-member", "not-there", "--all", "-y").exit_code == 3
