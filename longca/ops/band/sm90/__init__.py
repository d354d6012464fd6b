"""Band attention's kernels for Hopper GPUs (sm_90), in Gluon."""
