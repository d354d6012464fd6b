"""The claims of the study: each file is one, and the registry finds it."""
