"""Masks in the form that each backend needs, derived from bands or block grids."""
