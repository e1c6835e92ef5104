"""From `*.converter` to a codec: the one place that knows every format.

`connected` asks the schema registry, where there is one, once and before anything else; what it says travels with the
configuration it returns, so that a Spark task has its codec without a question to anybody. `codec_of` then makes the
codec of a topic. What a format needs beyond the base is imported where it is asked for.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from deelog_schemas.config import Config
from deelog_schemas.connect import names_of
from deelog_schemas.envelope import Codec, Envelope, JsonCodec, Stamp
from deelog_schemas.errors import ConfigError, FieldError, RegistryError
from deelog_schemas.operation import Entry

PARTS: Final = ("key", "value")


def connected(config: Config, connector: str, diff: bool = False) -> Config:
    """The configuration with what the registry says of its topics; as it is where no registry is named.

    Registers our schemas: those of the change topic, or of the diff topic with `diff`. Blocks, for a minute where the
    registry does not answer, and raises `RegistryError`.
    """
    asked = [part for part in PARTS if by_registry(config, part)]
    if not asked or config.registered:
        return config
    _need_avro(config)
    from deelog_schemas.avro import registry

    topics, schemas = config.topics, _schemas(config, connector, diff)
    topic, also = (topics.diff, topics.changes) if diff else (topics.changes, None)
    found = {part: registry.part_of(config, part, schemas[part], topic, also) for part in asked}
    return config.with_registered(found)


def by_registry(config: Config, part: str) -> bool:
    """Whether a part of the records is Avro by a registry."""
    return config[f"{part}.converter"] == "avro" and bool(config[f"{part}.converter.schema.registry.url"])


def codec_of(config: Config, connector: str, cause: bool = False) -> Codec:
    """The codec of a cache's change topic, or with `cause` that of its diff topic, which reads both.

    Schema names are the change topic's in both: a key must be the same bytes there and here. With a registry, `config`
    must come from `connected`.
    """
    kinds = tuple(config[f"{part}.converter"] for part in PARTS)
    if "avro" in kinds:
        _need_avro(config)
    keys, values = (_codec(kind, config, connector, cause) for kind in kinds)
    return values if kinds[0] == kinds[1] else Mixed(keys, values)


def _codec(kind: str, config: Config, connector: str, cause: bool) -> Codec:
    formats = config["cache.key.format"], config["cache.value.format"]
    name, cache = config["topic.prefix"], config["cache.name"]
    if kind == "avro":
        from deelog_schemas.avro.codec import AvroCodec

        key, value = _written(config, connector, cause)
        return AvroCodec(connector, name, cache, key, value, *formats, cause=cause)
    made: type[JsonCodec] = JsonCodec
    if kind == "cloudevents":
        from deelog_schemas.cloudevents import CloudEventsCodec

        made = CloudEventsCodec
    keys, values = (config[f"{part}.converter.schemas.enable"] for part in PARTS)
    binary = config["binary.handling.mode"]
    return made(config.topics.changes, connector, name, cache, *formats, keys, values, cause, binary)


def _written(config: Config, connector: str, cause: bool) -> list[Any]:
    """How keys and values are written in Avro; of a part that is none, by the pinned schemas, which nobody asks for."""
    from deelog_schemas.avro import pinned
    from deelog_schemas.avro.codec import Written

    formats = config["cache.key.format"], config["cache.value.format"]
    found = [pinned.written_key(formats[0]), pinned.written_value(*formats, cause)]
    if not any(by_registry(config, part) for part in PARTS):
        return found
    if not config.registered:
        raise RuntimeError("connected() comes before codec_of(): the registry has not been asked")
    schemas = _schemas(config, connector, cause)
    for index, part in enumerate(PARTS):
        if by_registry(config, part):
            told = config.registered[part]
            found[index] = Written(told.prefix, schemas[part], told.known, partial(_find, config, part, told.subjects))
    return found


def _find(config: Config, part: str, subjects: tuple[str, ...], prefix: bytes) -> str:
    """Asks the registry for a schema that nobody knew at start; its client is needed then, and not before."""
    try:
        from deelog_schemas.avro import registry
    except ImportError as error:
        named = prefix.hex(" ")
        raise RegistryError(
            f"a record names the schema {named}, registered since the start; to ask for it {error.name} is needed, "
            "which is not installed here: pip install 'deelog[avro]', or start again"
        ) from error
    return registry.find(config, part, subjects, prefix)


def _schemas(config: Config, connector: str, cause: bool) -> dict[str, str]:
    from deelog_schemas.avro.schema import adjusted, envelope_text, key_text

    names = adjusted(names_of(config.topics.changes, connector))
    formats = config["cache.key.format"], config["cache.value.format"]
    return {"key": key_text(names, formats[0]), "value": envelope_text(names, *formats, cause)}


def _need_avro(config: Config) -> None:
    try:
        import fastavro  # noqa: F401

        if any(by_registry(config, part) for part in PARTS) and not config.registered:
            import confluent_kafka.schema_registry  # noqa: F401
    except ImportError as error:
        part = next(part for part in PARTS if config[f"{part}.converter"] == "avro")
        problem = f"needs {error.name}, which is not installed: pip install 'deelog[avro]'"
        raise ConfigError([FieldError(f"{part}.converter", problem, "'avro'")]) from error


class Mixed:
    """Keys in one format, values in another."""

    def __init__(self, keys: Codec, values: Codec) -> None:
        self.keys, self.values = keys, values
        self.gone = values.gone
        # The two that run per record are bound at once: no call in between.
        self.key, self.change = keys.key, values.change

    def row(self, entry: Entry, position: tuple[int, int], snapshot: str, reason: str, stamp: Stamp) -> bytes:
        return self.values.row(entry, position, snapshot, reason, stamp)

    def difference(
        self,
        before: Entry | None,
        after: Entry | None,
        key: bytes,
        position: tuple[int, int],
        source_us: int,
        reason: str | None,
        cause: str,
        stamp: Stamp,
    ) -> bytes:
        return self.values.difference(before, after, key, position, source_us, reason, cause, stamp)

    def passed_on(self, raw: bytes, cause: str) -> tuple[str, bytes]:
        return self.values.passed_on(raw, cause)

    def decode_key(self, raw: bytes) -> bytes:
        return self.keys.decode_key(raw)

    def decode_value(self, raw: bytes) -> Envelope:
        return self.values.decode_value(raw)

    def after_of(self, raw: bytes) -> bytes | None:
        return self.values.after_of(raw)

    def decode_after(self, raw: bytes) -> Entry:
        return self.values.decode_after(raw)

    def plain_key(self, raw: bytes) -> bytes:
        return self.keys.plain_key(raw)

    def plain_value(self, raw: bytes) -> bytes:
        return self.values.plain_value(raw)
