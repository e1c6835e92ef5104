"""Where a server is, and as whom it is asked: `redis.url`, `redis.username`, `redis.password`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from urllib.parse import urlsplit

from deelog_schemas.config import Config
from deelog_schemas.errors import ConfigError, FieldError


@dataclass(frozen=True, slots=True)
class Address:
    """`database` is the one whose changes are captured."""

    host: str
    port: int
    database: int = 0
    username: str | None = None
    password: str | None = None

    @classmethod
    def of(cls, config: Config) -> Address:
        """Raises `ConfigError`."""
        url = config["redis.url"]
        try:
            parts = urlsplit(url)
            if parts.scheme != "redis" or not parts.hostname or parts.query or parts.fragment or parts.username:
                raise ValueError
            database = int(parts.path.removeprefix("/") or 0)
            if database < 0:
                raise ValueError
            return cls(
                parts.hostname, parts.port or 6379, database, config["redis.username"], config.secret("redis.password")
            )
        except ValueError:
            remedy = "redis://<host>:<port>/<database>; who asks is redis.username and redis.password"
            raise ConfigError([FieldError("redis.url", f"{url!r} is no address of a server: {remedy}")]) from None

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises `OSError`."""
        return await asyncio.open_connection(self.host, self.port)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"
