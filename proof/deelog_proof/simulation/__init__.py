"""A deterministic simulation of a whole cluster: the product's own core and grid over a simulated Kafka and network.

What is real: `ConnectorCore`, encoder, decoder and reading rule; the grid's `Store`, `Replicator`, `Backup`, `Roles`,
`Registry` and `decide`. What is simulated, here: Kafka (`kafka`), connections between nodes (`network`), a process with
its clock, its pauses and its end (`node`), the seat of the controller (`controller_seat`), clients (`clients`). A run
is a script (`script`) with a seed: the same two give the same trace. A script says by `verbs` what happens; `generate`
draws the script of a seed. `checker` looks at every step, `campaign` runs seeds, and a seed that fails is made short by
`shrink`. `world` puts the parts of a run together; they see it as a `context`, and one another as a `process`.

Weighed in docs/decisions.md, "The simulation runs the product's code".
"""
