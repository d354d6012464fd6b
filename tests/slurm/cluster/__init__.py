"""A real Slurm of several nodes on one Debian machine, in namespaces of its own: nothing of it outlives the
process that made it."""
