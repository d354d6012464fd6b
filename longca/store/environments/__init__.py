"""Environments of records: listings of the software that ran, their comparison with images, and what a page
says of them."""
