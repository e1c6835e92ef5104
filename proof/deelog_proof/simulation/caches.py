"""The kinds of caches that are simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from deelog_proof.simulation import generate, vacuity
from deelog_proof.simulation.redis import generate as redis_generate
from deelog_proof.simulation.redis import vacuity as redis_vacuity
from deelog_proof.simulation.redis.world import RedisWorld
from deelog_proof.simulation.run import Run
from deelog_proof.simulation.script import GRID, Script
from deelog_proof.simulation.world import World


class Cache(NamedTuple):
    """How scripts of it are run, and generated from a seed, a number of steps and kinds of faults."""

    world: Callable[[Script], Run[Any]]
    generate: Callable[[int, int, Sequence[str]], Script]
    guard: vacuity.Guard


CACHES: Final = {
    GRID: Cache(World, generate.generate, vacuity.GUARD),
    "redis": Cache(RedisWorld, redis_generate.generate, redis_vacuity.GUARD),
}
"""By name."""
