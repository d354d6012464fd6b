"""Checks beyond the bounds of fields: consistency within records, of tables with records, and the protocol of
known cells."""
