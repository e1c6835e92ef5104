"""The API of a program with a captured cachetools cache, served by the connector's own thread."""

from __future__ import annotations

import cachetools

from deelog_connector.devkafka.ports import free_port
from deelog_interceptors.cachetools import Captures, capture
from tests.connector.rest.client import Api
from tests.interceptors.grid.cluster import eventually
from tests.support.kafka import Broker
from tests.support.topics import derived, read_topic


def test_a_captured_cache_is_paused_and_stopped(kafka: Broker, prefix: str) -> None:
    port = free_port()
    config = {
        "bootstrap.servers": kafka.bootstrap,
        "topic.prefix": prefix,
        "cache.name": "c",
        "node.id": "n1",
        "segment.count": "8",
        "topic.creation.default.partitions": "2",
        "rest.port": str(port),
    }
    cache: cachetools.LRUCache[str, str] = cachetools.LRUCache(1000)
    with capture(cache, config) as captured:
        api, me = Api(port), "/connectors/deelog"
        eventually(lambda: captured.stats.unwritten == 0 and len(api.get(f"{me}/offsets")["offsets"]) == 8, 60)
        for turn, request in enumerate(("pause", "resume", "stop", "resume", "pause")):
            api.do("PUT", f"{me}/{request}")
            for number in range(50):
                cache[f"{turn}-{number}"] = "v"
        assert api.state() == "PAUSED"
        for method, path in (("DELETE", me), ("POST", "/connectors"), ("PUT", f"{me}/topics/reset")):
            refused = api.ask(method, path)
            assert refused.status == 405
            assert "fixed" in refused.json["message"] or "A process has one connector" in refused.json["message"]
        assert api.ask("DELETE", me).headers["allow"] == "GET"
        cache["last"] = "v"
        assert api.get("/connectors") == ["deelog"]
    # The end of the capture writes what is left, even if it was paused.
    content, readers = derived(read_topic(kafka.bootstrap, f"{prefix}.c"))
    assert content == {key.encode(): value.encode() for key, value in cache.items()}
    assert len(content) == 251
    assert all(reader.resets == ["start"] for reader in readers.values())


def test_one_api_for_all_caches_of_a_connector(kafka: Broker, prefix: str) -> None:
    """They are paused together, and a cache that joins meanwhile is paused, too."""
    port = free_port()
    config = {
        "name": "shop",
        "bootstrap.servers": kafka.bootstrap,
        "topic.prefix": prefix,
        "node.id": "n1",
        "segment.count": "4",
        "topic.creation.default.partitions": "2",
        "rest.port": str(port),
    }
    names = ("one", "two", "three")
    caches: dict[str, cachetools.LRUCache[str, str]] = {name: cachetools.LRUCache(1000) for name in names}
    with Captures(config) as captures:
        api, me = Api(port), "/connectors/shop"
        for name in names[:2]:
            captures.capture(name, caches[name])
        eventually(lambda: len(api.get(f"{me}/offsets")["offsets"]) == 8, 60)
        assert api.get("/connectors") == ["shop"]
        assert [task["config"]["cache.name"] for task in api.get(f"{me}/tasks")] == ["one", "one", "two", "two"]
        page = api.ask("GET", "/metrics").text
        assert all(f'cache="{name}"' in page for name in names[:2])
        api.do("PUT", f"{me}/pause")
        captures.capture("three", caches["three"])
        for name in names:
            caches[name]["k"] = name
        eventually(lambda: api.state("shop") == "PAUSED", 60)
        assert read_topic(kafka.bootstrap, f"{prefix}.three") == []
        api.do("PUT", f"{me}/resume")
        for capture in captures.values():
            capture.wait_until_streaming()
        eventually(lambda: all(captures[name].stats.unwritten == 0 for name in names), 60)
        assert api.state("shop") == "RUNNING"
        captures.release("two")
        assert {offset["partition"]["cache"] for offset in api.get(f"{me}/offsets")["offsets"]} == {"one", "three"}
    for name in names:
        content, _ = derived(read_topic(kafka.bootstrap, f"{prefix}.{name}"))
        assert content == {b"k": name.encode()}
