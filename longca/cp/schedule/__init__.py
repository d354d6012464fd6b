"""Schedules: the kernel calls and transfers of each rank, step by step, their buffers, and their estimated
cost. Pure numpy."""
