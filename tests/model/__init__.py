"""Explicit-state models of the takeover and of the diff job, which decide by the functions that the product ships."""
