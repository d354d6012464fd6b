"""Benchmarks of the timer."""
