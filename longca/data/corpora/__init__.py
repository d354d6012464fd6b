"""Corpora that come with the program: each JSON file is one."""
