"""Checks beyond the bounds of fields: consistency within records, and of tables with records."""
