"""Checks of what is read beyond the bounds of fields: records that agree with themselves, and tables that agree with records."""
