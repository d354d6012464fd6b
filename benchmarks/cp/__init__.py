"""Benchmarks of context parallelism."""
