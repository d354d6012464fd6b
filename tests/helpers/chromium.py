"""Chromium on the other end of a pipe: windows below 500 px, and one process for many pages."""

import fcntl
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

KEYS: dict[str, dict[str, Any]] = {
    "Tab": {"code": "Tab", "windowsVirtualKeyCode": 9},
    "Enter": {"code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"},
    " ": {"code": "Space", "windowsVirtualKeyCode": 32, "text": " "},
}


LIVE = """(async () => {
  const waits = () => document.querySelector("script[type='application/zlib']")
    && !document.documentElement.matches(".live");
  for (let round = 0; round < 1000 && waits(); round++) await new Promise((done) => setTimeout(done, 10));
})()"""
"""waits until the page's script has read its data, which takes longer than loading"""


class Browser:
    """One tab of a headless Chromium without a network. Methods raise `RuntimeError` if it refuses."""

    def __init__(self, to_browser: int, from_browser: int):
        self._to_browser = to_browser
        self._from_browser = from_browser
        self._numbers = itertools.count(1)
        self._received = b""
        self._events = []
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def open(self, address: str, width: int, height: int = 900, dark: bool = False) -> list[str]:
        """Opens a page anew in a window of that size in px, and returns what it wrote to the console."""
        self._events.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url="about:blank")
        self._wait("Page.loadEventFired")
        self.call("Page.navigate", url=address)
        self._wait("Page.loadEventFired")
        self.run(LIVE)
        return [text for event in self._events if (text := _complaint(event))]

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited; it must be JSON."""
        reply = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in reply:
            raise RuntimeError(reply["exceptionDetails"]["exception"]["description"])
        return reply["result"].get("value")

    def press(self, key: str) -> None:
        """Presses and releases a key of KEYS."""
        down = {"key": key, **KEYS[key]}
        self.call("Input.dispatchKeyEvent", type="keyDown" if "text" in down else "rawKeyDown", **down)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=down["code"])

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends one command of the DevTools protocol and returns its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        while (reply := self._message()).get("id") != number:
            self._events.append(reply)
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']['message']}")
        return reply["result"]

    def _wait(self, method: str) -> None:
        while not any(event["method"] == method for event in self._events):
            self._events.append(self._message())
        self._events = [event for event in self._events if event["method"] != method]

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            received = os.read(self._from_browser, 1 << 16)
            if not received:
                raise RuntimeError("Chromium has ended")
            self._received += received
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)


def _complaint(event: dict[str, Any]) -> str | None:
    params = event["params"]
    if event["method"] == "Log.entryAdded":
        return params["entry"]["text"]
    if event["method"] == "Runtime.consoleAPICalled":
        return " ".join(str(value.get("value", value.get("description"))) for value in params["args"])
    if event["method"] == "Runtime.exceptionThrown":
        return str(params["exceptionDetails"].get("exception", {}).get("description"))
    return None


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a new profile in that folder; it ends with the block."""
    assert CHROMIUM is not None, "CI needs a Chromium"
    commands, to_browser = os.pipe()
    from_browser, replies = os.pipe()
    # DevTools reads file descriptor 3 and writes 4, so the ends of the pipes are moved out of the way
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in (commands, replies)]
    os.close(commands)
    os.close(replies)
    process = subprocess.Popen(
        [
            "bash",
            "-c",
            f'exec "$@" 3<&{moved[0]} 4>&{moved[1]}',
            "chromium",
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--no-first-run",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--disable-background-networking",
            "--disable-ipc-flooding-protection",  # else it ignores a page that changes its address often
        ],
        pass_fds=moved,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for descriptor in moved:
        os.close(descriptor)
    try:
        yield Browser(to_browser, from_browser)
    finally:
        os.close(to_browser)  # it ends by itself when nobody can send commands
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(from_browser)
