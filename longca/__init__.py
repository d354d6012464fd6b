"""longca measures attention for long contexts, from one kernel to context parallelism over many GPUs."""

__version__ = "0.1.0"
