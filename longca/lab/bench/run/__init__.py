"""Runs of studies: the cells to measure, their order, the method version of records, estimates, and the
display."""
