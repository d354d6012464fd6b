"""Contents of a page: typed data, each text made once, and the data shipped to its scripts."""
