"""Avro without a registry: the schemas that each release ships, identified by fingerprint.

Unlike those in a registry, their names do not depend on a topic. So the files can be pinned, and a reader generates
classes once for all topics. `json` is `string` here: only Connect distinguishes them, and it needs a registry.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Final

from deelog_schemas import __version__
from deelog_schemas.avro.codec import Written
from deelog_schemas.avro.schema import envelope_text, key_text, pinned_prefix
from deelog_schemas.connect import Names
from deelog_schemas.errors import RecordError

NAMES: Final = Names("io.deelog.Key", "io.deelog.Value", "io.deelog.Envelope", "io.deelog.Source")
_KINDS: Final = ("string", "bytes")


def files() -> dict[str, str]:
    """The files that this version's folder below `released/` must contain: name to schema."""
    texts = {f"key.{key}.avsc": key_text(NAMES, key) for key in _KINDS}
    for topic, cause in (("change", False), ("diff", True)):
        for key in _KINDS:
            for value in _KINDS:
                texts[f"{topic}.{key}.{value}.avsc"] = envelope_text(NAMES, key, value, cause)
    return texts


@cache
def released() -> dict[str, dict[str, str]]:
    """The files of each release that changed the schemas, by release."""
    folder = resources.files("deelog_schemas.avro") / "released"
    return {
        release.name: {file.name: file.read_text("utf-8") for file in release.iterdir() if file.name.endswith(".avsc")}
        for release in folder.iterdir()
        if release.is_dir()
    }


def written_key(key_format: str) -> Written:
    """The schemas of keys."""
    return _written(key_text(NAMES, _kind(key_format)), ("key.",))


def written_value(key_format: str, value_format: str, cause: bool) -> Written:
    """The schemas of envelopes. Those of the change topic and of the diff topic can both be read."""
    return _written(envelope_text(NAMES, _kind(key_format), _kind(value_format), cause), ("change.", "diff."))


def _kind(format_name: str) -> str:
    return "bytes" if format_name == "bytes" else "string"


def _written(schema: str, names: tuple[str, ...]) -> Written:
    prefix = pinned_prefix(schema)
    return Written(prefix, schema, {**_known(names), prefix: schema}, _unknown)


@cache
def _known(names: tuple[str, ...]) -> dict[bytes, str]:
    return {
        pinned_prefix(text): text
        for release in released().values()
        for name, text in release.items()
        if name.startswith(names)
    }


def _unknown(prefix: bytes) -> str:
    raise RecordError(
        f"the Avro schema of fingerprint {prefix[2:].hex()} is none of those of deelog up to {__version__}: "
        "a newer deelog wrote it, or something else"
    )
