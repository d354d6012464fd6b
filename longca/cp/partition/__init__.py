"""Partitioning: the tokens and heads of each rank, and the mask between the queries of one rank and the keys
of another. Pure numpy."""
