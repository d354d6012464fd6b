"""Benchmarks of kernel adapters and masks."""
