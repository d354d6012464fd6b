"""The kernels: each file is one plug-in."""
