"""Schedules at work on one rank: exchanges, kernel calls, and accumulation of their results."""
