"""The takeover: nodes that own segments, one Kafka, a controller and clients, with the faults of each."""
