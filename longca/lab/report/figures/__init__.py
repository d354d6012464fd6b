"""Figures: each file is one."""
