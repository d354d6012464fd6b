"""Bundles: the records of a study with everything that produced them, and the verification of a bundle. Never
imports torch."""
