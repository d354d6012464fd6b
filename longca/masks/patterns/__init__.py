"""Mask patterns: each file is one."""
