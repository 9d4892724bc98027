"""`ottla diff`, `ottla apply` and `ottla cluster export` against a broker with an authorizer."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.cli.commands.cluster import manifest
from ottla.cli.main import cli
from ottla.cli.manifest.applying import ChangeRunner
from ottla.server.embedded import EmbeddedBroker

WHOLE = """\
version: 1
topics:
  orders:
    partitions: 4
    replication_factor: 1
    configs:
      retention.ms: 604800000
      cleanup.policy: [compact, delete]
  payments: {partitions: 2}
brokers:
  default:
    log.retention.ms: 86400000
  "1":
    log.cleaner.threads: 2
groups:
  billing:
    consumer.session.timeout.ms: 46000
users:
  ann:
    mechanisms: [SCRAM-SHA-256, SCRAM-SHA-512]
    password_env: ANN_PASSWORD
acls:
  - principal: User:ann
    resource_type: topic
    name: orders
    operations: [Read, Describe]
quotas:
  - entity: {user: ann}
    quotas: {producer_byte_rate: 1048576}
  - entity: {client_id: null}
    quotas: {request_percentage: 50.5}
"""
PRUNE_ALL = [word for kind in ("topics", "configs", "users", "acls", "quotas") for word in ("--prune", kind)]
EMPTY = (
    'version: 1\ntopics: {}\nbrokers: {default: {}, "1": {}}\ngroups: {billing: {}}\nusers: {}\nacls: []\nquotas: []\n'
)


@pytest.fixture(scope="module")
def authorizing() -> Iterator[str]:
    settings = {
        "node.id": "1",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with EmbeddedBroker(config=settings) as broker:
        yield broker.bootstrap


class Runner:
    def __init__(self, brokers: str) -> None:
        self.brokers = brokers

    def __call__(self, *words: str, stdin: str = "", password: str = "sesame") -> Result:
        environment = {"OTTLA_BROKERS": self.brokers, "ANN_PASSWORD": password}
        return CliRunner().invoke(cli, list(words), input=stdin, env=environment)


@pytest.fixture
def run(authorizing: str) -> Iterator[Runner]:
    """Runs `ottla WORDS…`; afterwards the cluster is empty."""
    runner = Runner(authorizing)
    yield runner
    cleaned = runner("apply", "-", "--yes", *PRUNE_ALL, stdin=EMPTY)
    assert cleaned.exit_code == 0, cleaned.stderr


@pytest.mark.slow
def test_apply_makes_all_once_and_the_export_is_the_same(run) -> None:
    planned = run("diff", "-", stdin=WHOLE)
    assert planned.exit_code == 2
    assert "+ topic orders: partitions=4, replication_factor=1, retention.ms=604800000" in planned.stdout
    assert run("topic", "list", "-o", "name").stdout == "", "a plan changes nothing"
    made = run("apply", "-", "--yes", stdin=WHOLE)
    assert made.exit_code == 0, made.stderr
    assert made.stdout.count("done: ") == 11
    assert "sesame" not in made.stdout + made.stderr
    again = run("apply", "-", stdin=WHOLE)
    assert (again.exit_code, again.stdout) == (0, ""), again.stderr
    assert "nothing to do" in again.stderr
    for form in ("yaml", "json"):
        exported = run("cluster", "export", "-o", form).stdout
        assert run("diff", "-", *PRUNE_ALL, stdin=exported).exit_code == 0
    (orders,) = json.loads(run("topic", "describe", "orders", "-o", "json").stdout)
    assert len(orders["partitions"]) == 4


def test_changes_of_what_exists(run) -> None:
    run("apply", "-", "--yes", stdin=WHOLE)
    other = WHOLE.replace("partitions: 4", "partitions: 6").replace("604800000", "3600000").replace("1048576", "null")
    plan = json.loads(run("diff", "-", "-o", "json", stdin=other).stdout)
    assert [(each["action"], each["kind"], each["before"], each["after"]) for each in plan] == [
        ("change", "partitions", 4, 6),
        ("change", "settings", {"retention.ms": "604800000"}, {"retention.ms": "3600000"}),
        ("delete", "quota", {"producer_byte_rate": 1048576}, {"producer_byte_rate": None}),
    ]
    made = json.loads(run("apply", "-", "--yes", "-o", "json", stdin=other).stdout)
    assert [each["state"] for each in made] == ["done"] * 3
    assert run("diff", "-", stdin=other).exit_code == 0


def test_nothing_is_deleted_unless_it_is_pruned(run) -> None:
    run("apply", "-", "--yes", stdin=WHOLE)
    run("topic", "create", "_schemas", "-p", "1")
    assert run("diff", "-", stdin=EMPTY).exit_code == 0
    refused = run("apply", "-", "--yes", "--prune", "topics", stdin="version: 1\n")
    assert refused.exit_code == 1
    assert "topics: the file has no such section, so --prune would delete all" in refused.stderr
    pruned = run("apply", "-", "--yes", "--prune", "topics", stdin=EMPTY)
    assert [line for line in pruned.stdout.splitlines() if line.startswith("done")] == [
        "done: - topic orders", "done: - topic payments",
    ]  # fmt: skip
    assert run("topic", "list", "-o", "name").stdout == "_schemas\n"
    assert run("user", "list", "-o", "name").stdout == "ann\n"
    run("topic", "delete", "_schemas", "--yes")


def test_a_file_with_errors_changes_nothing_and_names_their_lines(run) -> None:
    wrong = """\
