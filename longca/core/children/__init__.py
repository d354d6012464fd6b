"""Processes that this one starts: their package, their end, their output, and trial imports in them."""
