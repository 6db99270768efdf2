"""A headless browser for pages of ours: what is in them, how they look, and what keys do."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time

import pytest
from matplotlib.image import imread

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no browser: `apt-get install chromium` to run this test"
)


def chromium(path, scratch, *arguments, dark=False, query=None):
    """Open a local page with extra arguments, searching it if asked; returns what was printed."""
    address = path.as_uri() + (f"?q={query}" if query else "")
    result = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--user-data-dir={scratch / 'profile'}",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            *arguments, address,
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return result.stdout


def screenshot(path, scratch, *, size=(900, 1400), dark=False):
    """(H, W, 3) the page as it looks, in [0, 1]."""
    picture = scratch / f"shot-{'dark' if dark else 'light'}-{size[0]}.png"
    window = f"--window-size={size[0]},{size[1]}"
    chromium(path, scratch, window, f"--screenshot={picture}", dark=dark)
    return imread(picture)[..., :3]


class Browser:
    """A browser that stays open for one page, driven by the DevTools protocol over two pipes.

    Attributes:
        problems: What the page's console said of errors and violated security policies.
        requests: Addresses that the page asked for.
    """

    def __init__(self, scratch):
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        self.problems, self.requests = [], []
        self._buffer, self._count, self._session = b"", 0, None
        script = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'
        self._process = subprocess.Popen(
            [
                "bash", "-c", script, "bash", str(to_browser), str(from_browser), CHROMIUM,
                "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                f"--user-data-dir={scratch / 'profile-of-pipes'}", "--remote-debugging-pipe",
            ],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self._session = None
            self.call("Browser.close")
            self._process.wait(20)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._out)
            os.close(self._in)

    def call(self, method, **parameters):
        """One command of the protocol and its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._count:
                assert "error" not in answer, (method, answer)
                return answer["result"]

    def _receive(self):
        end = time.monotonic() + 60
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(end - time.monotonic(), 0))
            part = os.read(self._in, 1 << 20) if ready else b""
            assert part, "the browser does not answer"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        values = message.get("params", {})
        match message.get("method"):
            case "Log.entryAdded" if values["entry"]["level"] == "error":
                self.problems.append(values["entry"]["text"])
            case "Runtime.exceptionThrown":
                self.problems.append(values["exceptionDetails"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(values["request"]["url"])
        return message

    def open(self, path, *, width=1100, height=1500, dark=False, scripts=True):
        """Show a local page, and wait until it is loaded."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        self.call("Page.navigate", url=path.as_uri())
        while self._receive().get("method") != "Page.loadEventFired":
            pass

    def value(self, expression):
        """Of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key, times=1):
        """Press and release a key as a keyboard does; `key` such as ArrowRight, Tab or Enter."""
        code = {"Tab": 9, "Enter": 13, "PageUp": 33, "End": 35, "Home": 36, "ArrowLeft": 37,
                "ArrowRight": 39}[key]  # fmt: skip
        values = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        text = {"text": "\r"} if key == "Enter" else {}
        for _ in range(times):
            kind = "keyDown" if text else "rawKeyDown"
            self.call("Input.dispatchKeyEvent", type=kind, **values, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", **values)

    def picture(self, path, selector="html"):
        """A PNG of one element; returns (H, W, 3) in [0, 1]."""
        box = self.value(
            f"(r => ({{x: 0, y: r.y + scrollY, width: innerWidth, height: r.height}}))"
            f"(document.querySelector({selector!r}).getBoundingClientRect())"
        )
        shot = self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True,
            clip={**box, "scale": 1},
        )  # fmt: skip
        path.write_bytes(base64.b64decode(shot["data"]))
        return imread(path)[..., :3]
