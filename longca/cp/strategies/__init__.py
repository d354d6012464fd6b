"""Strategies: each file is one."""
