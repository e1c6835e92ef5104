"""The grid's settings, read from the configuration once at start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from deelog_connector.kafka_port import session_seconds
from deelog_interceptors.grid.topology.lease import lease_expiry_of, lease_of
from deelog_schemas.config import Config, split_address
from deelog_schemas.entry_limit import EntryLimit
from deelog_schemas.errors import ConfigError, FieldError

ACK_SECONDS: Final = 5.0
"""A write that is not acknowledged within this time is answered with an error."""
LEAVE_SECONDS: Final = 10.0
"""A controlled shutdown waits at most this long until its segments are elected away."""
MAX_CONNECTIONS: Final = 10_000
MAX_PIPELINE: Final = 10_000
"""Unsent replies of one connection; beyond it nothing more is read from the connection."""
MAX_UNREPLICATED: Final = 100_000
"""Operations of a node that its in-sync backups do not hold yet; beyond it writes wait."""
MAX_LINK_BYTES: Final = 16 << 20
"""Bytes that may wait for one backup; beyond it writes wait."""
MAX_ENTRY_BYTES: Final = 30 << 20
"""Of `max.entry.bytes`: with the image from before it is twice that, and a frame has 64 MiB at most."""
MAX_BACKLOG: Final = 200_000
"""Operations kept for one catch-up; beyond it the catch-up starts over."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Times are in seconds; `capacity` is entries per segment."""

    cluster: str
    node_id: str
    segments: int
    copies: int
    policy: str
    capacity: int
    acks_all: bool
    before_full: bool
    changes_only: bool
    key_format: str
    value_format: str
    entry_limit: EntryLimit
    failure_timeout: float
    session_timeout: float
    lease: float
    lease_expiry: float
    unclean: bool
    client_host: str
    client_port: int
    peer_host: str
    peer_port: int
    advertised_host: str

    @classmethod
    def of(cls, config: Config) -> Settings:
        """Raises `ConfigError`."""
        client_host, client_port = split_address(config["cache.listen"])
        peer_host, peer_port = split_address(config["cache.peer.listen"])
        advertised = config["cache.advertised.host"]
        if advertised in ("0.0.0.0", "::"):
            problem = "is needed where a listener names all interfaces: the name by which others reach this node"
            raise ConfigError([FieldError("cache.advertised.host", problem)])
        try:
            advertised.encode("idna")
        except UnicodeError:
            problem = "is no name that others can look up: none of its parts may be empty or longer than 63 characters"
            raise ConfigError([FieldError("cache.advertised.host", problem, advertised)]) from None
        if config["max.entry.bytes"] > MAX_ENTRY_BYTES:
            problem = f"must be at most {MAX_ENTRY_BYTES} on a grid node: entries go to backups in one frame each"
            raise ConfigError([FieldError("max.entry.bytes", problem, str(config["max.entry.bytes"]))])
        if config["tracing.headers.enabled"]:
            problem = "must be false on a grid node: the Redis protocol has no place for a client's trace context"
            raise ConfigError([FieldError("tracing.headers.enabled", problem, "true")])
        timeouts = (session_seconds(config), config["cache.failure.timeout.ms"] / 1000)
        return cls(
            cluster=config.topics.changes,
            node_id=config["node.id"],
            segments=config["segment.count"],
            copies=config["cache.backups"] + 1,
            policy=config["cache.policy"],
            capacity=config["cache.max.entries"] // config["segment.count"],
            acks_all=config["cache.acks"] == "all",
            before_full=config["before.image"] == "full",
            changes_only=config["skip.messages.without.change"],
            key_format=config["cache.key.format"],
            value_format=config["cache.value.format"],
            entry_limit=EntryLimit.of(config),
            failure_timeout=timeouts[1],
            session_timeout=timeouts[0],
            lease=lease_of(*timeouts),
            lease_expiry=lease_expiry_of(*timeouts),
            unclean=config["unclean.election"],
            client_host=client_host,
            client_port=client_port,
            peer_host=peer_host,
            peer_port=peer_port,
            advertised_host=advertised,
        )
