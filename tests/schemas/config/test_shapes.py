"""The checks of single values: the last value that passes, and the first that does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from deelog_schemas.config.shapes import (
    address,
    addresses,
    all_servers,
    databases,
    directory,
    not_blank,
    not_empty,
    off_or_a_second,
    operations,
    part_of_a_path,
    replicas,
    split_address,
)

HOST_PORT = "must be HOST:PORT or [IPv6]:PORT, the port from 0 to 65535"
SERVERS = "must be HOST:PORT, several of them separated by commas"
URLS = "must be http://HOST or https://HOST, with port and path as needed; several separated by commas"
CREDENTIALS = "must not hold a user or a password: set value.converter.basic.auth.user.info"
DATABASES = "must be <database>:<cache.name>, several of them separated by commas: 0:sessions,3:carts"
DIRECTORY = "must be a directory that is mounted where driver and executors run, as a path or file:///path"


@pytest.mark.parametrize(
    ("text", "parts"),
    [("h:1", ("h", 1)), ("[::1]:6379", ("::1", 6379)), ("a-b.c_d:0", ("a-b.c_d", 0)), ("[1:2::3]:4", ("1:2::3", 4))],
)
def test_an_address_is_split_into_host_and_port(text: str, parts: tuple[str, int]) -> None:
    assert address(text) is None
    assert split_address(text) == parts


@pytest.mark.parametrize(
    ("check", "value", "problem"),
    [
        (address, "host:65535", None),
        *((address, text, HOST_PORT) for text in ("host:65536", "host:", ":1", "host", "6379", "::1:6379", "[h]:1")),
        *((address, text, HOST_PORT) for text in ("PLAINTEXT://h:1", "h:1 ", "h:123456", "h:-1", "h:1\n", "")),
        (all_servers, ("h:1",), None),
        (all_servers, ("h:65535", "[::1]:9092"), None),
        *((all_servers, servers, SERVERS) for servers in ((), ("localhost",), ("h:1", "h:0"), ("h:1", "h:70000"))),
        (all_servers, ("PLAINTEXT://h:1",), SERVERS),
        (addresses, (), None),
        (addresses, ("http://r", "https://r:8081/a/b"), None),
        *((addresses, (url,), URLS) for url in ("registry:8081", "http://", "ftp://r", "http://r/a b", "xhttp://r")),
        *((addresses, ("http://r", url), URLS) for url in ("http://r:8081?a=b", "http://r/p#f", "http:///p")),
        (addresses, ("http://r", "http://user:secret@r:8081"), CREDENTIALS),
        (databases, ("0:a",), None),
        (databases, ("0:sessions", "15:a-b.c_d", "999999999:x"), None),
        *(
            (databases, given, DATABASES)
            for given in ((), ("a",), ("0",), ("0:",), (":a",), ("0:a", "-1:b"), ("0:a b",))
        ),
        *((databases, (given,), DATABASES) for given in ("1234567890:a", "0:a:b", "0:" + "x" * 201, " 0:a", "0:a\n")),
        (databases, ("0:a", "00:b"), "must not hold a database twice"),
        (databases, ("0:a", "1:a"), "must not hold a name twice: each database has a topic of its own"),
        (not_empty, ("a",), None),
        (not_empty, (), "must not be empty"),
        (operations, ("none",), None),
        (operations, ("c", "u", "d"), None),
        (operations, (), "must not be empty: none is the word for nothing"),
        (operations, ("none", "c"), "must be none alone, or some of c, u, d"),
        *((off_or_a_second, ms, None) for ms in (0, 1000, 5000)),
        *((off_or_a_second, ms, "must be 0 (off) or at least 1000") for ms in (1, 2, 999)),
        *((replicas, number, None) for number in (-1, 1, 3)),
        (replicas, 0, "must be -1 (the broker's default) or at least 1"),
        (part_of_a_path, "shop connector.1", None),
        (part_of_a_path, "shop/1", "must not be blank or hold '/': it is in the paths of REST"),
        (part_of_a_path, "  ", "must not be blank or hold '/': it is in the paths of REST"),
        (not_blank, "::", None),
        (not_blank, " ", "must be a host or an address; 0.0.0.0 is all"),
        *((directory, path, None) for path in ("/data/x", "data/x", "file:///data/x", "a:b", "7a:/x")),
        *(
            (directory, path, DIRECTORY)
            for path in ("s3a://bucket/x", "hdfs://n:8020/x", "file:/data/x", "file://gs:/b")
        ),
    ],
    ids=lambda one: one.__name__ if callable(one) else repr(one)[:30],
)
def test_a_value_and_what_is_wrong_with_it(check: Callable[[Any], str | None], value: Any, problem: str | None) -> None:
    assert check(value) == problem
