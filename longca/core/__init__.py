"""Cells, studies, records, the plug-in registry, settings, errors. Imports nothing of longca, and neither torch nor pandas."""
