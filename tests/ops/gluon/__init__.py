"""An emulator of Gluon: the project's Hopper kernels on a CPU, with all that can happen between their
warps."""
