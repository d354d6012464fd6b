"""Execution of schedules on one rank: exchanges, kernel calls, and accumulation of results."""
