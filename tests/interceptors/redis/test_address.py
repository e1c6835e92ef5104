"""Addresses of servers. Bad input: other schemes, no host, ports and databases that are none, users in the address."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deelog_interceptors.redis.address import Address
from deelog_schemas.config import Config, parse
from deelog_schemas.errors import ConfigError

NAMES = {"topic.prefix": "p", "bootstrap.servers": "b:1", "node.id": "n", "cache.name": "c"}


def config(**fields: Any) -> Config:
    return parse({**NAMES, **{name.replace("_", "."): value for name, value in fields.items()}})


@pytest.mark.parametrize(
    ("url", "host", "port", "database"),
    [
        ("redis://127.0.0.1:7001", "127.0.0.1", 7001, 0),
        ("redis://cache.example", "cache.example", 6379, 0),
        ("redis://cache.example/3", "cache.example", 6379, 3),
        ("redis://[::1]:7/0", "::1", 7, 0),
    ],
)
def test_what_an_address_says(url: str, host: str, port: int, database: int) -> None:
    assert Address.of(config(redis_url=url)) == Address(host, port, database)


def test_the_database_of_a_cache_where_there_are_several() -> None:
    several = {"redis_databases": "0:c,3:carts", "redis_url": "redis://h:1"}
    assert Address.of(config(**several)).database == 0
    assert Address.of(config(**several, cache_name="carts")).database == 3
    with pytest.raises(ConfigError, match=r"redis\.databases takes the place of a database"):
        Address.of(config(redis_databases="0:c", redis_url="redis://h/3"))


def test_the_addresses_of_sentinels() -> None:
    assert Address.of_sentinels(config()) == []
    named = {"redis_sentinels": "10.0.0.1:26379,[::1]:7", "redis_sentinel_master": "m"}
    plain = [Address("10.0.0.1", 26379), Address("::1", 7)]
    assert Address.of_sentinels(config(**named, redis_url="redis://h/3")) == plain
    asks = {"redis_sentinel_username": "deelog", "redis_sentinel_password": "word"}
    found = Address.of_sentinels(config(**named, **asks, redis_url="rediss://h"))
    assert {(each.username, each.password) for each in found} == {("deelog", "word")}
    assert all(each.tls is not None and each.tls.check_hostname for each in found)


def test_a_name_that_cannot_be_looked_up() -> None:
    with pytest.raises(OSError, match=r"'a\.\.b' is no name of a host"):
        asyncio.run(Address("a..b", 1).connect())


def test_with_tls_certificates_and_host_names_are_verified() -> None:
    found = Address.of(config(redis_url="rediss://cache.example:7001/3"))
    assert (found.host, found.port, found.database) == ("cache.example", 7001, 3)
    assert found.tls is not None
    assert found.tls.check_hostname
    assert Address.of(config(redis_url="redis://cache.example")).tls is None


def test_who_asks() -> None:
    found = Address.of(config(redis_username="deelog", redis_password="secret"))
    assert (found.username, found.password) == ("deelog", "secret")
    assert "secret" not in str(found)
    assert str(found) == "127.0.0.1:6379"


@pytest.mark.parametrize(
    "url",
    [
        *("127.0.0.1:6379", "http://h:1", "rediss://", "redis://", "redis://h:99999", "redis://h:x", "redis://h/x"),
        *("redis://h/-1", "redis://user:word@h:1", "redis://h?a=1", "redis://h#a"),
    ],
)
def test_no_address(url: str) -> None:
    with pytest.raises(ConfigError, match=r"redis\.url.*redis://<host>:<port>/<database>"):
        Address.of(config(redis_url=url))
