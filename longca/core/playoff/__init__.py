"""What a run measures again after its cells: the fastest methods of a case, in turn, and a few cells a second
time. Rules, cases, and the order of calls."""
