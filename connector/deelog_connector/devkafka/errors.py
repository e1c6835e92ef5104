"""The errors of an embedded Kafka. Each is one sentence with its remedy and has the command's exit code:

    SetupError            2   base of all, a DeelogError
    ├── DownloadError     2   a jar could not be fetched, or is not the pinned one
    ├── PortTaken         2   something else listens where the broker should
    ├── AlreadyRunning    2   a broker runs on this data directory already
    └── BrokerFailed      1   the broker was started and did not come up

A missing Java is a `deelog_schemas.java.JavaError` (2).
"""

from __future__ import annotations

from deelog_schemas.errors import DeelogError


class SetupError(DeelogError):
    """The machine cannot run the broker; the message names the remedy."""

    exit_code = 2


class DownloadError(SetupError):
    """A jar could not be fetched or is not the pinned one."""


class PortTaken(SetupError):
    """Something else listens on the port."""


class AlreadyRunning(SetupError):
    """Another broker holds the data directory."""


class BrokerFailed(SetupError):
    """The broker ended or did not answer; the message ends with the tail of its log."""

    exit_code = 1
