"""Environments of records: software listings, their comparison with images, and their summary for pages."""
