"""Benchmarks of band attention. Results: docs/results/h200/band.md."""
