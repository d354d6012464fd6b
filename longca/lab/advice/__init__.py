"""Advice before a run: strategies, meshes, kernels and messages ranked by predicted time. Never imports
torch."""
