"""Benchmarks of longca itself. Run from the root of the checkout: `python -m benchmarks.NAME`."""
