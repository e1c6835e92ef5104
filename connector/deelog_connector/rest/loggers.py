"""Levels of Python's loggers, in the words of log4j, as Kafka Connect's `/admin/loggers` has them."""

from __future__ import annotations

import logging
import time
from typing import Final

from deelog_connector.rest.entities import Answer, Call, LoggerLevel, RestError

_ROOT: Final = "root"
_OFF: Final = logging.CRITICAL + 10
_LEVELS: Final = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "OFF": _OFF,
}
_ALIASES: Final = {"WARNING": "WARN", "CRITICAL": "FATAL"}
MAX_LOGGERS: Final = 1000
MAX_NAME: Final = 200
"""Characters: `logging` keeps a place for every dot of a name."""
"""A logger that was named once stays: setting levels must not fill the memory with names."""


class Loggers:
    """The levels, and when each was set through here."""

    def __init__(self) -> None:
        self._modified: dict[str, int] = {}

    async def listed(self, _: Call) -> Answer:
        """All loggers that exist, and the root."""
        return Answer({name: self._level(name) for name in sorted([*_existing(), _ROOT])})

    async def get(self, call: Call) -> Answer:
        name = call.path["logger"]
        if name != _ROOT and name not in _existing():
            raise RestError(404, f"Logger {name} not found.")
        return Answer(self._level(name))

    async def put(self, call: Call) -> Answer:
        """Sets a logger and all below it; the names of those that changed."""
        name, wanted = call.path["logger"], call.body.level
        if wanted is None:
            raise RestError(400, "Desired 'level' parameter was not specified in request.")
        level = wanted.upper()
        number = _LEVELS.get(_ALIASES.get(level, level))
        if number is None:
            raise RestError(404, f"invalid log level '{wanted[:40]}'.")
        if len(name) > MAX_NAME:
            raise RestError(400, f"the name of a logger has {MAX_NAME} characters at most")
        existing = _existing()
        if name not in existing and name != _ROOT and len(existing) >= MAX_LOGGERS:
            raise RestError(400, f"there are {MAX_LOGGERS} loggers already: name one of them")
        concerned = [one for one in existing if name == _ROOT or one == name or one.startswith(f"{name}.")]
        modified = sorted({*concerned, name})
        for one in modified:
            _logger(one).setLevel(number)
            self._modified[one] = time.time_ns() // 1_000_000
        return Answer(status=204) if "cluster" in call.values("scope") else Answer(modified)

    def _level(self, name: str) -> LoggerLevel:
        number = _logger(name).getEffectiveLevel()
        level = next((text for text, value in _LEVELS.items() if value >= number), "OFF")
        return LoggerLevel(level, self._modified.get(name))


def _existing() -> list[str]:
    return [name for name, logger in logging.root.manager.loggerDict.items() if isinstance(logger, logging.Logger)]


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == _ROOT else name)
