"""Stock consumers of Avro with a real registry: the recipes of docs/consumers.md with its changes for Avro."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.registry import Apicurio
from tests.system.consumers.history import Short
from tests.system.consumers.page import recipe
from tests.system.consumers.readers import Changes, Place, connect, flink

pytestmark = pytest.mark.consumers

ENTRIES = (("a", "1"), ("ключ", "значение"), ("empty", ""), ("hard", 'quo"te\n\x01\u2028'))
REGISTRY = "http://localhost:8080"


def with_registry(registry: Apicurio) -> tuple[tuple[str, str], ...]:
    """What makes a cache write Avro."""
    parts = ("key", "value")
    urls = [(f"{part}.converter.schema.registry.url", registry.url) for part in parts]
    return (*((f"{part}.converter", "avro") for part in parts), *urls)


def in_flink(registry: Apicurio) -> Changes:
    """The last two options of the recipe give way to those of the page's section on Avro."""
    json = "  'format' = 'debezium-json',\n  'debezium-json.schema-include' = 'true'\n"
    return {json: recipe("Avro", "sql").replace(REGISTRY, f"http://127.0.0.1:{registry.port}")}


def in_connect(registry: Apicurio) -> Changes:
    """The recipe's two converters give way to those of the page's section on Avro."""
    json = "".join(f"{part}.converter=org.apache.kafka.connect.json.JsonConverter\n" for part in ("key", "value"))
    return {json: recipe("Avro", "properties").replace(REGISTRY, f"http://127.0.0.1:{registry.port}")}


READERS = {"flink": (flink, in_flink), "connect": (connect, in_connect)}


@pytest.mark.parametrize("name", READERS)
def test_a_stock_consumer_of_avro_ends_with_the_content(
    name: str, registry: Apicurio, shorts: Callable[..., Short], place: Callable[[str], Place]
) -> None:
    entries = tuple((key.encode(), value.encode()) for key, value in ENTRIES)
    made = shorts(entries, with_registry(registry))
    read, changes = READERS[name]
    assert read(place(made.topic), changes(registry)) == {k.decode(): v.decode() for k, v in made.content.items()}
