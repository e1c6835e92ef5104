"""A deterministic simulation of a whole cluster: the product's own core and grid over a simulated Kafka and network.

What is real: `ConnectorCore`, encoder, decoder and reading rule; the grid's `Store`, `Replicator`, `Backup`, `Roles`,
`Registry` and `decide`. What is simulated, here: Kafka (`kafka`), connections between nodes (`network`), a process with
its clock, its pauses and its end (`node`), the seat of the controller (`office`), clients (`clients`). A run is a seed
and a script (`script`): the same two give the same trace. `checker` looks at every step, `campaign` runs seeds, and a
seed that fails is made short by `shrink`.

Weighed: the real processes on an event loop with a false clock (everything runs, but what blocks in threads has to be
cut out of every module, and a step costs ten times as much), a model of the protocol (`tests/model` has one; it finds
what is wrong with the rules, not with the code), and this one: the real code down to where it would do I/O.
"""
