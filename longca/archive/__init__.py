"""Bundles: a study's records with all that made them, and the check that a bundle is whole. Never imports torch."""
