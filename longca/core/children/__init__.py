"""Child processes: their package, their termination, their output, and trial imports."""
