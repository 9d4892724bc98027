"""`make test`: every test is in one part, every part runs once, and what fails is reported."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from testbench.run_tests import (
    AS_ROOT,
    CLIENTS,
    DISK,
    LARGE,
    NOTHING_CHOSEN,
    PYTHON,
    ROOT,
    SECOND_TRIES,
    TESTS_FAILED,
    WITH_DISK,
    WITH_ROOT,
    Lanes,
    Part,
    client_parts,
    failed,
    pieces,
    python_parts,
    spark_parts,
    try_again,
)

MARKERS = ("interop", "kafka", "spark", "root", "disk")


def part(name: str, program: str = "pass") -> Part:
    return Part(name, (sys.executable, "-c", program))


def run(directory: Path, *lanes: list[Part]) -> Lanes:
    running = Lanes(lanes, directory)
    for number in range(len(lanes)):
        running.start(number)
    running.join()
    return running


@pytest.mark.parametrize("values", list(itertools.product([False, True], repeat=len(MARKERS))))
def test_a_test_with_any_markers_belongs_to_one_kind(values: tuple[bool, ...]) -> None:
    names = dict(zip(MARKERS, values, strict=True))
    assert sum(bool(eval(kind, {}, names)) for kind in (PYTHON, CLIENTS, AS_ROOT, DISK)) == 1


def paths(chosen: Part) -> tuple[set[str], set[str]]:
    """The paths of a part, and those that it leaves out."""
    named = {word for word in chosen.words if word.startswith("tests")}
    return named, {word.removeprefix("--ignore=") for word in chosen.words if word.startswith("--ignore=")}


def test_directories_are_either_a_part_or_with_the_others() -> None:
    assert all((ROOT / "tests" / name).is_dir() for name in LARGE)
    for parts in (python_parts()[1:], [*spark_parts(), *client_parts()[:-1]]):
        named = set[str]().union(*(paths(each)[0] for each in parts if paths(each)[0] != {"tests"}))
        (others,) = (paths(each)[1] for each in parts if paths(each)[0] == {"tests"})
        files = {name for name in named if name.endswith(".py")}
        directories = {"/".join(name.split("/")[:2]) for name in files} | (named - files)
        assert directories == others


@pytest.mark.parametrize(("marker", "directories"), [("root", WITH_ROOT), ("disk", WITH_DISK)])
def test_tests_with_a_directory_of_their_own_are_there(marker: str, directories: tuple[str, ...]) -> None:
    marked = {path for path in (ROOT / "tests").rglob("*.py") if f"mark.{marker}" in path.read_text()}
    below = {path for path in marked if any(path.is_relative_to(ROOT / name) for name in directories)}
    assert marked - below <= {Path(__file__)}
    assert below


def test_pieces_of_a_directory_have_each_file_once() -> None:
    found = [path for each in pieces("tests/interop", 3, CLIENTS) for path in paths(each)[0]]
    files = (ROOT / "tests/interop").rglob("*_test.py")
    assert sorted(found) == sorted(str(path.relative_to(ROOT)) for path in files)


def test_each_part_runs_once_and_idle_lanes_take_parts_of_others(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).touch()
    # The first part of the long lane ends only when another lane has run the last one.
    waits = f"import os, time\nwhile os.path.exists({str(tmp_path / 'b')!r}): time.sleep(0.01)"
    removes = f"import os; os.remove({str(tmp_path / 'b')!r})"
    long = [part("waits", waits), *(part(f"short {n}") for n in range(3)), part("removes", removes)]
    running = run(tmp_path, long, [part("alone")])
    assert {each.name: code for each, code in running.codes.items()} == dict.fromkeys(
        ["waits", "short 0", "short 1", "short 2", "removes", "alone"], 0
    )


def test_parts_of_a_lane_that_is_not_started_do_not_run(tmp_path: Path) -> None:
    running = Lanes([[part("first")], [part("needs what is not installed")]], tmp_path)
    running.start(0)
    running.join()
    assert [each.name for each in running.codes] == ["first"]


def test_output_of_all_parts_is_printed_and_failures_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = part("bad", "import sys; print('seen'); sys.exit(3)")
    empty = part("empty", f"import sys; sys.exit({NOTHING_CHOSEN})")
    running = run(tmp_path, [bad, empty, part("good", "print('fine')")])
    said = capfd.readouterr().out
    assert "seen" in said
    assert "fine" in said
    assert "bad: exit code 3" in said
    assert failed(running.codes) == ["bad"]
    assert failed({bad: 0, empty: NOTHING_CHOSEN}) == []
    assert failed({empty: NOTHING_CHOSEN}) == ["no test was chosen"]
    assert failed({bad: -signal.SIGKILL}) == ["bad"]


def test_tests_that_failed_are_named_for_the_end_of_the_output(tmp_path: Path) -> None:
    summary = "print('FAILED tests/a_test.py::test_a - assert 1 == 2', 'ERROR tests/b_test.py', 'FAILED', sep=chr(10))"
    running = run(tmp_path, [part("bad", summary), part("good")])
    assert [line for lines in running.failures.values() for line in lines] == [
        "FAILED tests/a_test.py::test_a - assert 1 == 2",
        "ERROR tests/b_test.py",
    ]


def lanes_with(tmp_path: Path, third_party: bool, *lines: str) -> Lanes:
    """Lanes after a part whose tests failed with these lines."""
    program = f"import sys; print({chr(10).join(lines)!r}); sys.exit({TESTS_FAILED})"
    return run(tmp_path, [part("bad", program)._replace(is_tried_twice=third_party)])


def test_tests_of_third_party_clients_run_once_more(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    passes = tmp_path / "second_test.py"
    passes.write_text("import pytest\n@pytest.mark.parametrize('n', [1])\ndef test_a(n): pass\ndef test_b(): 1 / 0\n")
    good, bad = f"FAILED {passes}::test_a[1] - assert 1 - 2", f"ERROR {passes}::test_b"
    running = lanes_with(tmp_path, True, good)
    try_again(running)
    assert failed(running.codes) == []
    assert f"passed only in the second run:\n  {passes}::test_a[1]\n" in capfd.readouterr().out
    running = lanes_with(tmp_path, True, good, bad)
    try_again(running)
    assert failed(running.codes) == ["bad"]


def test_other_tests_and_many_tests_have_one_try(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    passes = tmp_path / "second_test.py"
    passes.write_text("def test_a(): pass\n")
    line = f"FAILED {passes}::test_a"
    for running in (lanes_with(tmp_path, False, line), lanes_with(tmp_path, True, *[line] * (SECOND_TRIES + 1))):
        try_again(running)
        assert failed(running.codes) == ["bad"]
    assert "second run" not in capfd.readouterr().out


def test_stop_interrupts_the_parts_and_begins_no_other(tmp_path: Path) -> None:
    program = (
        "import pathlib, time\n"
        f"try: pathlib.Path({str(tmp_path / 'begun')!r}).touch(); time.sleep(600)\n"
        f"except KeyboardInterrupt: pathlib.Path({str(tmp_path / 'tidied')!r}).touch()"
    )
    running = Lanes([[part("long", program), part("next")]], tmp_path)
    running.start(0)
    while not (tmp_path / "begun").exists():
        time.sleep(0.01)
    running.stop()
    assert (tmp_path / "tidied").exists()
    assert [each.name for each in running.codes] == ["long"]


def test_a_setup_that_fails_ends_the_run(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, testbench.run_tests as run\n"
        "from pathlib import Path\n"
        "def fails(*words, **more): return subprocess.CompletedProcess(words, 1)\n"
        "run.subprocess.run = fails\n"
        f"lanes = run.Lanes([[run.Part('long', (sys.executable, '-c', 'import time; time.sleep(600)'))]], "
        f"Path({str(tmp_path)!r}))\n"
        "sys.exit(run._run(lanes, 1))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, cwd=ROOT).returncode == 1
