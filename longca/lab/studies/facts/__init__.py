"""Facts in records other than measurements: sampled lengths, and listings of software."""
