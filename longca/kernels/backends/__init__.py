"""Kernels: each file is one."""
