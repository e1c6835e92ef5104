"""The Avro codec of a configuration, with or without a schema registry."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from deelog_schemas.config import Config
from deelog_schemas.connect import names_of
from deelog_schemas.errors import ConfigError, FieldError, RegistryError

if TYPE_CHECKING:
    from deelog_schemas.avro.codec import AvroCodec, AvroKeys, Written
    from deelog_schemas.envelope import KeyCodec

_PARTS: Final = ("key", "value")


def connected(config: Config, connector: str, diff: bool) -> Config:
    """See `formats.connected`."""
    asked = [part for part in _PARTS if _by_registry(config, part)]
    if not asked or config.registered:
        return config
    _require_packages(config)
    from deelog_schemas.avro import registry

    topics, schemas = config.topics, _schemas(config, connector, diff)
    topic, also = (topics.diff, topics.changes) if diff else (topics.changes, None)
    answers = {part: registry.part_of(config, part, schemas[part], topic, also) for part in asked}
    return config.with_registered(answers)


def keys_of(config: Config, connector: str) -> AvroKeys:
    """See `formats.codec_of`."""
    _require_packages(config)
    from deelog_schemas.avro.codec import AvroKeys

    return AvroKeys(_written(config, connector, "key", cause=False), config["cache.key.format"])


def codec_of(config: Config, connector: str, cause: bool, keys: KeyCodec) -> AvroCodec:
    """See `formats.codec_of`."""
    _require_packages(config)
    from deelog_schemas.avro.codec import AvroCodec

    names = connector, config["topic.prefix"], config["cache.name"]
    formats = config["cache.key.format"], config["cache.value.format"]
    return AvroCodec(*names, keys, _written(config, connector, "value", cause), *formats, cause)


def _by_registry(config: Config, part: str) -> bool:
    return config[f"{part}.converter"] == "avro" and bool(config[f"{part}.converter.schema.registry.url"])


def _written(config: Config, connector: str, part: str, cause: bool) -> Written:
    """The schema of keys or values: the registry's, or else the pinned one."""
    from deelog_schemas.avro import pinned
    from deelog_schemas.avro.codec import Written

    if not _by_registry(config, part):
        of_key, of_value = config["cache.key.format"], config["cache.value.format"]
        return pinned.written_key(of_key) if part == "key" else pinned.written_value(of_key, of_value, cause)
    if not config.registered:
        raise RuntimeError("connected() comes before codec_of(): the registry has not been asked")
    answer = config.registered[part]
    find = partial(_find, config, part, answer.subjects)
    return Written(answer.prefix, _schemas(config, connector, cause)[part], answer.known, find)


def _find(config: Config, part: str, subjects: tuple[str, ...], prefix: bytes) -> str:
    """Asks the registry for a schema that was registered after the start. Only this imports the registry's client."""
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


def _require_packages(config: Config) -> None:
    try:
        import fastavro  # noqa: F401

        if any(_by_registry(config, part) for part in _PARTS) and not config.registered:
            import confluent_kafka.schema_registry  # noqa: F401
    except ImportError as error:
        part = next(part for part in _PARTS if config[f"{part}.converter"] == "avro")
        problem = f"needs {error.name}, which is not installed: pip install 'deelog[avro]'"
        raise ConfigError([FieldError(f"{part}.converter", problem, "'avro'")]) from error
