"""The software that a process runs: installed distributions, loaded shared objects, and modules that no
distribution has brought.

`packages` and `elf` use Python's standard library alone, since images list their contents with them
(`tools/image_contents.py`).
"""
