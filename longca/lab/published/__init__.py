"""Rates of attention that others published, as data with their sources, and their loader."""
