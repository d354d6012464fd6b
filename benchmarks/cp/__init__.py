"""Benchmarks of context parallelism. Results: docs/results/h200/context-parallelism.md and peers.md."""
