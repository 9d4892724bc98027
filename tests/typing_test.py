"""The types of the public API, as a user's own type checker sees them: from the installed package, through py.typed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = Path(__file__).with_name("typing_program.py")


def test_the_package_is_marked_as_typed() -> None:
    assert (ROOT / "src" / "ottla" / "py.typed").exists()


@pytest.mark.slow
def test_a_program_with_the_public_api_is_checked_strictly(tmp_path: Path) -> None:
    """Outside of the checkout, so that only the installed package is found; one without py.typed is an error there."""
    (tmp_path / "program.py").write_text(PROGRAM.read_text())
    words = ["--strict", "--no-error-summary", "--config-file=", f"--cache-dir={ROOT / '.mypy_cache' / 'user'}"]
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "MYPYPATH")}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words, "program.py"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
