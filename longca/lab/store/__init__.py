"""Records on disk, and the tables derived from them. Never imports torch."""
