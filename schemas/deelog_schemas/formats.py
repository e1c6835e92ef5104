"""From `*.converter` to a codec. A new format is one module, one row of `FORMATS` and a value of the two fields.

Call `connected` once, before `codec_of`. It asks the schema registry, if one is configured, and returns a
configuration that carries the answers, so that a Spark task makes its codec without asking the registry. Packages
that only one format needs are imported when that format is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from deelog_schemas.config import Config
from deelog_schemas.envelope import Codec, JsonCodec

PARTS: Final = ("key", "value")


def connected(config: Config, connector: str, diff: bool = False) -> Config:
    """The configuration with the registry's answers for its topics; unchanged where no registry is configured.

    Registers our schemas: those of the change topic, or with `diff` those of the diff topic. Where the registry does
    not answer, it blocks for up to a minute and raises `RegistryError`.
    """
    if not any(config[f"{part}.converter"] == "avro" for part in PARTS):
        return config
    from deelog_schemas.avro import converter

    return converter.connected(config, connector, diff)


def codec_of(config: Config, connector: str, cause: bool = False) -> Codec:
    """The codec of a cache's change topic; with `cause`, that of its diff topic, which can read both.

    Both use the schema names of the change topic: a key must have the same bytes in both. With a registry, `config`
    must come from `connected`. Raises `ConfigError` where a package is missing.
    """
    kinds = tuple(config[f"{part}.converter"] for part in PARTS)
    keys, values = (FORMATS[kind](config, connector, cause) for kind in kinds)
    return values if kinds[0] == kinds[1] else Mixed(keys, values)


def _json(config: Config, connector: str, cause: bool, made: type[JsonCodec] = JsonCodec) -> Codec:
    formats = config["cache.key.format"], config["cache.value.format"]
    name, cache = config["topic.prefix"], config["cache.name"]
    keys, values = (config[f"{part}.converter.schemas.enable"] for part in PARTS)
    binary = config["binary.handling.mode"]
    return made(config.topics.changes, connector, name, cache, *formats, keys, values, cause, binary)


def _cloudevents(config: Config, connector: str, cause: bool) -> Codec:
    from deelog_schemas.cloudevents import CloudEventsCodec

    return _json(config, connector, cause, CloudEventsCodec)


def _avro(config: Config, connector: str, cause: bool) -> Codec:
    from deelog_schemas.avro import converter

    return converter.codec_of(config, connector, cause)


FORMATS: Final[dict[str, Callable[[Config, str, bool], Codec]]] = {
    "json": _json,
    "cloudevents": _cloudevents,
    "avro": _avro,
}
"""By `*.converter`, the function that makes the codec: `(configuration, connector's short name, with source.cause)`."""


class Mixed:
    """Keys in one format, values in another. Methods are bound once, which saves a call for each record."""

    def __init__(self, keys: Codec, values: Codec) -> None:
        self.keys, self.values = keys, values
        self.key, self.decode_key, self.plain_key = keys.key, keys.decode_key, keys.plain_key
        self.change, self.row, self.difference = values.change, values.row, values.difference
        self.passed_on, self.decode_value, self.plain_value = values.passed_on, values.decode_value, values.plain_value
        self.gone, self.after_of, self.decode_after = values.gone, values.after_of, values.decode_after
