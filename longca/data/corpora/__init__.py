"""Corpora of this package: one JSON file each."""
