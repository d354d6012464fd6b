"""The parts of the timer: stopwatches, and the protocol by which calls are timed."""
