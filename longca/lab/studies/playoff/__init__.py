"""Second measurements after the cells of a run: play-offs of the fastest methods of a case, and repeats of a
few cells. Rules, cases, and the order of calls."""
