"""What the base errors say."""

from __future__ import annotations

import pickle

from deelog_schemas.errors import ConfigError, FieldError, RecordError

ONE, TWO = FieldError("a.b", "must be 1"), FieldError("a.c", "does not exist", "2", "a.b")


def test_a_config_error_is_a_line_per_field() -> None:
    assert str(ConfigError([ONE])) == "configuration: a.b: must be 1"
    assert str(ConfigError([TWO], "f")) == "f: a.c = 2: does not exist; did you mean a.b?"
    assert str(ConfigError([ONE, TWO], "f")) == f"f: 2 errors\n  {ONE}\n  {TWO}"


def test_a_config_error_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(ConfigError([ONE, TWO], "f")))
    assert (error.errors, error.source) == ([ONE, TWO], "f")


def test_a_record_error_gets_its_place() -> None:
    assert str(RecordError("damaged").at("t", 1, 2)) == "t[1]@2: damaged"
