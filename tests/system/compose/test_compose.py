"""docker-compose.yml for real: written to from this host, a node and the diff job killed, and the diff compared."""

from __future__ import annotations

import logging
import random
import time
import urllib.parse
from collections import Counter
from itertools import pairwise

import pytest
from redis.cluster import RedisCluster
from redis.exceptions import RedisClusterException, RedisError

from deelog_proof.audit.topics import Ownership, end_offsets, fold_changes, fold_diff, read_topic
from deelog_proof.audit.verify import differences
from deelog_schemas.config import FIELDS
from tests.system.compose.stack import NODES, Stack, eventually

TOPIC = "shop.sessions"
OPERATIONS = 6000
KEYS = 700
WRITE_SECONDS = 60.0
CATCH_UP_SECONDS = 120.0

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]
log = logging.getLogger("compose")


class Writer:
    """Writes one operation after the other, each until it is acknowledged, and knows what must be there."""

    def __init__(self, client: RedisCluster, seed: int) -> None:
        self._client = client
        self._chance = random.Random(seed)
        self.held: dict[bytes, bytes] = {}
        self.longest = 0.0

    def write(self, count: int) -> None:
        """Creates, updates and deletes; every tenth entry expires within a second, others in an hour or never."""
        for number in range(count):
            key = f"session:{self._chance.randrange(KEYS)}"
            if self._chance.random() < 0.2:
                self._until_acknowledged("DEL", key)
                self.held.pop(key.encode(), None)
                continue
            value = f"{number} {self._chance.randbytes(60).hex()} ü"
            expiry = self._chance.choice([1_000, 3_600_000, *[0] * 8])
            self._until_acknowledged("SET", key, value, *(("PX", expiry) if expiry else ()))
            if expiry == 1_000:
                self.held.pop(key.encode(), None)
            else:
                self.held[key.encode()] = value.encode()

    def _until_acknowledged(self, *command: str | int) -> None:
        begin = time.monotonic()
        while True:
            try:
                self._client.execute_command(*command)  # type: ignore[no-untyped-call]
                break
            except (RedisError, RedisClusterException) as error:
                if time.monotonic() - begin > WRITE_SECONDS:
                    raise AssertionError(f"{command[:2]} was refused for {WRITE_SECONDS:g} s") from error
                time.sleep(0.1)
        self.longest = max(self.longest, time.monotonic() - begin)


def test_a_node_and_the_job_are_killed_and_the_diff_ends_equal(stack: Stack) -> None:
    """What the caches hold, what the change topic says and what the Spark job told, read by a plain consumer."""
    segments = FIELDS["segment.count"].default
    begin = time.monotonic()
    with stack.client() as client:
        writer = Writer(client, seed=4)
        writer.write(OPERATIONS // 3)
        stack.kill("node2")
        stack.kill("diff")
        writer.write(OPERATIONS // 3)
        stack.start("node2")
        stack.start("diff")
        writer.write(OPERATIONS // 3)
    log.info("%d writes in %.0f s", OPERATIONS, time.monotonic() - begin)
    stack.wait_until_healthy()

    def holds_what_was_acknowledged() -> bool:
        return {key: entry.value for key, entry in stack.caches(segments).items()} == writer.held

    eventually(holds_what_was_acknowledged, CATCH_UP_SECONDS, "the caches hold what was acknowledged")
    eventually(lambda: stack.unwritten() == 0, CATCH_UP_SECONDS, "everything in Kafka")

    def caught_up() -> bool:
        return stack.diff_has_read() == {str(part): end for part, end in end_offsets(stack.bootstrap, TOPIC).items()}

    eventually(caught_up, CATCH_UP_SECONDS, "the diff job read everything")
    log.info("the diff job had read everything after %.0f s", time.monotonic() - begin)
    caches = stack.caches(segments)
    changes = fold_changes(TOPIC, read_topic(stack.bootstrap, TOPIC))
    diff = fold_diff(f"{TOPIC}.diff", read_topic(stack.bootstrap, f"{TOPIC}.diff"))
    taken = _taken_over(changes.owners, "n2")
    log.info(
        "%d keys, %d changes, diff %s, %d segments taken from the killed node, longest wait for a write %.1f s",
        len(caches), changes.written, diff.counts["changes"], taken, writer.longest,
    )  # fmt: skip
    assert differences(caches, changes.entries, diff.entries) == {}
    assert len(caches) > KEYS / 3
    assert taken > 0
    assert (changes.duplicates, diff.duplicates, changes.open_resets) == (0, 0, 0)


def test_prometheus_sees_all_targets_up_and_no_alert(stack: Stack) -> None:
    """Three nodes and the job, by the configuration and the rules that are mounted into it."""

    def up() -> bool:
        targets = stack.answer("prometheus", "/api/v1/targets")["data"]["activeTargets"]
        health = Counter((target["labels"]["job"], target["health"]) for target in targets)
        assert health == {("deelog", "up"): len(NODES), ("deelog-diff", "up"): 1}, targets
        return True

    eventually(up, CATCH_UP_SECONDS, "all targets up")
    query = urllib.parse.quote('sum(deelog_segments{role="primary"})')
    segments = FIELDS["segment.count"].default

    def all_segments() -> bool:
        result = stack.answer("prometheus", f"/api/v1/query?query={query}")["data"]["result"]
        return [value for _, value in (row["value"] for row in result)] == [str(segments)]

    eventually(all_segments, CATCH_UP_SECONDS, "a primary of each segment, as Prometheus has it")
    groups = stack.answer("prometheus", "/api/v1/rules")["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert rules
    assert all(rule["health"] == "ok" for rule in rules)


def test_the_registry_answers_as_confluents_does(stack: Stack) -> None:
    assert stack.answer("registry", "/apis/ccompat/v7/subjects") == []


def test_nothing_runs_as_root_or_writes_where_it_should_not(stack: Stack) -> None:
    """Kafka's image is Apache's, and writes its configuration where it stands."""
    for service in (*NODES, "diff", "registry", "prometheus"):
        user, read_only = stack.user_and_mounts(service)
        assert user != "0", service
        assert read_only, service


def _taken_over(owners: list[Ownership], node: str) -> int:
    """How many segments this node owned and another one owned next."""
    by_segment: dict[int, list[str]] = {}
    for owner in sorted(owners, key=lambda owner: (owner.segment, owner.epoch)):
        by_segment.setdefault(owner.segment, []).append(owner.member.rpartition("@")[0])
    return sum(any(a == node != b for a, b in pairwise(names)) for names in by_segment.values())