version: 2
topics:
  good: {partitions: 1}
  __consumer_offsets: {}
  orders:
    partitons: 3
    partitions: true
  "a b": {}
users:
  bob: {password: secret-word}
  eve: {mechanisms: [SCRAM-MD5]}
acls:
  - {principal: ann, resource_type: topic, name: t, operation: read}
  - {principal: "User:ann", resource_type: group, name: g, operation: write}
quotas:
  - {entity: {ip: 1.2.3.4, user: ann}, quotas: {producer_byte_rate: -1}}
"""
    result = run("apply", "-", "--yes", stdin=wrong)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "secret-word" not in result.stderr
    for line in (
        "line 1, version:", "line 4, topics.__consumer_offsets:", "line 6, topics.orders.partitons:",
        "line 7, topics.orders.partitions:", "line 8, topics.a b:", "line 10, users.bob.password:",
        "line 11, users.eve.mechanisms:", "line 13, acls[0]: the principal is not of the form type:name",
        "line 14, acls[1]: Write does not exist for a Group", "line 16, quotas[0].entity:",
        "line 16, quotas[0].quotas.producer_byte_rate:",
    ):  # fmt: skip
        assert f"standard input: {line}" in result.stderr
    assert run("topic", "list", "-o", "name").stdout == ""


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a: [1\n", "line 2, file: this is not YAML"),
        ('{"version": 1,\n}', "file: this is not JSON"),
        ('{"version": 1, "version": 1}', "the key 'version' occurs twice"),
        ("version: 1\nversion: 1\n", "line 2, file: the key 'version' occurs twice"),
        ("a: &x [1]\nb: *x\n", "line 2, file: aliases are not read"),
        ("a: !!python/object:os.system x\n", "line 1, file: the tag"),
        ("version: 1\n---\nversion: 1\n", "a second document begins here"),
        ("[" * 20, "nested more than"),
        ("[" * 2000, "nest"),
        ('{"a":' * 2000, "file: "),
        ("", "write `version: 1`"),
        ("version: 1\n#" + "x" * (8 << 20), "is larger than 8 MiB"),
        pytest.param("a: [" + "a," * 600_000 + "]", "more than 500000 values", marks=pytest.mark.slow, id="many"),
    ],
)
def test_files_that_are_not_trees_are_refused(run, text: str, error: str) -> None:
    result = run("diff", "-", stdin=text)
    assert result.exit_code == 1
    assert error in result.stderr


def test_brokers_check_the_whole_plan_before_the_first_change(run) -> None:
    text = "version: 1\ntopics:\n  good: {partitions: 1}\n  bad:\n    configs: {retention.ms: soon}\n"
    refused = run("apply", "-", "--yes", "-o", "json", stdin=text)
    assert refused.exit_code == 1
    (problem,) = json.loads(refused.stderr)["error"]["errors"]
    assert (problem["line"], problem["path"]) == (5, "topics.bad")
    assert "retention.ms" in problem["message"]
    assert run("topic", "list", "-o", "name").stdout == ""


def test_what_a_cluster_cannot_do(run) -> None:
    run("apply", "-", "--yes", stdin=WHOLE)
    text = """\
version: 1
topics:
  orders: {partitions: 2, replication_factor: 3}
brokers:
  "77": {log.cleaner.threads: 1}
users:
  bob: {mechanisms: [SCRAM-SHA-256]}
  ann: {mechanisms: {SCRAM-SHA-256: 8192}, password_file: /nowhere/at/all}
