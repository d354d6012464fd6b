"""The contract of kernels, shared code, and one file for each kernel."""
