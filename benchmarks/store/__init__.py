"""The store and all that reads it, under a load that no study of ours has."""
