"""The writes of a session store: few users are busy, most come once; sessions are renewed, ended, or expire.

Keys are drawn from a Zipf distribution, every value holds the number of its write (which identifies it), and time to
live comes in three kinds: short (gone before the run is over), an hour, none. Only `random.Random.random` and the
four basic operations are used, so the same seed gives the same bytes on every machine.

Weighed in docs/decisions.md, "The demo's load".
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import random
from collections.abc import Iterator

from deelog_proof.load.traces import MAX_VALUE, Write

DELETE_SHARE = 0.08
SHORT_SHARE = 0.15
FOREVER_SHARE = 0.20
SHORT_MS = (1_000, 5_000)
LONG_MS = 3_600_000
WRITES_PER_KEY = 5
_PADDINGS = (0, 20, 40, 80, 160, 160, 320, 320, 640)
_LEAST_KEYS = 50


def session_store(operations: int, seed: int, max_value: int = MAX_VALUE) -> Iterator[Write]:
    """`operations` writes of a session store; values are text, cut at `max_value` bytes but for the identity."""
    draw = random.Random(seed)
    keys = max(_LEAST_KEYS, operations // WRITES_PER_KEY)
    weights = list(itertools.accumulate(1 / rank for rank in range(1, keys + 1)))
    for number in range(operations):
        rank = bisect.bisect_left(weights, draw.random() * weights[-1])
        key = b"session:" + hashlib.blake2b(b"%d/%d" % (seed, rank), digest_size=8).hexdigest().encode()
        if draw.random() < DELETE_SHARE:
            yield Write(key, None)
            continue
        yield Write(key, _value(draw, number, rank, max_value), _ttl(draw))


def _value(draw: random.Random, number: int, rank: int, max_value: int) -> bytes:
    head = b'{"op":%d,"user":%d,"cart":"' % (number, rank)
    padding = _PADDINGS[int(draw.random() * len(_PADDINGS))]
    unit = b"%08x" % int(draw.random() * 0xFFFFFFFF)
    padding = max(0, min(padding, max_value - len(head) - 2))
    return head + (unit * (padding // len(unit) + 1))[:padding] + b'"}'


def _ttl(draw: random.Random) -> int | None:
    kind = draw.random()
    if kind < SHORT_SHARE:
        return SHORT_MS[0] + int(draw.random() * (SHORT_MS[1] - SHORT_MS[0]))
    return None if kind < SHORT_SHARE + FOREVER_SHARE else LONG_MS
