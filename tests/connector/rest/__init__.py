"""The REST API: against real nodes, and beside a real Kafka Connect."""
