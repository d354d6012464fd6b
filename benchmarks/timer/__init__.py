"""Benchmarks of the timer. Results: docs/results/h200/timer.md."""
