"""Measuring: timer, oracle, telemetry, worker processes, the runner."""
