"""Checks of results before they are timed: a float64 reference by the definition of attention. It shares no
code with any kernel."""
