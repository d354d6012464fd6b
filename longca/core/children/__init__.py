"""Processes that this one starts: their end, their output, and trial imports in them."""
