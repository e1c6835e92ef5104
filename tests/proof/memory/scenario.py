"""What happens in what order: prints a run's events and its hash. `test_loop.py` runs it with several hash seeds."""

from __future__ import annotations

import asyncio
import sys

from deelog_proof.memory.engine import Engine
from deelog_proof.memory.loop import NodeLoop

NODES = ("a", "b", "c")


async def node(loop: NodeLoop, seen: list[str], inboxes: dict[str, asyncio.Queue[str]]) -> None:
    chance = loop.engine.stream(loop.name)

    async def part(name: str) -> str:
        await asyncio.sleep(chance.choice((0.0, 0.1, 0.1, 0.2)))
        return name

    for turn in range(5):
        parts = {asyncio.create_task(part(f"{loop.name}{turn}.{n}")) for n in range(6)}
        while parts:
            done, parts = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            seen.extend(task.result() for task in done)
        for other in NODES:
            loop.engine.after(chance.random(), inboxes[other].put_nowait, f"{loop.name}>{other}")
        seen.append(await inboxes[loop.name].get())


def main(seed: int) -> None:
    engine, seen = Engine(seed), list[str]()
    loops = {name: NodeLoop(engine, name) for name in NODES}
    inboxes: dict[str, asyncio.Queue[str]] = {name: asyncio.Queue() for name in NODES}
    tasks = [loop.create_task(node(loop, seen, inboxes)) for loop in loops.values()]
    engine.run(lambda: all(task.done() for task in tasks))
    for loop in loops.values():
        assert not loop.errors
        loop.bury()
    sys.stdout.write(f"{seen} {engine.order} {engine.steps} {engine.now}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
