"""Strategies: one file each."""
