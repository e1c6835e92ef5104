"""A deterministic simulation of a whole cluster: the product's own core and grid over a simulated Kafka and network.

What is real: `ConnectorCore`, encoder, decoder and reading rule; the grid's `Store`, `Replicator`, `Backup`, `Roles`,
`Registry` and `decide`. What is simulated, here: Kafka (`kafka`), connections between nodes (`network`), a process with
its clock, its pauses and its end (`node`), the controller's election (`controller_seat`), clients (`clients`). A run
is a script (`script`) with a seed: the same two give the same trace. The events of a script are `verbs`; `generate`
draws the script of a seed. `checker` checks every step, `campaign` runs seeds, and `shrink` shortens the script of a
failing seed. `world` holds the parts of a run; they see it as a `context`, and one another as a `process`.

Weighed in docs/decisions.md, "The simulation runs the product's code".
"""
