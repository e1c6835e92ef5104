"""The REST API: of real nodes, and compared with a real Kafka Connect."""
