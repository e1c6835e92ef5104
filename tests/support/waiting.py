"""Waiting in tests: for a condition, never for a fixed time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 3
"""Deadlines of real time are for what hangs. A machine that runs six tests at once is only slow."""
_POLL_SECONDS = 0.01


def waiting(condition: Callable[[], T | None], seconds: float, what: str) -> T:
    """Poll `condition` until it is true; return what it gave.

    Raises TimeoutError after `PATIENCE` times `seconds`, naming `what` and the last answer. What `condition` raises
    ends the wait.
    """
    seconds *= PATIENCE
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        _check(deadline - time.monotonic(), seconds, what, answer)
        time.sleep(_POLL_SECONDS)
    return answer


async def awaiting(condition: Callable[[], T | None], seconds: float, what: str) -> T:
    """`waiting`, in an event loop and by its clock. A virtual one, which no machine slows down, needs no patience."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    seconds *= PATIENCE if isinstance(loop, asyncio.SelectorEventLoop) else 1
    deadline = clock() + seconds
    while not (answer := condition()):
        _check(deadline - clock(), seconds, what, answer)
        await asyncio.sleep(_POLL_SECONDS)
    return answer


def _check(left: float, seconds: float, what: str, answer: object) -> None:
    if left < 0:
        raise TimeoutError(f"waited {seconds:g} s in vain for {what}; the last answer was {answer!r}")
