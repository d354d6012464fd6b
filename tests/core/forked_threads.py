"""A module whose import starts a thread, which no fork survives."""

import threading
import time

threading.Thread(target=time.sleep, args=(60,), daemon=True).start()


def main() -> None:
    """Nothing."""
