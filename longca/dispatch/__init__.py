"""Attention for any mask on any device: the choice of the operator, and a reference that runs everywhere."""
