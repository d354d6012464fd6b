"""Plans of runs: what a cell needs and how long it takes, jobs of equal length, the order of measurement."""
