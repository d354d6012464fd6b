"""Play-offs: all kernels of a case prepared in one process, and rounds of alternating calls until their order
is decided."""
