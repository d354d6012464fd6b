"""Checks of what is read beyond the bounds of fields: of records, of tables beside records, and of the protocol of known cells."""
