"""The check before the timing: a result is compared with float64, by definitions that no kernel shares."""
