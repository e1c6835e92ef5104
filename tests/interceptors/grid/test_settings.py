"""The grid's settings from the configuration, and what a grid node refuses."""

from __future__ import annotations

from dataclasses import fields

import pytest

from deelog_interceptors.grid.replication.frames import MAX_FRAME_BYTES
from deelog_interceptors.grid.settings import MAX_ENTRY_BYTES, Settings
from deelog_schemas.config import parse
from deelog_schemas.errors import ConfigError

GIVEN = {"topic.prefix": "p", "cache.name": "c", "node.id": "n", "bootstrap.servers": "h:1", "segment.count": "4"}
GIVEN |= {"topic.creation.default.partitions": "2"}


def of(**more: str) -> Settings:
    return Settings.of(parse(GIVEN | {name.replace("_", "."): value for name, value in more.items()}))


def changed(**more: str) -> dict[str, object]:
    """The settings that these fields change, with their values; not what entries may be."""
    plain, other = of(), of(**more)
    names = [field.name for field in fields(Settings) if field.name != "entry_limit"]
    return {name: getattr(other, name) for name in names if getattr(other, name) != getattr(plain, name)}


def test_addresses_and_names() -> None:
    assert (of().cluster, of().node_id, of().segments) == ("p.c", "n", 4)
    assert changed(cache_listen="127.0.0.9:91", cache_peer_listen="127.0.0.8:92", cache_advertised_host="x") == {
        "client_host": "127.0.0.9",
        "client_port": 91,
        "peer_host": "127.0.0.8",
        "peer_port": 92,
        "advertised_host": "x",
    }


@pytest.mark.parametrize(
    ("field", "value", "settings"),
    [
        ("cache.backups", "2", {"copies": 3}),
        ("cache.max.entries", "401", {"capacity": 100}),
        ("cache.key.format", "bytes", {"key_format": "bytes"}),
        ("cache.value.format", "json", {"value_format": "json"}),
    ],
)
def test_a_field_is_that_setting(field: str, value: str, settings: dict[str, object]) -> None:
    assert changed(**{field: value}) == settings


def test_acknowledgements_images_and_timeout() -> None:
    assert changed(before_image="full", max_entry_bytes="9") == {"before_full": True}
    limit = of(before_image="full", max_entry_bytes="9").entry_limit
    assert (limit.most, limit.values) == (9, 2)
    assert [of(cache_acks=acks).acks_all for acks in ("all", "1")] == [True, False]
    assert of(cache_failure_timeout_ms="1500").failure_timeout == 1.5


def test_what_a_grid_node_refuses() -> None:
    for host in ("0.0.0.0", "::"):
        with pytest.raises(ConfigError, match=r"cache\.advertised\.host: is needed"):
            of(cache_advertised_host=host)
    with pytest.raises(ConfigError, match=r"tracing\.headers\.enabled = true: must be false"):
        of(tracing_headers_enabled="true")


@pytest.mark.parametrize("host", ["node..example", ".", "x" * 64 + ".example"])
def test_the_advertised_host_is_a_name_that_others_can_look_up(host: str) -> None:
    with pytest.raises(ConfigError, match=r"cache\.advertised\.host = .*: is no name that others can look up"):
        of(cache_advertised_host=host)


def test_an_entry_fits_into_a_frame_with_the_image_from_before_it() -> None:
    given = {"producer_override_message_max_bytes": str(2 * MAX_ENTRY_BYTES)}
    assert of(max_entry_bytes=str(MAX_ENTRY_BYTES), **given).entry_limit.most * 2 < MAX_FRAME_BYTES
    with pytest.raises(ConfigError, match=r"max\.entry\.bytes = 31457281: must be at most 31457280 on a grid node"):
        of(max_entry_bytes=str(MAX_ENTRY_BYTES + 1), **given)
