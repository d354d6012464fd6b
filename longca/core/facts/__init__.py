"""Facts that records hold beside their numbers: drawn lengths, and listings of software."""
