"""One cell measured in the measuring process: support, inputs, check, time, memory, telemetry."""
