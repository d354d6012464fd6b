"""Communication: process groups, point-to-point messages, receive buffers, and symmetric memory written by copy engines."""
