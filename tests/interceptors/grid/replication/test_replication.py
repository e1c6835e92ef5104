"""Random histories of a primary and a backup: writes, frames carried or not, roles that change."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.interceptors.grid.replication.pair import A, B, Pair


@pytest.mark.parametrize("seed", range(30))
def test_whatever_changes_hands_both_hold_the_same_and_nothing_acknowledged_is_lost(seed: int) -> None:
    """Random writes, frames carried or not, roles that change: the acknowledged value of each key is never older."""

    async def run() -> None:
        random_ = random.Random(seed)
        pair = Pair()
        number, primary = 1, A
        pair.view(1, A, A)
        await pair.settle()
        pair.view(2, A, A, B, epoch=1)
        number = 2
        acked: dict[bytes, int] = {}
        written: dict[int, tuple[bytes, int]] = {}
        for step in range(1, 300):
            replica = pair.a if primary == A else pair.b
            key = b"k%d" % random_.randrange(6)
            written[replica.store.put(replica.segment, key, b"%d" % step, None)] = (key, step)
            if random_.random() < 0.3:
                await pair.settle()
            for sequence in [s for s in written if s <= replica.segment.acked]:
                found, value = written.pop(sequence)
                acked[found] = max(acked.get(found, 0), value)
            if random_.random() < 0.05:
                written.clear()
                number, primary = number + 1, B if primary == A else A
                pair.view(number, primary, primary, B if primary == A else A)
                if random_.random() < 0.5:
                    await pair.settle()
        await pair.settle()
        assert pair.a.entries == pair.b.entries
        assert pair.a.core.history(0) == pair.b.core.history(0)
        assert all(int(pair.a.entries[key]) >= value for key, value in acked.items())

    asyncio.run(run())
