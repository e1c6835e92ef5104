"""librdkafka's log lines through a Python logger: at WARNING at most, and once per cause.

A client tries to connect for ever and logs each attempt, and connector and job have many clients. If it cannot connect,
a request fails and its caller reports that. So these lines are only hints: a repeated line is dropped until the cause
was not seen for a minute.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Final

SILENCE_SECONDS: Final = 60.0
"""A cause that was not seen for this long is over. While it lasts, librdkafka logs it every 30 s at least."""
_FORMAT: Final = "%s [%s] %s"
"""The format of a line from librdkafka: its kind, the client and the text."""
_PREFIX: Final = re.compile(r"^\[thrd:[^]]*\]: ")
_SUFFIX: Final = re.compile(r" \(after \d+ms in state .*\)$")
_BROKER: Final = re.compile(r"^(\S+:\d+)/\S+: ")
_REFUSED: Final = re.compile(r"Connect to (?:ipv[46]#)?(\S+) failed: Connection refused")
# Lines of a normal takeover, and of a coordinator that starts.
_DETAILS: Final = (
    "_FENCED",
    "fenced by a newer instance",
    "operation with an old epoch",
    "load in progress: retrying",
    "Not coordinator: retrying",
)


class OncePerCause(logging.Filter):
    """Rewrites librdkafka's lines and drops repeated ones. Records of other loggers pass unchanged."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[str, float] = {}
        """When each cause was seen last. The dict is replaced, never changed: clients log from several threads."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.msg != _FORMAT:
            return True
        text = _SUFFIX.sub("", _PREFIX.sub("", str(record.args[2]) if isinstance(record.args, tuple) else ""))
        broker = _BROKER.match(text)
        address, text = (broker[1], text[broker.end() :]) if broker else ("", text)
        record.msg, record.args = f"{address}: {text}" if address else text, ()
        if refused := _REFUSED.search(text):
            address, text = address or refused[1], "refuses connections"  # a coordinator's line begins without one
            record.msg = f"{address} {text}"
        level = logging.INFO if any(words in text for words in _DETAILS) else min(record.levelno, logging.WARNING)
        record.levelno, record.levelname = level, logging.getLevelName(level)
        if level < logging.WARNING:
            return logging.getLogger(record.name).isEnabledFor(level)
        now, cause = self._clock(), address + re.sub(r"\d+", "", text)
        recent = {known: seen for known, seen in self._seen.items() if now - seen < SILENCE_SECONDS}
        self._seen = recent | {cause: now}
        return cause not in recent


def client_log(name: str) -> logging.Logger:
    """The logger of this name, for the clients' setting `logger`."""
    logger = logging.getLogger(name)
    if not any(isinstance(known, OncePerCause) for known in logger.filters):
        logger.addFilter(OncePerCause())
    return logger
