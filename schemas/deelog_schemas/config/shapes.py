"""Checks of single values beyond their type. Each returns the problem, or None."""

from __future__ import annotations

import re
from typing import Final

# librdkafka's own limit for one message, and the size of a record besides key and value: the envelope's source block,
# the repeated keys, the header, the batch. The rest, up to the topic's 1048588, is left for JSON's escapes.
CLIENT_MESSAGE_MAX_BYTES: Final = 1_000_000
RECORD_MARGIN_BYTES: Final = 20_000
MESSAGE_MAX: Final = "producer.override.message.max.bytes"

_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")


def split_address(text: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` as a pair, brackets removed. The value must be validated."""
    host, _, port = text.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def address(text: str) -> str | None:
    if _HOST_PORT.fullmatch(text) and int(text.rpartition(":")[2]) <= 65535:
        return None
    return "must be HOST:PORT or [IPv6]:PORT, the port from 0 to 65535"


def all_servers(servers: tuple[str, ...]) -> str | None:
    if servers and all(address(server) is None and split_address(server)[1] > 0 for server in servers):
        return None
    return "must be HOST:PORT, several of them separated by commas"


def addresses(urls: tuple[str, ...]) -> str | None:
    if not all(re.fullmatch(r"https?://[^/?#\s]+(/[^?#\s]*)?", url) for url in urls):
        return "must be http://HOST or https://HOST, with port and path as needed; several separated by commas"
    if any("@" in url for url in urls):
        return "must not hold a user or a password: set value.converter.basic.auth.user.info"
    return None


def databases(entries: tuple[str, ...]) -> str | None:
    found = [re.fullmatch(r"([0-9]{1,9}):([A-Za-z0-9._-]{1,200})", entry) for entry in entries]
    if not found or not all(found):
        return "must be <database>:<cache.name>, several of them separated by commas: 0:sessions,3:carts"
    numbers, names = zip(*(match.groups() for match in found if match), strict=True)
    if len({*map(int, numbers)}) < len(found):
        return "must not hold a database twice"
    return None if len({*names}) == len(found) else "must not hold a name twice: each database has a topic of its own"


def databases_by_name(entries: tuple[str, ...]) -> dict[str, int]:
    """`redis.databases` by the name of the cache. The value must be validated."""
    pairs = (entry.split(":") for entry in entries)
    return {name: int(number) for number, name in pairs}


def not_empty(entries: tuple[str, ...]) -> str | None:
    return None if entries else "must not be empty"


def operations(codes: tuple[str, ...]) -> str | None:
    if not codes:
        return "must not be empty: none is the word for nothing"
    return "must be none alone, or some of c, u, d" if "none" in codes and len(codes) > 1 else None


def off_or_a_second(ms: int) -> str | None:
    return "must be 0 (off) or at least 1000" if 0 < ms < 1000 else None


def replicas(number: int) -> str | None:
    return "must be -1 (the broker's default) or at least 1" if number == 0 else None


def part_of_a_path(name: str) -> str | None:
    return None if name.strip() and "/" not in name else "must not be blank or hold '/': it is in the paths of REST"


def not_blank(host: str) -> str | None:
    return None if host.strip() else "must be a host or an address; 0.0.0.0 is all"


def directory(path: str) -> str | None:
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", path.removeprefix("file://")):
        return "must be a directory that is mounted where driver and executors run, as a path or file:///path"
    return None
