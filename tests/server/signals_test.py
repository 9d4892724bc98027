"""A second signal, at the worst moment: right when the first has been heard."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import asyncio, logging, os, signal, sys
from ottla.server import main, up

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
