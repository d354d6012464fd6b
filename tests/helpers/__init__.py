"""Helpers that tests share. Helpers of one folder of tests lie in the folder of its name."""
