"""Signals at the worst moments: while a broker starts, and a second one right after the first was handled."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import asyncio, logging, os, signal, sys
from ottla.server import main
from ottla.server.supervisor import up

class Again(logging.Handler):
    def emit(self, record):
        if "a second signal" in record.getMessage():
            os.kill(os.getpid(), signal.SIGINT)

class Life:
    loop = asyncio.new_event_loop()
    def ask_to_stop(self, **_): pass
    def ask_to_roll(self): pass
    def stop_at_once(self): pass

logging.basicConfig(level="INFO", handlers=[Again()])
life = Life()
if sys.argv[1] == "up":
    up._handle_signals(life.loop, life)
else:
    main._handle_signals(life)
life.loop.call_soon(os.kill, os.getpid(), signal.SIGTERM)
life.loop.call_later(10, life.loop.stop)
life.loop.run_forever()
"""


@pytest.mark.parametrize("which", ["up", "server"])
def test_a_second_signal_right_behind_the_first_is_heard(which: str) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, which], check=False, timeout=300)
    assert done.returncode == 128 + signal.SIGINT


STARTING = """
import os, signal, sys
from ottla.broker.broker import Broker
from ottla.config.broker import BrokerConfig
from ottla.server import main

inside, times = getattr(Broker, sys.argv[2]), iter([signal.SIGTERM])

def killed(*words):
    for number in times:
        os.kill(os.getpid(), number)
    return inside(*words)

setattr(Broker, sys.argv[2], killed)
config, _ = BrokerConfig.from_properties({"log.dirs": sys.argv[1], "listeners": "PLAINTEXT://127.0.0.1:0"})
print(main.run_broker(config, lambda _service: print("ready")))
"""


@pytest.mark.parametrize(
    "moment",
    [
        "start",  # before there is a session with the metadata store
        "_on_found",  # before the logs are loaded
        "_report_strays",  # ready, but no client is answered yet
        "_claim_blank_dirs",  # clients are answered, but readiness is not reported yet
    ],
)
def test_a_signal_while_a_broker_starts_is_an_orderly_stop(moment: str, tmp_path: Path) -> None:
    words = [sys.executable, "-c", STARTING, str(tmp_path), moment]
    done = subprocess.run(words, check=False, timeout=300, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert (tmp_path / ".kafka_cleanshutdown").exists() is (moment != "start")


def test_a_second_signal_during_a_long_turn_ends_the_process_at_once(tmp_path: Path) -> None:
    twice = STARTING.replace("iter([signal.SIGTERM])", "iter([signal.SIGTERM, signal.SIGINT])")
    done = subprocess.run([sys.executable, "-c", twice, str(tmp_path), "_on_found"], check=False, timeout=300)
    assert done.returncode == 128 + signal.SIGINT


@pytest.mark.parametrize(("ignored", "expected"), [(False, "True\n"), (True, "ready\nTrue\n")])
def test_sighup_is_an_orderly_stop_unless_it_was_ignored_at_the_start(tmp_path: Path, ignored: bool, expected) -> None:
    """As in Kafka; under nohup a broker keeps running when its terminal closes."""
    hung_up = STARTING.replace("iter([signal.SIGTERM])", "iter([signal.SIGHUP])").replace(
        'print("ready")', '(print("ready"), os.kill(os.getpid(), signal.SIGTERM))'
    )
    hung_up = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_{'IGN' if ignored else 'DFL'})\n" + hung_up
    words = [sys.executable, "-c", hung_up, str(tmp_path), "_report_strays"]
    done = subprocess.run(words, check=False, timeout=300, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
    assert (tmp_path / ".kafka_cleanshutdown").exists()
