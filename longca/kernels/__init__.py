"""The kernel contract, the lowerings of masks to each backend's own form, and one file for each kernel."""
