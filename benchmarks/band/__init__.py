"""Benchmarks of band attention."""
