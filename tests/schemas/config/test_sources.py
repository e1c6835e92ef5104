"""Where values come from: references, and files of either kind."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from deelog_schemas.config.field import Refused
from deelog_schemas.config.sources import MAX_FILE_BYTES, read_config, resolve
from deelog_schemas.errors import ConfigError
from tests.schemas.config.builders import GOOD, properties, write

# ---- references


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kafka.properties").write_text("pw = a:b=${env:NO}\nsize=77\na:b=c\n")
    (tmp_path / "token").write_bytes(b" t0ken \r\n")
    (tmp_path / "two").write_bytes(b"one\ntwo\n\n")
    (tmp_path / "latin").write_bytes(b"ok\xe9")
    (tmp_path / "full").write_bytes(b"x" * MAX_FILE_BYTES)
    (tmp_path / "big").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", ""),
        ("plain", "plain"),
        ("${env:HOST}", "k9"),
        ("a ${env:HOST}:1,${env:HOST}:2 b", "a k9:1,k9:2 b"),
        ("${env:EMPTY}", ""),
        ("${env:AGAIN}", "${env:HOST}"),  # what a reference points at is no reference
        ("${file:FOLDER/kafka.properties:size}${env:HOST}", "77k9"),
        ("${file:FOLDER/kafka.properties:pw}", "a:b=${env:NO}"),
        ("${dir:FOLDER:token}", " t0ken "),
        ("${dir:FOLDER:two}", "one\ntwo\n"),
    ],
)
def test_each_reference_is_replaced_by_its_value(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, value: str
) -> None:
    for name, held in {"HOST": "k9", "EMPTY": "", "AGAIN": "${env:HOST}"}.items():
        monkeypatch.setenv(name, held)
    assert resolve(text.replace("FOLDER", str(folder))) == value


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("${env:DEELOG_NOT_SET}", "the environment variable DEELOG_NOT_SET is not set"),
        ("${file:FOLDER/none.properties:pw}", "cannot be read: No such file or directory"),
        ("${file:FOLDER/kafka.properties:other}", "has no key other"),
        ("${file:FOLDER:pw}", "cannot be read: Is a directory"),
        ("${file:FOLDER/latin:pw}", "is not UTF-8 at byte 2"),
        ("${dir:FOLDER:none}", "cannot be read: No such file or directory"),
        ("${dir:FOLDER/sub:../token}", "the key must be the plain name of a file in the directory"),
        ("${dir:FOLDER:..}", "the key must be the plain name of a file in the directory"),
        ("${dir:FOLDER:.}", "the key must be the plain name of a file in the directory"),
        ("${dir:FOLDER:a\0}", "the key must be the plain name of a file in the directory"),
        ("${dir:FOLDER\0:token}", "cannot be read: embedded null byte"),
        ("${dir:FOLDER:latin}", "is not UTF-8 at byte 2"),
        ("${dir:FOLDER:big}", f"is larger than {MAX_FILE_BYTES} bytes; is it the right file?"),
    ],
)
def test_a_reference_to_nothing_is_named(folder: Path, reference: str, words: str) -> None:
    reference = reference.replace("FOLDER", str(folder))
    with pytest.raises(Refused) as caught:
        resolve(f"before {reference} after")
    assert str(caught.value) == f"{reference} cannot be resolved: {words}"


def test_the_largest_file_is_read(folder: Path) -> None:
    assert len(resolve(f"${{dir:{folder}:full}}")) == MAX_FILE_BYTES


# ---- files


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("x.properties", "", {}),
        (
            "x.properties",
            "# a comment\r\n! another\n" + properties(GOOD) + "name : caf\\u00e9\\\n  \u00e9\n",
            GOOD | {"name": "caféé"},
        ),
        ("x.properties", "\ufeffa=1", {"a": "1"}),
        ("x.json", "{}", {}),
        ("x.json", json.dumps({"a": 1, "b": True, "c": ["d"]}), {"a": 1, "b": True, "c": ["d"]}),
        ("x.json", "\ufeff" + json.dumps({"config": GOOD}), GOOD),
        ("x.json", json.dumps({"name": "n", "config": GOOD}), GOOD | {"name": "n"}),
        ("x.json", json.dumps({"name": "n", "config": {"name": "n"}}), {"name": "n"}),
        ("x.json", json.dumps({"config": {"name": "n"}}), {"name": "n"}),
        ("x.json", json.dumps({"name": "n", "config": {}}), {"name": "n"}),
        ("x.json", json.dumps({"name": "n", "config": "no object"}), {"name": "n", "config": "no object"}),
    ],
)
def test_a_flat_map_in_every_shape_of_file(tmp_path: Path, name: str, text: str, found: dict[str, Any]) -> None:
    assert read_config(write(tmp_path, name, text)) == found


BAD_FILES = [
    ("x.properties", properties(GOOD) + "node.id=n1\n", "node.id is there more than once"),
    ("x.properties", "a=\\u12", "holds a \\u that four hex digits do not follow"),
    ("x.properties", "#" * (MAX_FILE_BYTES + 1), "is larger than"),
    ("x.yaml", "a: b", "its name must end with .properties or .json"),
    ("properties", "a=b", "its name must end with .properties or .json"),
    ("x.json", "", "is not JSON: Expecting value at line 1, column 1"),
    ("x.json", '{"a": 1,}', "is not JSON: .* at line 1, column"),
    ("x.json", '{"a": 1,\n  b}', "is not JSON: .* at line 2, column 3"),
    ("x.json", "[1]", "must hold a JSON object"),
    ("x.json", '{"node.id": "a", "node.id": "a"}', "node.id is there more than once"),
    ("x.json", '{"b": 1, "a": 1, "b": 2, "c": 3, "a": 2}', "a, b is there more than once"),
    ("x.json", '{"config": {"node.id": "a", "node.id": "b"}}', "node.id is there more than once"),
    (
        "x.json",
        '{"name": "a", "config": {}, "tasks": [], "initial_state": "PAUSED"}',
        'must have only "name" and "config", and also has initial_state, tasks',
    ),
    ("x.json", '{"name": "a", "config": {"name": "b"}}', '"name" outside and inside of "config" differ'),
    ("x.json", "[" * 200_000, "is not JSON that a configuration could be"),
    ("x.json", '{"a": ' + "9" * 5000 + "}", "is not JSON that a configuration could be"),
]


@pytest.mark.parametrize(("name", "text", "words"), BAD_FILES, ids=[f"{n}: {w}" for n, _, w in BAD_FILES])
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path: Path, name: str, text: str, words: str) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert caught.value.source == str(path)
    (error,) = caught.value.errors
    assert (error.field, error.value) == ("file", None)
    assert re.match(words.replace("\\", "\\\\"), error.problem), error.problem


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.properties").write_bytes(b"name=\xe9\n")
    (tmp_path / "dir.json").mkdir()
    for name, words in [
        ("none.json", "No such file"),
        ("dir.json", "Is a directory"),
        ("latin.properties", "not UTF-8 at byte 5"),
    ]:
        with pytest.raises(ConfigError, match=words):
            read_config(tmp_path / name)
