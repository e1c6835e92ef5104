"""What a member asks of the controller, with its heartbeats."""

from __future__ import annotations

from typing import Final, NamedTuple

GROW: Final = "grow"
SHRINK: Final = "shrink"
RELEASED: Final = "released"
STEPPED_DOWN: Final = "stepped_down"
RESET_DONE: Final = "reset_done"


class Request(NamedTuple):
    """What a primary asks for one of its segments, in the view that it knows.

    `grow`, `shrink`: `member` in or out of the in-sync set. `released`: elect somebody. `stepped_down`: the
    connector found a higher claim; elect in a new epoch. `reset_done`: the reset that the view asked for is complete.
    """

    kind: str
    segment: int
    epoch: int
    member: str = ""
