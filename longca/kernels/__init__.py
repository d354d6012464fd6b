"""The kernel contract, and one file for each kernel."""
