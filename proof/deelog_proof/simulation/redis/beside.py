"""A connector's process beside a server."""

from __future__ import annotations

from deelog_interceptors.redis.node import RedisNode
from deelog_proof.simulation.hosted import ENDS, Hosted, Surroundings
from deelog_proof.simulation.judge import Judge
from deelog_schemas.config import Config


class Beside(Hosted):
    """Under `c<number>`."""

    def __init__(self, around: Surroundings, node_id: str, config: Config, checker: Judge) -> None:
        super().__init__(around, node_id)
        self._checker = checker
        self.redis: RedisNode = self.loop.within(RedisNode, config, self.port)
        self.member = self.redis.member
        self.core = self.redis.connector.core
        self.watch(self.core)
        self.reach()
        self.redis.failure.add_done_callback(self._failed)
        self.loop.within(self.loop.create_task, self.live(self.redis))

    def _failed(self, failure: object) -> None:
        error = self.redis.failure.exception()
        if error is not None and not isinstance(error, ENDS):
            self._checker.broken(f"{self.member}: {error!r}", error)
