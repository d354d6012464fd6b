"""`longca probe`: a minute of measuring on the ranks at hand, and the profile for `longca advise` that
follows."""
