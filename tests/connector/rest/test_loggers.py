"""Levels of loggers in log4j's words. Bad input: no level, an unknown one, names without end."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from deelog_connector.rest import loggers as module
from deelog_connector.rest.entities import LoggerLevel, NewLevel
from deelog_connector.rest.loggers import MAX_NAME, Loggers
from tests.connector.rest.fakes import asked, refused


@pytest.fixture
def name() -> Iterator[str]:
    """A logger with one below it, beside one of a longer name; they and the root get their levels back."""
    top = f"names{uuid.uuid4().hex}"
    root = logging.root.level
    for one in (top, f"{top}.below", f"{top}er"):
        logging.getLogger(one)
    yield top
    logging.root.setLevel(root)
    for one in (top, f"{top}.below", f"{top}er"):
        logging.root.manager.loggerDict.pop(one, None)


def put(loggers: Loggers, name: str, level: str | None, query: str = "") -> object:
    answer = asked(loggers.put, NewLevel(level), query, logger=name)
    return answer.body if answer.status == 200 else answer.status


def level(loggers: Loggers, name: str) -> str | None:
    found: LoggerLevel = asked(loggers.get, logger=name).body
    return found.level


def test_a_level_is_set_for_a_logger_and_all_below_it(name: str) -> None:
    loggers = Loggers()
    assert put(loggers, name, "debug") == [name, f"{name}.below"]
    assert [logging.getLogger(one).level for one in (name, f"{name}.below", f"{name}er")] == [10, 10, 0]
    assert [level(loggers, one) for one in (name, f"{name}.below")] == ["DEBUG", "DEBUG"]


@pytest.mark.parametrize(
    ("word", "number", "shown"),
    [
        ("TRACE", 5, "TRACE"),
        ("info", 20, "INFO"),
        ("warning", 30, "WARN"),
        ("WARN", 30, "WARN"),
        ("error", 40, "ERROR"),
        ("critical", 50, "FATAL"),
        ("FATAL", 50, "FATAL"),
        ("off", 60, "OFF"),
    ],
)
def test_each_word_is_a_level_of_pythons(name: str, word: str, number: int, shown: str) -> None:
    loggers = Loggers()
    put(loggers, name, word)
    assert (logging.getLogger(name).level, level(loggers, name)) == (number, shown)


def test_a_level_between_two_words_is_shown_as_the_higher_one(name: str) -> None:
    loggers = Loggers()
    for number, shown in ((1, "TRACE"), (25, "WARN"), (99, "OFF")):
        logging.getLogger(name).setLevel(number)
        assert level(loggers, name) == shown


def test_a_logger_is_shown_with_when_it_was_set_here(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loggers = Loggers()
    assert asked(loggers.get, logger=name).body.last_modified is None
    monkeypatch.setattr(module, "time", SimpleNamespace(time_ns=lambda: 5_123_456_789))
    put(loggers, name, "INFO")
    assert asked(loggers.get, logger=name).body == LoggerLevel("INFO", 5123)
    listed = asked(loggers.listed).body
    assert list(listed) == sorted(listed)
    assert listed[f"{name}.below"] == LoggerLevel("INFO", 5123)
    assert {"root", name, f"{name}er"} <= listed.keys()


def test_the_root_is_all_loggers(name: str) -> None:
    loggers = Loggers()
    levels = {one: logger.level for one, logger in logging.root.manager.loggerDict.items() if hasattr(logger, "level")}
    try:
        modified = put(loggers, "root", "ERROR")
        assert isinstance(modified, list)
        assert {"root", name, f"{name}.below", f"{name}er"} <= set(modified)
        assert (logging.root.level, logging.getLogger(name).level) == (40, 40)
        assert level(loggers, "root") == "ERROR"
    finally:
        for one, number in levels.items():
            logging.getLogger(one).setLevel(number)


def test_a_scope_of_the_cluster_is_answered_without_a_body(name: str) -> None:
    assert put(Loggers(), name, "INFO", "scope=cluster") == 204
    assert put(Loggers(), name, "INFO", "scope=worker") == [name, f"{name}.below"]


def test_a_new_logger_is_made_by_its_level_and_another_is_not_found(name: str) -> None:
    loggers = Loggers()
    assert refused(loggers.get, logger=f"{name}.new") == (404, f"Logger {name}.new not found.")
    assert put(loggers, f"{name}.new", "INFO") == [f"{name}.new"]
    assert level(loggers, f"{name}.new") == "INFO"
    logging.root.manager.loggerDict.pop(f"{name}.new")


def test_what_is_no_level_or_no_name_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loggers = Loggers()
    assert refused(loggers.put, NewLevel(), logger=name) == (
        400,
        "Desired 'level' parameter was not specified in request.",
    )
    assert refused(loggers.put, NewLevel("loud" * 20), logger=name) == (
        404,
        f"invalid log level '{('loud' * 20)[:40]}'.",
    )
    long = "x" * (MAX_NAME + 1)
    assert refused(loggers.put, NewLevel("INFO"), logger=long) == (
        400,
        "the name of a logger has 200 characters at most",
    )
    existing = sum(isinstance(one, logging.Logger) for one in logging.root.manager.loggerDict.values())
    monkeypatch.setattr(module, "MAX_LOGGERS", existing)
    status, words = refused(loggers.put, NewLevel("INFO"), logger=f"{name}.one.more")
    assert (status, words) == (400, f"there are {existing} loggers already: name one of them")
    assert put(loggers, name, "INFO") == [name, f"{name}.below"]
    monkeypatch.setattr(module, "MAX_LOGGERS", existing + 1)
    assert put(loggers, f"{name}er", "INFO") == [f"{name}er"]
