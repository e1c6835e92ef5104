"""The door: roles, and what the core as a whole says of itself."""

from __future__ import annotations

import pytest

from deelog_connector.core.snapshot_mode import SnapshotMode
from tests.connector.world import (
    SEGMENTS,
    World,
    key_of,
    started,
)


def test_promote_needs_a_higher_epoch() -> None:
    _world, (n0, _) = started()
    with pytest.raises(ValueError, match="epoch 1 is not above"):
        n0.core.promote(0, 1)


def test_initial_only_is_finished_once_every_segment_is_sent() -> None:
    world = World(1, mode=SnapshotMode.INITIAL_ONLY)
    node = world.nodes["n0"]
    assert not node.core.finished
    for segment in range(SEGMENTS):
        node.cache[key_of(segment)] = b"there"
        world.own(segment, node)
    seen = []
    for _ in range(30):
        world.now += 0.1
        node.step()
        seen.append((node.core.finished, {node.core.phase(s) for s in range(SEGMENTS)} == {"writing"}))
    assert all(finished is sent for finished, sent in seen)
    assert seen[0] == (False, False)
    assert seen[-1] == (True, True)
    world.check()
