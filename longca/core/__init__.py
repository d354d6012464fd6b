"""Cells, studies, records, the plug-in registry, settings, errors. It imports no other package of longca, and
neither torch nor pandas."""
