"""Values that are never shown: secrets, and what references point at."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deelog_schemas.config import (
    FIELDS,
    Config,
    ConfigError,
    Secret,
    load,
    parse,
)
from deelog_schemas.config.overrides import CLIENTS
from deelog_schemas.config.secrets import MASK, Masked, hides, is_secret, references, shown
from tests.schemas.config.builders import GOOD, PASSWORD, only_error, write

MARKER = "xq7marker9zk"


around = st.text(st.characters(exclude_characters="$\n\r", codec="utf-8"), max_size=8)


planted = st.builds(lambda a, b: a + MARKER + b, around, around)


odd = st.sampled_from([str, lambda s: [s], lambda s: {"a": s}, lambda s: [s, 1], lambda s: "${vault:" + s + "}"])


places = st.sampled_from(
    [
        PASSWORD,
        "consumer.override.ssl.key.pem",
        "admin.override.sasl.oauthbearer.client.secret",
        "consumer.override.sasl.pasword",
        "sasl.password",
        "sasl.jaas.config",
        "value.converter.basic.auth.user.info",
        "producer.overrides.ssl.key.password",
        "some.name",
    ]
)


def everything_shown(make: Callable[[], Config]) -> Iterator[str]:
    """All texts that a program might print of a configuration or of its errors."""
    try:
        config = make()
    except ConfigError as error:
        yield from _shown_of(error)
        return
    yield from (repr(config), str(config), f"{config}", repr(config.masked()), repr(config.raw), str(config.raw))
    yield from (repr(config[name]) for name in config.raw if is_secret(name))
    for call in (config.resolved, *(lambda c=c: config.overrides(c) for c in CLIENTS)):
        try:
            value = call()
        except ConfigError as error:
            yield from _shown_of(error)
        else:
            yield from (repr(value), str(value), f"{value}", "%s" % value)  # noqa: UP031


def _shown_of(error: ConfigError) -> Iterator[str]:
    yield from (str(error), repr(error), repr(error.errors), repr(error.args))
    yield "".join(traceback.format_exception(error))


@given(values=st.dictionaries(places, st.tuples(planted, odd), min_size=1))
def test_a_secret_is_never_shown(values: dict[str, tuple[str, Callable[[str], Any]]]) -> None:
    mapping = GOOD | {name: wrap(secret) for name, (secret, wrap) in values.items()}
    for text in everything_shown(lambda: parse(mapping)):
        assert MARKER not in text


@given(secret=planted, names=st.sets(st.sampled_from([n for n in FIELDS if n != "name"]), min_size=1, max_size=6))
@settings(max_examples=200)
def test_what_a_reference_points_at_is_never_shown(secret: str, names: set[str]) -> None:
    secret = secret.replace("\0", "")
    mapping = GOOD | {PASSWORD: "${env:PLANTED}"} | dict.fromkeys(names, "(${env:PLANTED}")
    with mock.patch.dict(os.environ, {"PLANTED": secret}):
        for text in everything_shown(lambda: parse(mapping)):
            assert MARKER not in text


@given(
    secret=planted,
    shape=st.sampled_from(
        [
            ("json", "{"),
            ("json", '{"a": '),
            ("json", '{"config": {"a": "'),
            ("json", ""),
            ("properties", "a=\\u1"),
            ("properties", "sasl.password="),
            ("properties", "cache.acks=${env:X}"),
        ]
    ),
)
def test_a_broken_file_shows_none_of_its_lines(
    tmp_path_factory: pytest.TempPathFactory, secret: str, shape: tuple[str, str]
) -> None:
    suffix, before = shape
    path = write(tmp_path_factory.getbasetemp(), f"broken.{suffix}", before + secret)

    def read() -> Config:
        return load(path)

    for text in everything_shown(read):
        assert MARKER not in text
    path.unlink()


def test_a_value_that_came_by_reference_prints_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED", MARKER)
    config = parse(GOOD | {"topic.prefix": "${env:PLANTED}", "producer.override.client.id": "${env:PLANTED}"})
    resolved, producer = config.resolved(), config.overrides("producer")
    assert resolved["topic.prefix"] == producer["client.id"] == MARKER
    assert all(MARKER not in text for text in (repr(resolved), f"{producer}", repr(config)))


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        *((name, True) for name in ("rest.token", PASSWORD, "SASL.JAAS.CONFIG", "x.ssl.key.pem", "a.Passphrase")),
        *((name, True) for name in ("value.converter.basic.auth.user.info", "azure.connectionstring", "sasl.username")),
        *((name, False) for name in ("topic.prefix", "sasl.mechanism", "ssl.ca.location", "token.file", "")),
    ],
)
def test_a_name_that_ends_in_a_word_for_secrets_is_secret(name: str, secret: bool) -> None:
    assert is_secret(name) is secret
    assert hides(name, "text") is secret


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        *((text, True) for text in ("https://me:pw@host", "jdbc:x:y?password=pw", "a;PWD=x", "h?Token=1", "key=")),
        *((text, False) for text in ("", "h:1,h:2", "password", "keys: 1")),
    ],
)
def test_a_text_with_a_secret_inside_is_not_shown(text: str, hidden: bool) -> None:
    assert hides("topic.prefix", text) is hidden
    assert shown("topic.prefix", text) == (MASK if hidden else repr(text))


def test_an_error_shows_80_characters() -> None:
    assert shown("topic.prefix", "a" * 80) == repr("a" * 80)
    assert shown("topic.prefix", "a" * 81) == repr("a" * 80 + "…")
    assert shown(PASSWORD, "a") == MASK


def test_a_reference_has_a_provider_and_an_argument() -> None:
    found = [
        match.groups() for match in references("${env:A}${file:/p:k}-${dir:}${x-y_1:z} $env:A ${:a} ${a b:c} ${d}")
    ]
    assert found == [("env", "A"), ("file", "/p:k"), ("dir", ""), ("x-y_1", "z")]


def test_a_secret_prints_masked_and_is_compared_by_its_text() -> None:
    secret = Secret(MARKER)
    assert (repr(secret), str(secret), secret.reveal(), {secret}) == (MASK, MASK, MARKER, {Secret(MARKER)})
    assert secret != Secret("other")
    assert secret != MARKER


def test_a_dict_prints_masked_what_is_secret_by_name_by_text_or_because_it_is_said() -> None:
    masked = Masked({"size": 1, "servers": "h:1", PASSWORD: MARKER, "url": f"http://a:{MARKER}@b", "id": MARKER})
    assert repr(masked["id"]) == repr(MARKER)
    hiding = Masked(masked, frozenset({"id"}))
    told = {"size": 1, "servers": "h:1", PASSWORD: MASK, "url": MASK, "id": MASK}
    assert repr(hiding) == str(hiding) == repr(told)
    assert repr(masked) == repr(told | {"id": MARKER})
    thawed = pickle.loads(pickle.dumps(hiding))
    assert (thawed, repr(thawed)) == (masked, repr(told))


def test_an_error_of_a_configuration_shows_no_secret() -> None:
    assert only_error(GOOD | {"topic.prefix": "a " * 60}).value == repr("a " * 40 + "…")
    assert only_error(GOOD | {"bootstrap.servers": f"https://me:{MARKER}@host"}).value == MASK


def test_a_pickled_configuration_has_references_not_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED", MARKER)
    config = parse(GOOD | {PASSWORD: "${env:PLANTED}"})
    config.resolved()
    frozen = pickle.dumps(config)
    assert MARKER.encode() not in frozen
    thawed: Config = pickle.loads(frozen)
    assert thawed.overrides("producer") == {"sasl.password": MARKER}
    resolved = pickle.loads(pickle.dumps(config.resolved()))
    assert MARKER not in repr(resolved)
