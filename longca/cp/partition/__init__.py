"""Partitioning: which rank holds which tokens and heads, and what each rank's queries see of each rank's keys. Pure numpy."""
