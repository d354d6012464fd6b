"""Records that stand beside those of the cells: of play-offs, and repeats."""
