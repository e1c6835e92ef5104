"""What a machine must offer before an embedded Kafka can run, and the errors that say what is missing.

Every error is one sentence with its remedy and carries the exit code that the command line ends with:

    SetupError            2   base of all, a DeelogError
    ├── JavaError         2   no Java, or one older than 17
    ├── DownloadError     2   a jar could not be fetched, or is not the pinned one
    ├── PortTaken         2   something else listens where the broker should
    ├── AlreadyRunning    2   a broker runs on this data directory already
    └── BrokerFailed      1   the broker was started and did not come up
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from deelog_schemas.errors import DeelogError

__all__ = [
    "OLDEST_JAVA",
    "AlreadyRunning",
    "BrokerFailed",
    "DownloadError",
    "JavaError",
    "PortTaken",
    "SetupError",
    "find_java",
]

OLDEST_JAVA = 17
_INSTALL_JAVA = f"install Java {OLDEST_JAVA} or newer and put it on PATH or name its folder in JAVA_HOME"


class SetupError(DeelogError):
    """The machine cannot run what was asked for; the message names the remedy."""

    exit_code = 2


class JavaError(SetupError):
    """There is no usable Java."""


class DownloadError(SetupError):
    """A jar could not be fetched or is not the pinned one."""


class PortTaken(SetupError):
    """Something else listens on the port."""


class AlreadyRunning(SetupError):
    """Another broker holds the data directory."""


class BrokerFailed(SetupError):
    """The broker ended or stayed silent; the message ends with the tail of its log."""

    exit_code = 1


def find_java() -> Path:
    """The `java` program of JAVA_HOME, else of PATH; JavaError where it is missing or older than 17."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if found is None:
        where = f"JAVA_HOME={home} holds no bin/java" if home else "Java was not found"
        raise JavaError(f"{where}: {_INSTALL_JAVA}")
    told = subprocess.run(
        [found, "-version"], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, check=False
    )
    match = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    if match is None:
        raise JavaError(f"{found} -version did not name a version: {_INSTALL_JAVA}")
    if int(match[1]) < OLDEST_JAVA:
        raise JavaError(f"{found} is Java {match[1]}: {_INSTALL_JAVA}")
    return Path(found)


if __name__ == "__main__":  # `make` asks before it installs anything: this module needs no library
    try:
        find_java()
    except SetupError as error:
        sys.exit(f"{error}.")
