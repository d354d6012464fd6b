"""Communication between ranks: collectives, point-to-point messages, receive buffers, and symmetric memory
written by copy engines."""
