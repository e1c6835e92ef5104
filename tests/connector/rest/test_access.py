"""Who may ask for what. Bad input: tokens that are wrong, too short or equal, and host names of other sites."""

from __future__ import annotations

from typing import Any

import pytest

from deelog_connector.rest.access import Access
from deelog_connector.rest.entities import RestError
from deelog_schemas.config import ConfigError, parse
from tests.connector.rest.fakes import GIVEN

TOKEN, READING = "everything-0123456789", "looking-0123456789abc"
OPEN = Access(parse(GIVEN))
GUARDED = Access(parse(GIVEN | {"rest.token": TOKEN, "rest.readonly.token": READING}))


def status(access: Access, changes: bool = False, /, *, is_open: Any = False, **headers: Any) -> int:
    """200 where it is allowed. Names of headers with `_` for `-`."""
    try:
        access.check({name.replace("_", "-"): value for name, value in headers.items()}, changes, is_open)
    except RestError as error:
        return error.status
    return 200


def test_the_token_opens_everything_and_the_one_for_reading_what_changes_nothing() -> None:
    assert (GUARDED.asks, OPEN.asks) == (True, False)
    for changes, reading in ((False, 200), (True, 403)):
        assert status(GUARDED, changes, authorization=f"Bearer {TOKEN}") == 200
        assert status(GUARDED, changes, authorization=f"bearer  {TOKEN} ") == 200
        assert status(GUARDED, changes, authorization=f"Bearer {READING}") == reading
        assert status(GUARDED, changes) == 401


def test_with_a_token_neither_host_nor_origin_matter() -> None:
    page = {"host": "evil.example", "origin": "http://evil.example"}
    assert status(GUARDED, True, authorization=f"Bearer {TOKEN}", **page) == 200


@pytest.mark.parametrize(
    "given", ["", "Bearer", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}x", "Bearer ä€"]
)
def test_what_is_not_the_token_opens_only_what_is_open(given: str) -> None:
    assert status(GUARDED, authorization=given) == 401
    assert status(GUARDED, is_open=True, authorization=given) == 200


def test_without_a_token_for_reading_there_is_but_one() -> None:
    access = Access(parse(GIVEN | {"rest.token": TOKEN}))
    assert status(access, True, authorization=f"Bearer {TOKEN}") == 200
    assert status(access, authorization=f"Bearer {READING}") == 401


@pytest.mark.parametrize("token", ["x" * 15, "x" * 15 + "ä", "x" * 16 + "\t", " " + "x" * 16, "x" * 15 + "\x7f"])
def test_a_token_that_could_be_guessed_or_mistyped_is_refused(token: str) -> None:
    with pytest.raises(ConfigError, match=r"rest\.token: must be at least 16 printable ASCII characters") as refused:
        Access(parse(GIVEN | {"rest.token": token}))
    assert token not in str(refused.value)
    assert Access(parse(GIVEN | {"rest.token": "x" * 16})).asks


def test_who_has_no_token_is_told_how_to_send_one() -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}):
        with pytest.raises(RestError) as refused:
            GUARDED.check(headers, False, False)
        assert refused.value.headers == {"WWW-Authenticate": 'Bearer realm="deelog"'}


def test_two_tokens_differ() -> None:
    with pytest.raises(ConfigError, match=r"rest\.readonly\.token: must not be the same as rest\.token"):
        Access(parse(GIVEN | {"rest.token": TOKEN, "rest.readonly.token": TOKEN}))


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("LOCALHOST:1", True),
        ("127.0.0.1", True),
        ("127.0.0.1:8083", True),
        ("[::1]", True),
        ("[::1]:8083", True),
        ("", False),
        ("evil.example", False),
        ("evil.example:80", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example:80", False),
        ("localhost:port", False),
    ],
)
def test_without_a_token_the_host_is_an_address(host: str, allowed: bool) -> None:
    assert status(OPEN, host=host) == status(OPEN, is_open=True, host=host) == (200 if allowed else 403)


def test_without_a_token_no_host_is_none() -> None:
    assert status(OPEN) == 403


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"sec_fetch_site": "none"}, True),
        ({"sec_fetch_site": "same-origin", "origin": "http://localhost:80"}, True),
        ({"origin": "https://localhost:80"}, True),
        ({"sec_fetch_site": "same-site"}, False),
        ({"sec_fetch_site": "cross-site"}, False),
        ({"origin": "http://localhost"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
    ],
)
def test_a_page_of_another_site_may_look_and_change_nothing(headers: dict[str, str], allowed: bool) -> None:
    assert status(OPEN, True, host="localhost:80", **headers) == (200 if allowed else 403)
    assert status(OPEN, False, host="localhost:80", **headers) == 200
