"""The takeover: nodes that own segments, one Kafka, a controller, clients; and what can go wrong with each."""
