"""Redis with TLS and a password.

Zone: real.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import traceback
from collections.abc import Iterator

import pytest
import redis
import trustme

from ottla.retry.errors import SchedulerError
from ottla.retry.redis_scheduler import RedisScheduler
from ottla.types import TopicPartition

pytestmark = pytest.mark.slow

PASSWORD = "hunter-REDIS-51ac"
WHERE = TopicPartition("orders.retry.1", 0)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`host:port/0?ssl_ca_certs=FILE` of a server."""
    directory = tmp_path_factory.mktemp("redis")
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    made.private_key_and_cert_chain_pem.write_to_path(directory / "server.pem")
    trustme.CA().cert_pem.write_to_path(directory / "other.pem")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = shutil.which("redis-server", path="/usr/local/bin:/usr/bin:/bin:/opt/homebrew/bin")
    assert program is not None, "redis-server is not installed: run testbench/setup"
    config = directory / "redis.conf"
    config.write_text(
        f'port 0\ntls-port {port}\nbind 127.0.0.1\ndir {directory}\nsave ""\nrequirepass {PASSWORD}\n'
        f"tls-cert-file {directory}/server.pem\ntls-key-file {directory}/server.pem\n"
        f"tls-ca-cert-file {directory}/ca.pem\ntls-auth-clients no\n"
    )
    server = subprocess.Popen([program, str(config)], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    while "Ready to accept connections" not in (line := server.stdout.readline()):
        assert line, "redis-server ended"
    yield f"127.0.0.1:{port}/0?ssl_ca_certs={directory}/ca.pem"
    server.terminate()
    server.stdout.close()
    server.wait()


def test_the_scheduler_uses_tls_and_a_password(address: str) -> None:
    scheduler = RedisScheduler(f"rediss://:{PASSWORD}@{address}", "group")
    scheduler.open(WHERE, 0, "generation")
    with redis.Redis.from_url(f"rediss://:{PASSWORD}@{address}") as client:
        assert client.dbsize() > 0
    scheduler.close_all()


@pytest.mark.parametrize(
    ("user", "changed"),
    [
        (PASSWORD + "x", lambda text: text),
        (PASSWORD, lambda text: text.replace("ca.pem", "other.pem")),
        (PASSWORD, lambda text: text.replace("ssl_ca_certs", "ssl_min")),
    ],
    ids=["wrong password", "another authority", "the system's authorities"],
)
def test_a_server_or_a_password_that_is_wrong_is_an_error_without_it(address: str, user: str, changed) -> None:
    scheduler = RedisScheduler(f"rediss://:{user}@{changed(address).partition('?ssl_min')[0]}", "group", timeout_s=1)
    with pytest.raises(SchedulerError) as caught:
        scheduler.open(WHERE, 0, "generation")
    scheduler.close_all()
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))
