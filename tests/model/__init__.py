"""Explicit-state models of the takeover and of the diff job. They call the product's own functions for decisions."""
