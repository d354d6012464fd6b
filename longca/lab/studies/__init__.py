"""Cells as the library sees them: the mask and the strategy that a cell names, and tables of masks and
draws."""
