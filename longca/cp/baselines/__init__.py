"""Helpers for strategies of other projects and of the study, outside of the strategy contract."""
