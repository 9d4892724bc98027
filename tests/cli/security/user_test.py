"""`ottla user`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.security.fake_cluster import FakeCluster


def accepts(fake: FakeCluster, user: str, password: str) -> bool:
    """Whether the stored credentials of the user are those of the password, for both mechanisms."""
    kinds = {1: "sha256", 2: "sha512"}
    return set(fake.users[user]) == {1, 2} and all(
        bytes(each.salted_password)
        == hashlib.pbkdf2_hmac(kinds[kind], password.encode(), bytes(each.salt), each.iterations)
        for kind, each in fake.users[user].items()
    )


def test_create_list_replace_delete(fake, run, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first secret\nmore\n")
    file.chmod(0o600)
    made = run("user", "create", "ann", "--password-file", str(file))
    assert (made.exit_code, made.stdout, made.stderr) == (0, "ann created\n", "")
    assert accepts(fake, "ann", "first secret")
    again = run("user", "create", "ann", "--password-env", "PASS", env={"PASS": "second"})
    assert again.exit_code == 1
    assert "user ann exists: --replace gives it a new password" in again.stderr
    assert accepts(fake, "ann", "first secret")
    replaced = run("user", "create", "ann", "--replace", "--password-env", "PASS", env={"PASS": "second"})
    assert replaced.stdout == "ann has the new password\n"
    assert accepts(fake, "ann", "second")
    rows = [line.split() for line in run("user", "list").stdout.splitlines()]
    assert rows == [
        ["USER", "MECHANISM", "ITERATIONS"],
        ["ann", "SCRAM-SHA-256", "4096"],
        ["ann", "SCRAM-SHA-512", "4096"],
    ]
    assert run("user", "delete", "ann", "--yes").stdout == "ann deleted\n"
    assert fake.users == {}


def test_one_mechanism_and_json(fake, run) -> None:
    words = ("--mechanism", "scram-sha-512", "--iterations", "8192", "--password-file", "-", "-o", "json")
    made = run("user", "create", "bob", *words, stdin="secret\n")
    assert json.loads(made.stdout) == [{"user": "bob", "mechanisms": ["SCRAM-SHA-512"], "iterations": 8192}]
    assert set(fake.users["bob"]) == {2}
    listed = json.loads(run("user", "list", "-o", "json").stdout)
    assert listed == [{"user": "bob", "credentials": [{"mechanism": "SCRAM-SHA-512", "iterations": 8192}]}]
    assert run("user", "list", "-o", "name").stdout == "bob\n"
    wrong = run("user", "delete", "bob", "--mechanism", "SCRAM-SHA-256", "--yes")
    assert wrong.exit_code == 3
    assert "bob" in fake.users


def test_users_that_do_not_exist_are_exit_code_3(fake, run) -> None:
    run("user", "create", "ann", "--password-file", "-", stdin="secret\n")
    assert run("user", "list", "eve").exit_code == 3
    mixed = run("user", "delete", "ann", "eve", "--yes")
    assert (mixed.exit_code, mixed.stdout) == (3, "ann deleted\n")
    assert run("user", "delete", "eve", "--yes", "--if-exists").exit_code == 0


def test_a_generated_password_is_only_in_its_file(fake, run, tmp_path: Path) -> None:
    file = tmp_path / "new" / "ann.password"
    made = run("user", "create", "ann", "--generate", str(file))
    password = file.read_text().strip()
    assert made.exit_code == 0
    assert len(password) >= 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert accepts(fake, "ann", password)
    assert password not in made.stdout + made.stderr
    again = run("user", "create", "ben", "--generate", str(file))
    assert again.exit_code == 2
    assert "is not overwritten" in again.stderr
    assert "ben" not in fake.users


def test_a_generated_password_that_was_not_set_is_not_kept(fake, run, tmp_path: Path) -> None:
    from ottla.wire.apis import ApiKey
    from ottla.wire.messages import AlterUserScramCredentialsResponse as Altered

    result = Altered.AlterUserScramCredentialsResult(user="ann", error_code=31)
    fake.broker.on[ApiKey.ALTER_USER_SCRAM_CREDENTIALS] = lambda asked: asked.reply(Altered(results=[result]))
    refused = run("user", "create", "ann", "--generate", str(tmp_path / "password"))
    assert refused.exit_code == 4
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "stdin", "text"),
    [
        ((), "", "stdin is not a terminal: add --password-file, --password-env or --generate"),
        (("--password-file", "-", "--password-env", "PASS"), "x\n", "give one of"),
        (("--password-file", "-"), "\n", "- has no password"),
        (("--password-env", "UNSET"), "", "the environment variable UNSET has no password"),
        (("--password-file", "-"), b"secr\xff\n", "is not text in UTF-8"),
    ],
)
def test_a_password_that_is_none_is_exit_code_2(fake, run, words, stdin, text: str) -> None:
    refused = run("user", "create", "ann", *words, stdin=stdin)
    assert refused.exit_code == 2
    assert text in refused.stderr
    assert "secr" not in refused.stderr
    assert fake.users == {}


def test_a_password_file_for_all_is_noted(fake, run, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret")
    file.chmod(0o644)
    assert f"chmod 600 {file}" in run("user", "create", "ann", "--password-file", str(file)).stderr


@pytest.mark.slow
def test_a_terminal_asks_twice_and_shows_nothing(fake) -> None:
    master, slave = os.openpty()
    words = [sys.executable, "-m", "ottla", "-b", fake.broker.bootstrap, "user", "create", "ann"]
    # A session of its own has no /dev/tty, which would be the terminal of the person who runs the tests.
    with subprocess.Popen(words, stdin=slave, stdout=subprocess.PIPE, stderr=slave, start_new_session=True) as child:
        os.close(slave)
        shown = b""
        for prompt in (b"Password of ann: ", b"Repeat for confirmation: "):
            while prompt not in shown:
                shown += os.read(master, 1000)
            os.write(master, b"typed secret\n")
        assert child.stdout is not None
        assert child.stdout.read() == b"ann created\n", shown
        assert child.wait() == 0
    with contextlib.suppress(OSError):  # the end of a terminal
        while part := os.read(master, 1000):
            shown += part
    os.close(master)
    assert accepts(fake, "ann", "typed secret")
    assert b"typed secret" not in shown


def test_deleting_wants_a_yes(fake, run) -> None:
    run("user", "create", "ann", "--password-file", "-", stdin="secret\n")
    refused = run("user", "delete", "ann")
    assert refused.exit_code == 2
    assert "ann" in fake.users
