"""Masks in each backend's own form, derived from bands."""
