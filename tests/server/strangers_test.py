"""Foreign entries in a data directory: no broker stops, waits, or deletes them.

Zone: real.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ottla.client import Admin, ClientConfig, Cluster, NewTopic, Producer
from ottla.seams import Failure, Kind
from ottla.server.disks.data_dir_lock import DirectoryLock
from ottla.server.disks.disk import RealDisk
from ottla.server.embedded import EmbeddedBroker
from ottla.storage.layout import is_delete_dir, parse_file_name, parse_log_dir

pytestmark = pytest.mark.filterwarnings("error")


def strangers(directory: Path) -> None:
    """One of each kind."""
    os.mkfifo(directory / "pipe")
    os.mkfifo(directory / "00000000000000000005.log")
    os.mkfifo(directory / "00000000000000000000.log.deleted")
    os.mkfifo(directory / "00000000000000000005.index.swap")
    (directory / "00000000000000000007.log").mkdir()
    (directory / "00000000000000000009.snapshot").mkdir()
    (directory / "09223372036854775808.log").write_bytes(b"x" * 100)
    (directory / "99999999999999999999.timeindex").write_bytes(b"")
    (directory / "nowhere").symlink_to("/nonexistent/file")
    (directory / "loop").symlink_to("loop")
    Path(os.fsdecode(os.fsencode(directory) + b"/\xff\xfe.log")).write_bytes(b"")
    os.mkdir(os.fsencode(directory) + b"/t\xff-0")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(directory / "s"))


@pytest.mark.slow
def test_a_broker_starts_serves_and_stops_beside_strangers(tmp_path: Path) -> None:
    data = tmp_path / "data"
    value = b"v" * 100
    with EmbeddedBroker(str(data)) as broker, Cluster(ClientConfig(bootstrap_servers=broker.bootstrap)) as cluster:
        Admin(cluster).create_topics([NewTopic("t")])
        with Producer({"bootstrap.servers": broker.bootstrap}) as producer:
            producer.send("t", value).result(180)
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    for directory in (data, data / "t-0", data / "__znodes-0"):
        strangers(directory)
    (data / ".lock").unlink()
    (data / ".lock").symlink_to(outside)
    (data / "recovery-point-offset-checkpoint.tmp").symlink_to(outside)
    os.mkfifo(data / "replication-offset-checkpoint.tmp")
    (data / "please-delete").mkdir()
    (data / "t-4294967296").mkdir()
    (data / "no topic-0").mkdir()
    for _ in range(2):
        with EmbeddedBroker(str(data)) as broker, Producer({"bootstrap.servers": broker.bootstrap}) as producer:
            producer.send("t", value).result(180)
    assert outside.read_text() == "untouched"
    assert (data / "please-delete").is_dir()
    assert (data / "t-0" / "00000000000000000000.log").stat().st_size > 300


def test_a_list_names_files_and_directories_only(tmp_path: Path, caplog) -> None:
    strangers(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    names = RealDisk(str(tmp_path), None).list("")  # type: ignore[arg-type]
    assert names == [
        "00000000000000000007.log/", "00000000000000000009.snapshot/", "09223372036854775808.log",
        "99999999999999999999.timeindex", "file",
    ]  # fmt: skip
    assert "'pipe' is not a broker's file: ignoring it" in "\n".join(caplog.messages)
    assert "'\\udcff\\udcfe.log'" in "\n".join(caplog.messages)


@pytest.mark.parametrize("kind", ["pipe", "link", "directory"])
def test_a_lock_that_is_no_file_is_set_aside_and_what_it_leads_to_stays(tmp_path: Path, kind: str) -> None:
    outside = tmp_path / "outside"
    outside.write_text("untouched")
    path = tmp_path / ".lock"
    {"pipe": lambda: os.mkfifo(path), "link": lambda: path.symlink_to(outside), "directory": path.mkdir}[kind]()
    lock = DirectoryLock(str(tmp_path))
    assert path.read_text() == f"{os.getpid()}\n"
    assert outside.read_text() == "untouched"
    lock.release_lock()


def test_a_lock_behind_a_link_that_a_broker_holds_is_respected(tmp_path: Path) -> None:
    elsewhere, data = tmp_path / "elsewhere", tmp_path / "data"
    elsewhere.mkdir()
    data.mkdir()
    holder = DirectoryLock(str(elsewhere))
    (data / ".lock").symlink_to(elsewhere / ".lock")
    with pytest.raises(Failure) as refused:
        DirectoryLock(str(data))
    assert refused.value.kind is Kind.CONFLICT
    holder.release_lock()


def test_names_that_no_broker_makes() -> None:
    assert parse_file_name("09223372036854775807.log") is not None
    assert parse_file_name("09223372036854775808.log") is None
    assert parse_log_dir("t-2147483647") is not None
    assert parse_log_dir("t-2147483648") is None
    assert parse_log_dir("t t-0") is None
    assert is_delete_dir("t-0.0123abc-delete")
    assert not is_delete_dir("please-delete")
