"""From `*.converter` to a codec. A new format is one module, one row of `FORMATS` and a value of the two fields.

Call `connected` once, before `codec_of`. It asks the schema registry, if one is configured, and returns a
configuration that carries the answers, so that a Spark task makes its codec without asking the registry. Packages
that only one format needs are imported when that format is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from deelog_schemas.config import Config
from deelog_schemas.envelope import Codec, JsonCodec, JsonKeys, KeyCodec

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
    (keys_of, _), (_, values_of) = (FORMATS[config[f"{part}.converter"]] for part in PARTS)
    return values_of(config, connector, cause, keys_of(config, connector))


def _json_keys(config: Config, connector: str) -> KeyCodec:
    binary, schemas = config["binary.handling.mode"], config["key.converter.schemas.enable"]
    return JsonKeys(config.topics.changes, connector, config["cache.key.format"], schemas, binary)


def _json(config: Config, connector: str, cause: bool, keys: KeyCodec, made: type[JsonCodec] = JsonCodec) -> Codec:
    formats = config["cache.key.format"], config["cache.value.format"]
    name, cache = config["topic.prefix"], config["cache.name"]
    schemas, binary = config["value.converter.schemas.enable"], config["binary.handling.mode"]
    return made(config.topics.changes, connector, name, cache, *formats, schemas, cause, binary, keys)


def _cloudevents(config: Config, connector: str, cause: bool, keys: KeyCodec) -> Codec:
    from deelog_schemas.cloudevents import CloudEventsCodec

    return _json(config, connector, cause, keys, CloudEventsCodec)


def _avro_keys(config: Config, connector: str) -> KeyCodec:
    from deelog_schemas.avro import converter

    return converter.keys_of(config, connector)


def _avro(config: Config, connector: str, cause: bool, keys: KeyCodec) -> Codec:
    from deelog_schemas.avro import converter

    return converter.codec_of(config, connector, cause, keys)


_Keys = Callable[[Config, str], KeyCodec]
_Values = Callable[[Config, str, bool, KeyCodec], Codec]
FORMATS: Final[dict[str, tuple[_Keys, _Values]]] = {
    "json": (_json_keys, _json),
    "cloudevents": (_json_keys, _cloudevents),
    "avro": (_avro_keys, _avro),
}
"""By `*.converter`, what makes the codec of keys `(configuration, connector's short name)`, and that of a topic, which
also takes whether it has `source.cause`, and the codec of its keys."""
