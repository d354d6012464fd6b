"""Cells, studies, records and settings: what is asked, and what was measured. Imports neither torch nor
pandas."""
