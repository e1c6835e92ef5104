"""Where a server is, and as whom it is asked: `redis.url`, `redis.databases`, `redis.username`, `redis.password`,
`redis.ssl.*`.

And the same of Sentinels: `redis.sentinels`, `redis.sentinel.*`.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from deelog_connector.tls import client_context
from deelog_schemas.config import Config
from deelog_schemas.config.shapes import databases_by_name, split_address
from deelog_schemas.errors import ConfigError, FieldError


@dataclass(frozen=True, slots=True)
class Address:
    """`database` is the one whose changes are captured."""

    host: str
    port: int
    database: int = 0
    username: str | None = None
    password: str | None = None
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(cls, config: Config) -> Address:
        """Of `cache.name`, where there are several. Raises `ConfigError`."""
        url, databases = config["redis.url"], databases_by_name(config["redis.databases"])
        try:
            parts = urlsplit(url)
            others = parts.query or parts.fragment or parts.username
            if parts.scheme not in ("redis", "rediss") or not parts.hostname or others:
                raise ValueError
            database = int(parts.path.removeprefix("/") or 0)
            if database < 0 or (database and databases):
                raise ValueError
            database = databases.get(config["cache.name"], database)
            host, port = parts.hostname, parts.port or 6379
        except ValueError:
            remedy = "redis://<host>:<port>/<database>, or rediss://; who asks is redis.username and redis.password, "
            remedy += "and redis.databases takes the place of a database"
            raise ConfigError([FieldError("redis.url", f"{url!r} is no address of a server: {remedy}")]) from None
        username, password = config["redis.username"], config.secret("redis.password")
        return cls(host, port, database, username, password, _tls(config))

    @classmethod
    def of_sentinels(cls, config: Config) -> list[Address]:
        """Those that watch the server. Raises `ConfigError`."""
        username, password = config["redis.sentinel.username"], config.secret("redis.sentinel.password")
        places, tls = map(split_address, config["redis.sentinels"]), _tls(config)
        return [cls(host, port, 0, username, password, tls) for host, port in places]

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises `OSError`; `ssl.SSLError` is one."""
        try:
            return await asyncio.open_connection(self.host, self.port, ssl=self.tls)
        except UnicodeError as error:
            raise OSError(f"{self.host!r} is no name of a host: {error}") from error

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def _tls(config: Config) -> ssl.SSLContext | None:
    return client_context(config, "redis.ssl") if urlsplit(config["redis.url"]).scheme == "rediss" else None
