"""A run of a study: which cells, in which order, whether a record is still valid, and what a person sees meanwhile."""
