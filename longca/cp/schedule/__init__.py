"""Schedules: each rank's kernel calls and transfers step by step, their buffers, and their estimated cost. Pure numpy."""