"""
    refused = run("diff", "-", stdin=text)
    assert refused.exit_code == 1
    for line in (
        "line 3, topics.orders.partitions: a topic cannot lose partitions: it has 4",
        "line 3, topics.orders.replication_factor: 3 replicas need as many brokers, and 1 are alive",
        "line 5, brokers.77: no live broker has this id",
        "line 7, users.bob: SCRAM-SHA-256 must be set: add password_env or password_file",
    ):
        assert line in refused.stderr
    lost = run(
        "diff", "-", stdin=text[text.index("users") :].replace("users", "version: 1\nusers").replace("  bob", "#")
    )
    assert "users.ann: /nowhere/at/all: No such file or directory" in lost.stderr


def test_exit_codes_of_diff_do_not_collide(run) -> None:
    assert run("diff", "--nope", "-").exit_code == 1
    assert run("diff", "-", "-X", "nonsense", stdin="version: 1\n").exit_code == 1
    assert run("apply", "--nope", "-").exit_code == 2


def test_apply_asks(run) -> None:
    refused = run("apply", "-", stdin=WHOLE)
    assert refused.exit_code == 2
    assert "add --yes" in refused.stderr
    assert run("topic", "list", "-o", "name").stdout == ""


def test_a_password_is_set_again_only_when_wanted(run) -> None:
    run("apply", "-", "--yes", stdin=WHOLE)
    assert run("diff", "-", stdin=WHOLE, password="other").exit_code == 0
    changed = run("apply", "-", "--yes", "--set-passwords", stdin=WHOLE, password="other")
    assert changed.stdout.count("done: ~ user ann") == 2
    assert run("diff", "-", "--set-passwords", stdin=WHOLE, password="").exit_code == 1


@pytest.mark.parametrize("end", [KeyboardInterrupt, ConnectionError])
def test_an_end_in_the_middle_reports_what_was_done(run, monkeypatch: pytest.MonkeyPatch, end: type) -> None:
    """The third change is cut short, by Ctrl-C or by the loss of the brokers."""
    from ottla.client import UnreachableError

    make, made = ChangeRunner.make_change, []

    def cut(self, change) -> None:
        if len(made) == 2:
            raise KeyboardInterrupt if end is KeyboardInterrupt else UnreachableError("no broker answers", "Wait")
        made.append(change)
        make(self, change)

    with monkeypatch.context() as patch:
        patch.setattr(ChangeRunner, "make_change", cut)
        result = run("apply", "-", "--yes", stdin=WHOLE)
    assert result.exit_code == (130 if end is KeyboardInterrupt else 1)
    assert result.stdout.count("done: ") == 2
    assert "unknown: + acl" in result.stderr
    assert result.stderr.count("not done: ") == 8
    assert "2 of 11 changes are done; apply the file again for the rest" in result.stderr
    assert run("apply", "-", "--yes", stdin=WHOLE).stdout.count("done: ") == 9
    assert manifest.CHANGES == 2


NAMES = st.sampled_from(["a", "b.c", "d_e"])
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "retention.ms": st.sampled_from([-1, 1000, "86400000", None]),
        "cleanup.policy": st.sampled_from(["compact", ["compact", "delete"], "delete"]),
        "message.timestamp.type": st.sampled_from(["CreateTime", "LogAppendTime"]),
        "preallocate": st.booleans(),
    },
)
RATES = st.fixed_dictionaries(
    {}, optional={"request_percentage": st.sampled_from([1, 2.5, None]), "consumer_byte_rate": st.just(9)}
)
ACLS = [
    {"principal": f"User:{user}", "resource_type": kind, "name": "x", "operation": "DESCRIBE", "pattern_type": pattern}
    for user in ("ann", "bob")
    for kind in ("TOPIC", "GROUP")
    for pattern in ("LITERAL", "PREFIXED")
]
STATES = st.fixed_dictionaries(
    {
        "version": st.just(1),
        "topics": st.dictionaries(NAMES, st.fixed_dictionaries({"configs": SETTINGS}), max_size=3),
        "users": st.dictionaries(
            st.sampled_from(["ann", "bob"]),
            st.fixed_dictionaries(
                {"password_env": st.just("ANN_PASSWORD")}
                | {"mechanisms": st.dictionaries(st.sampled_from(["SCRAM-SHA-256", "SCRAM-SHA-512"]),
                                                 st.sampled_from([4096, 4097]), min_size=1)}
            ),
        ),
        "acls": st.lists(st.sampled_from(ACLS), max_size=4),
        "quotas": st.dictionaries(NAMES, RATES, max_size=2).map(
            lambda rows: [{"entity": {"user": name}, "quotas": rates} for name, rates in rows.items()]
        ),
        "groups": st.dictionaries(
            NAMES, st.fixed_dictionaries({}, optional={"share.session.timeout.ms": st.sampled_from([46000, 47000])})
        ),
    }
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=STATES, after=STATES, prune=st.booleans())
def test_after_an_apply_there_is_nothing_to_do(run, before, after, prune: bool) -> None:
    for state in (before, after):
        words = ["-", *(PRUNE_ALL if prune else [])]
        applied = run("apply", *words, "--yes", stdin=json.dumps(state))
        assert applied.exit_code == 0, applied.stderr
        left = run("diff", *words, stdin=json.dumps(state))
        assert (left.exit_code, left.stdout) == (0, "")
    exported = run("cluster", "export", "-o", "json").stdout
    assert run("diff", "-", *PRUNE_ALL, stdin=exported).exit_code == 0
    if prune:
        topics = json.loads(exported)["topics"]
        assert sorted(topics) == sorted(after["topics"])
