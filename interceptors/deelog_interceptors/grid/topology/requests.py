"""A member's requests to the controller, sent with its heartbeats."""

from __future__ import annotations

from typing import Final, NamedTuple

GROW: Final = "grow"
SHRINK: Final = "shrink"
RELEASED: Final = "released"
STEPPED_DOWN: Final = "stepped_down"
RESET_DONE: Final = "reset_done"


class Request(NamedTuple):
    """A primary's request for one of its segments, made in the last view that it read.

    `grow`, `shrink`: add `member` to the in-sync set, or remove it. `released`: elect another primary. `stepped_down`:
    the connector saw a higher claim; elect in a new epoch. `reset_done`: the reset of `must_reset` is complete.
    """

    kind: str
    segment: int
    epoch: int
    member: str = ""
