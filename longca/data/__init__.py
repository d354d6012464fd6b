"""Corpora of document lengths, the sampler, and corpora from a user's own files."""
