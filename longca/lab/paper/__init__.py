"""The report of the whole study: its figures, tables and claims, made again from anybody's records."""
