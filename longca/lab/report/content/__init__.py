"""What a page shows: typed data, each text made once, and what is shipped to its scripts."""
