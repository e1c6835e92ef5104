"""The sources of configuration: files, and what `${env:X}`, `${file:path:key}` and `${dir:path:key}` point at.

The only module of `deelog_schemas` that reads files and the environment. Errors name the file, the line or the
reference, never a value: any line of a configuration may contain a secret.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from deelog_schemas.config.field import Refused
from deelog_schemas.config.secrets import references
from deelog_schemas.errors import ConfigError, FieldError

MAX_FILE_BYTES: Final = 1_048_576
PROVIDERS: Final = ("env", "file", "dir")


def read_config(path: Path) -> dict[str, Any]:
    """The flat map in a `.properties` or `.json` file, as written. Raises `ConfigError` naming the file."""
    try:
        text = _read_text(path)
        if path.suffix == ".properties":
            return dict(_read_properties(text))
        if path.suffix == ".json":
            return _read_json(text)
        raise Refused("its name must end with .properties or .json, which says what it holds")
    except Refused as error:
        raise ConfigError([FieldError("file", str(error))], str(path)) from None


def resolve(text: str) -> str:
    """`text` with each reference replaced by its current value. Raises `Refused` naming the reference.

    The result is not searched for references again, so a secret may be any text.
    """
    parts = []
    end = 0
    for match in references(text):
        parts += [text[end : match.start()], _look_up(match.group(0), match.group(1), match.group(2))]
        end = match.end()
    return "".join([*parts, text[end:]])


def _look_up(reference: str, provider: str, wanted: str) -> str:
    try:
        if provider == "env":
            return _from_environment(wanted)
        path, _, key = wanted.rpartition(":")
        return _from_file(Path(path), key) if provider == "file" else _from_directory(Path(path), key)
    except Refused as error:
        raise Refused(f"{reference} cannot be resolved: {error}") from None


def _from_environment(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise Refused(f"the environment variable {name} is not set")
    return value


def _from_file(path: Path, key: str) -> str:
    values = dict(_read_properties(_read_text(path)))
    if key not in values:
        raise Refused(f"has no key {key}")
    return values[key]


def _from_directory(path: Path, key: str) -> str:
    """One file per secret, as Kubernetes mounts them. A newline at the end comes from an editor and is removed."""
    if key in (".", "..") or "/" in key or "\0" in key:
        raise Refused("the key must be the plain name of a file in the directory")
    return _read_text(path / key).removesuffix("\n").removesuffix("\r")


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise Refused(f"cannot be read: {reason}") from None
    if len(content) > MAX_FILE_BYTES:
        raise Refused(f"is larger than {MAX_FILE_BYTES} bytes; is it the right file?")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Refused(f"is not UTF-8 at byte {error.start}") from None


def _read_properties(text: str) -> list[tuple[str, str]]:
    # Imported here: a Spark executor that unpickles a Config needs only the standard library.
    from javaproperties import InvalidUEscapeError, KeyValue, parse

    pairs: dict[str, str] = {}
    try:
        for element in parse(text):
            if isinstance(element, KeyValue):
                if element.key in pairs:
                    raise Refused(f"{element.key} is there more than once")
                pairs[element.key] = element.value
    except InvalidUEscapeError:
        raise Refused("holds a \\u that four hex digits do not follow") from None
    return list(pairs.items())


def _read_json(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise Refused(f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except (RecursionError, ValueError):  # nested too deeply, or a number of more than 4300 digits
        raise Refused("is not JSON that a configuration could be") from None
    if not isinstance(document, dict):
        raise Refused("must hold a JSON object")
    if not isinstance(document.get("config"), dict):
        return document
    others = sorted(set(document) - {"name", "config"})
    if others:
        raise Refused(f'must have only "name" and "config", and also has {", ".join(others)}')
    config: dict[str, Any] = document["config"]
    if "name" in document:
        if config.get("name", document["name"]) != document["name"]:
            raise Refused('"name" outside and inside of "config" differ')
        config["name"] = document["name"]
    return config


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise Refused(f"{', '.join(repeated)} is there more than once")
    return values
