"""A configuration that is accepted, the errors of one that is not, and files that hold one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from deelog_schemas.config import ConfigError, FieldError, parse

GOOD = {"topic.prefix": "shop", "bootstrap.servers": "k1:9092,k2:9092", "node.id": "n1", "cache.name": "sessions"}
PASSWORD = "producer.override.sasl.password"


def errors_of(call: Callable[[], object]) -> list[FieldError]:
    with pytest.raises(ConfigError) as caught:
        call()
    assert caught.value.exit_code == 2
    return caught.value.errors


def only_error(mapping: Mapping[str, Any], role: str = "node") -> FieldError:
    (error,) = errors_of(lambda: parse(mapping, role))
    return error


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def properties(values: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in values.items())
