"""Models of time, fitted on records: kernels from their tiles, messages from their bytes. Never imports
torch."""
