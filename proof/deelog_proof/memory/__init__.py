"""The port to Kafka in memory, and the deterministic loop on which the shells run without sockets and threads.

`engine` has time, order and chance. Each node of a test or a simulation has a `loop.NodeLoop` on it, all share one
`broker.Kafka` with its `group`s, and each has a `port.MemoryPort` to it: `wire` carries the requests, `election` is the
grid's. `network` connects the loops.
"""
