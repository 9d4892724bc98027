"""The program as a whole: help, errors, signals, pipes, where settings come from."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys

import pytest

import ottla as package


def test_help_imports_nothing_that_is_slow() -> None:
    """The budget of 150 ms depends on the imports; a clock would give another result on every machine."""
    code = (
        "import sys; from ottla.cli.main import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "slow = [m for m in sys.modules if m.startswith(('ottla.', 'asyncio', 'pyspark', 'numpy'))]\n"
        "print(slow, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.startswith("Usage: ")
    assert done.stderr.strip() == "['ottla.cli', 'ottla.cli.options', 'ottla.terminal', 'ottla.cli.main']"


def test_every_command_has_help(ottla) -> None:
    names = [line.split()[0] for line in ottla("--help").stdout.split("Commands:")[1].splitlines() if line.strip()]
    assert {"up", "server", "topic", "produce", "consume", "log", "sim", "demo", "completion"} <= set(names)
    for name in names:
        result = ottla(name, "--help")
        assert result.exit_code == 0, name
        assert result.stdout.startswith(f"Usage: root {name}") or name in result.stdout


def test_a_wrong_word_gets_the_command_that_was_meant(ottla) -> None:
    wrong = ottla("topics")
    assert wrong.exit_code == 2
    assert "No such command 'topics'. Did you mean 'topic'?" in wrong.stderr
    assert "Did you mean" not in ottla("xyzzy").stderr


def test_version(ottla) -> None:
    assert ottla("--version").stdout == f"ottla {package.__version__}\n"


@pytest.mark.parametrize(("shell", "word"), [("bash", "complete"), ("zsh", "#compdef ottla"), ("fish", "complete")])
def test_completion_scripts(ottla, shell: str, word: str) -> None:
    script = ottla("completion", shell).stdout
    assert word in script
    assert "_OTTLA_COMPLETE" in script


def test_brokers_come_from_the_nearest_place(ottla, brokers: str, tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = f"127.0.0.1:{listener.getsockname()[1]}"
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={brokers}\nsecurity.providers=x\n")
    wrong = {"OTTLA_BROKERS": nobody}
    assert ottla("topic", "list", env=wrong).exit_code == 1
    from_file = ottla("topic", "list", "--command-config", str(file), env=wrong)
    assert from_file.exit_code == 0
    assert "security.providers is not a setting of this client" in from_file.stderr
    assert ottla("-X", f"bootstrap.servers={brokers}", "topic", "list", env=wrong).exit_code == 0
    assert ottla("-X", f"bootstrap.servers={nobody}", "topic", "list", "-b", brokers, env=wrong).exit_code == 0
    assert ottla("-b", nobody, "topic", "list", "--bootstrap-server", brokers, env=wrong).exit_code == 0, "inner wins"


def test_a_file_of_settings_that_is_none(ottla, tmp_path) -> None:
    file = tmp_path / "client.properties"
    for content in (b"\xff\xfe", b"no separator", b"acks=7"):
        file.write_bytes(content)
        result = ottla("topic", "list", "--command-config", str(file))
        assert result.exit_code == 2, content
        assert "a bug" not in result.stderr


def test_an_unreachable_broker_is_an_error_with_the_next_step(ottla) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = f"127.0.0.1:{listener.getsockname()[1]}"
    result = ottla("topic", "list", "-b", nobody)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"ottla: cannot connect to {nobody}")
    assert "Is a broker running there" in result.stderr


def test_a_peer_that_never_answers_is_a_timeout(ottla) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent = f"127.0.0.1:{listener.getsockname()[1]}"
        result = ottla("topic", "list", "-b", silent, "--timeout", "0.05")
    assert result.exit_code == 5
    assert "Traceback" not in result.stderr


def test_a_bug_is_one_line_and_with_debug_a_report(ottla, monkeypatch) -> None:
    from ottla.client import Admin

    def broken(*words: object, **options: object) -> None:
        raise RuntimeError("surprise")

    monkeypatch.setattr(Admin, "list_topics", broken)
    plain = ottla("topic", "list")
    assert plain.exit_code == 1
    assert plain.stderr.count("\n") == 1
    assert "a bug: RuntimeError: surprise" in plain.stderr
    assert "Traceback" in ottla("topic", "list", "--debug").stderr


@pytest.mark.slow
def test_a_closed_pipe_is_not_reported_as_an_error(ottla, process) -> None:
    ottla("produce", "pipe", stdin=b"x" * 99 + b"\n" + b"".join(b"%d\n" % n for n in range(100_000)))
    child = process("consume", "pipe", "--from-beginning", "--exit-at-end")
    assert child.stdout.read(10)
    child.stdout.close()
    assert child.wait(180) == 141
    assert child.stderr.read() == b""


@pytest.mark.slow
def test_ctrl_c_ends_with_130(ottla, process) -> None:
    ottla("produce", "follow", stdin=b"here\n")
    child = process("consume", "follow", "--from-beginning", "--follow")
    assert child.stdout.readline() == b"here\n"
    child.send_signal(signal.SIGINT)
    assert child.wait(180) == 130
    assert b"Traceback" not in child.stderr.read()


@pytest.mark.slow
def test_a_line_is_sent_when_the_pipe_pauses(ottla, process) -> None:
    """As with `tail -f log | ottla produce`: nothing waits for a full batch."""
    writer = process("produce", "tailed", "-o", "jsonl")
    for offset in range(2):
        writer.stdin.write(b"line\n")
        writer.stdin.flush()
        assert json.loads(writer.stdout.readline())["records"] == 1, offset
    writer.stdin.close()
    assert writer.wait(180) == 0


@pytest.mark.parametrize("command", ["sim", "reorder"])
def test_help_of_the_simulators_fits_a_screen(ottla, command: str) -> None:
    """Names of safeguards are printed by `--list-safeguards`, not in the help."""
    lines = ottla(command, "--help").stdout.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    listed = ottla(command, "--list-safeguards")
    assert listed.exit_code == 0
    names = [line.strip() for line in listed.stdout.splitlines() if line.startswith("  ")]
    assert "transactions.bump_at_end" in names
    assert len(set(names)) == len(names)


def test_a_wrong_safeguard_gets_the_name_that_was_meant(ottla) -> None:
    wrong = ottla("sim", "--seed", "1", "--ablate", "crc_chek")
    assert wrong.exit_code == 2
    assert "Did you mean 'crc_check'? --list-safeguards prints all names" in " ".join(wrong.stderr.split())
