"""Comparison of two sets of records, or of records with published rates: pairs, verdicts and summaries."""
