"""Schedules: who computes and sends what in which step, where it is received, and what that is expected to cost. Pure numpy."""
