"""Additional records: play-offs and repeats."""
