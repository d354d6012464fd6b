"""Predictions beside measurements: fits, errors and choices."""
