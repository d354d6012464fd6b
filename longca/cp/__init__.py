"""Context parallelism: the contract of strategies, communication, and one file for each strategy."""
