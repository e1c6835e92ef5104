"""Capture for Redis and Valkey: a connector beside each server, which reads its replication stream."""
