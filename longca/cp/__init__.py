"""Context parallelism: the strategy contract, communication, and one file for each strategy."""
