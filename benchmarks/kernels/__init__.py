"""Benchmarks of kernels, their adapters, and masks. Results: docs/results/h200/kernels.md and timer.md."""
