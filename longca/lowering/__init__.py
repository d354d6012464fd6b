"""Lowerings: masks in the input format of each backend, derived from bands or block grids."""
