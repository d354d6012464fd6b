"""The main picture: every method under every mask at one setting, as shares of the best one."""
