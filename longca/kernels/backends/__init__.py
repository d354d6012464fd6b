"""Kernels: one file each."""
