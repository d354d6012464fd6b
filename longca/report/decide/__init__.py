"""The picture that decides: every method under every mask at one setting, as shares of the best one."""
