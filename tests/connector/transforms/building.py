"""Configurations with transforms, and what a pipeline makes of operations."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from deelog_connector.core.effects import OperationsItem
from deelog_connector.transforms.loading import steps_of
from deelog_connector.transforms.pipeline import (
    PipedOperations,
    Pipeline,
)
from deelog_schemas.config import Config, ConfigError, parse
from deelog_schemas.operation import Operation

MINE = "tests.connector.transforms.transforms_for_tests"
OURS = "deelog_connector.transforms"
REQUIRED = {"topic.prefix": "p", "cache.name": "c", "node.id": "n1", "bootstrap.servers": "h:1"}


def config_of(**fields: str) -> Config:
    return parse(REQUIRED | {name.replace("__", "."): value for name, value in fields.items()})


def of(*transforms: dict[str, str], predicates: dict[str, dict[str, str]] | None = None, **fields: str) -> Config:
    """A configuration with transforms t0, t1, … and predicates by alias."""
    given = {"transforms": ",".join(f"t{n}" for n in range(len(transforms)))}
    for number, options in enumerate(transforms):
        given |= {f"transforms.t{number}.{name}": value for name, value in options.items()}
    given["predicates"] = ",".join(predicates or {})
    for alias, options in (predicates or {}).items():
        given |= {f"predicates.{alias}.{name}": value for name, value in options.items()}
    return config_of(**given, **fields)


def put(sequence: int, key: str, value: str | None, epoch: int = 1, **more: Any) -> Operation:
    raw = None if value is None else value.encode()
    operation = Operation(epoch, sequence, "put" if raw else "remove", key.encode(), raw, None, 17, False)
    return operation._replace(**more)


def parts_of(config: Config, *operations: Operation) -> list[Any]:
    pipeline = Pipeline.of(config, time, Counter())
    assert pipeline is not None
    (item,) = pipeline([OperationsItem(3, 1, operations)])
    assert isinstance(item, PipedOperations)
    return list(item.parts)


def errors_of(config: Config) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        steps_of(config)
    return [str(error) for error in raised.value.errors]
