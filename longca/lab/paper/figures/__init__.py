"""One file is one figure or table of the study's report."""
