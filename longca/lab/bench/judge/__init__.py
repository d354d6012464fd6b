"""The judge of results in a process of its own: what workers send it, what it holds, and what it tells the
runner."""
