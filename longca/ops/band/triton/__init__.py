"""Band attention's portable kernels, in Triton."""
