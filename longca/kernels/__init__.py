"""The contract of kernels, code that several kernels share, and one file for each kernel."""
