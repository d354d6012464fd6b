"""Compiles kernels from their source packages, with the parts of them that the studies use. Needs no network
and no longca."""
