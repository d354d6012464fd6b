"""The laboratory: studies, records, measuring, pages and claims. It stands on the library; nothing of the
library imports it."""
