"""Container images: what they are made of, how they are obtained once, and that they are the ones they were."""
