"""A deterministic simulation of whole clusters, of the nodes that ship.

Connector and grid run on `deelog_proof.memory`: Kafka, TCP and an event loop in memory. A `node` is the one that ships,
with the seams at which the checker looks and faults strike; `clients` call it. A run is a script (`script`) with a
seed: the same two give the same trace. The events of a script are `verbs`, at times or at `failpoints`; `generate`
draws the script of a seed. `checker` checks every step, `campaign` runs seeds, and `shrink` shortens the script of a
failing seed. `world` holds the parts of a run; they see it as a `context`, and one another as a `process`.

Weighed in docs/decisions.md, "The simulation runs the node that ships".
"""
