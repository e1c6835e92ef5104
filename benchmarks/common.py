"""What the benchmarks share: a Kafka to measure against, and one way to print figures."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deelog_connector.devkafka.broker import EmbeddedKafka

Figure = tuple[str, float, str]
"""Name, value, unit."""


@contextmanager
def kafka() -> Iterator[str]:
    """`bootstrap.servers`: of DEELOG_TEST_BOOTSTRAP, or of an embedded broker that ends with the benchmark."""
    given = os.environ.get("DEELOG_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    with tempfile.TemporaryDirectory() as folder, EmbeddedKafka(Path(folder) / "kafka") as broker:
        yield broker.bootstrap


def quiet(bootstrap: str) -> dict[str, Any]:
    """Settings of a client that prints nothing between the figures; its requests raise what is wrong."""
    return {"bootstrap.servers": bootstrap, "log_level": 0}


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with `--json`, its description the module's docstring."""
    found = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    return found


def show(figures: list[Figure], as_json: bool) -> None:
    """`name value unit` lines, or one JSON object of name to value and unit."""
    if as_json:
        print(json.dumps({name: {"value": round(value, 4), "unit": unit} for name, value, unit in figures}))
        return
    for name, value, unit in figures:
        print(f"{name} {value:.4g} {unit}")
