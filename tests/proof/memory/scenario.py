"""Three nodes that write, read, fence one another and wait. Prints what happened in what order.

`test_loop.py` runs it with several hash seeds.
"""

from __future__ import annotations

import asyncio
import sys

from deelog_connector.kafka_port import BEGINNING, OutRecord, WriteFailed
from deelog_proof.memory.broker import Kafka
from deelog_proof.memory.engine import Engine
from deelog_proof.memory.loop import NodeLoop
from deelog_proof.memory.port import MemoryPort
from deelog_schemas.config import parse

NODES = ("a", "b", "c")
CONFIG = parse(
    {
        "name": "test",
        "connector.class": "deelog.CachetoolsConnector",
        "topic.prefix": "p",
        "bootstrap.servers": "memory:9092",
        "node.id": "n",
        "cache.name": "c",
    }
)


async def node(loop: NodeLoop, port: MemoryPort, seen: list[str]) -> None:
    session, brokers = await port.session(CONFIG, loop.name, lambda: 1000), port.brokers(CONFIG)
    await brokers.ensure("t", 3, {})
    reader = await port.reader(CONFIG, "t")
    await reader.seek(dict.fromkeys(range(3), BEGINNING))
    await session.open()

    async def write(turn: int) -> str:
        records = [OutRecord("t", turn % 3, b"k", f"{loop.name}{turn}.{i}".encode(), []) for i in range(3)]
        try:
            await session.commit(records)
        except WriteFailed as error:
            await session.open()
            return f"{loop.name}{turn} {error.cause}"
        return f"{loop.name}{turn} written"

    async def fence() -> str:
        other = port.random.choice(NODES)
        await asyncio.sleep(port.random.random() / 100)
        await brokers.fence(other)
        return f"{loop.name} fences {other}"

    async def read() -> str:
        return f"{loop.name} reads {[record.value for record in await reader.read(0.01)]}"

    for turn in range(10):
        tasks = {asyncio.create_task(call) for call in (write(turn), write(turn + 1), fence(), read())}
        while tasks:
            done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            seen.extend(task.result() for task in done)


def main(seed: int) -> None:
    engine, seen = Engine(seed), list[str]()
    kafka = Kafka(engine)
    loops = {name: NodeLoop(engine, name) for name in NODES}
    tasks = [loop.create_task(node(loop, MemoryPort(loop, kafka), seen)) for loop in loops.values()]
    engine.run(lambda: all(task.done() for task in tasks))
    for loop in loops.values():
        assert not loop.errors
        loop.bury()
    sys.stdout.write("\n".join([*seen, f"{engine.order} {engine.steps} {engine.now} {kafka.counts}\n"]))


if __name__ == "__main__":
    main(int(sys.argv[1]))
