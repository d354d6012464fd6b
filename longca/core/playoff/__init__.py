"""The play-off: the fastest methods of a case, timed again in turn. Its rules, its case, and the order of its
calls."""
