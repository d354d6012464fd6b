"""Processes that tests start and wait for."""

import subprocess
import sys


def start(program: str, *arguments: str, text: str = "") -> subprocess.Popen:
    """A process that has said that it is where the test wants it."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    process.stdin.write(text)
    process.stdin.close()
    assert process.stdout.readline()
    return process
