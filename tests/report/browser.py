"""Headless Chromium over the DevTools pipe: standard library only, no port, no driver."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

DEADLINE_S = 60.0
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    "--remote-debugging-pipe",
)


def _high_pipe() -> tuple[int, int]:
    """A pipe whose descriptors are none of those that the browser expects."""
    pair = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in pair]
    for end in pair:
        os.close(end)
    return high[0], high[1]


class PageError(AssertionError):
    """A script on the page failed, or the browser did not answer in time."""


class Browser:
    """One page in its own browser and profile. Every console error and every request is recorded."""

    def __init__(self, program: str, profile: Path, size: tuple[int, int] = (1280, 900)) -> None:
        self.requests: list[str] = []
        self.problems: list[str] = []
        self._buffer = b""
        self._id = 0
        self._session: str | None = None
        self._loaded = False
        to_browser, self._to = _high_pipe()
        self._from, from_browser = _high_pipe()
        arguments = [program, *FLAGS, f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}"]
        # The browser reads commands on descriptor 3 and answers on 4.
        moved = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", moved, "bash", *arguments, "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        target = self._first_page()
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.resize(*size)

    def _first_page(self) -> str:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            pages = [t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page"]
            if pages:
                return str(pages[0]["targetId"])
        raise PageError("the browser opened no page")

    def send(self, method: str, **parameters: object) -> dict[str, Any]:
        self._id += 1
        command: dict[str, object] = {"id": self._id, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._to, json.dumps(command).encode() + b"\0")
        while True:
            message = self._receive()
            if message.get("id") == self._id:
                if "error" in message:
                    raise PageError(f"{method}: {message['error']['message']}")
                result: dict[str, Any] = message["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._from, 1 << 20)
            if not chunk:
                raise PageError("the browser closed its pipe")
            self._buffer += chunk
        text, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, body = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(body["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = body["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and body["entry"]["level"] == "error":
            self.problems.append(body["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and body["type"] in {"error", "assert"}:
            self.problems.append(str(body["args"]))
        elif method == "Page.loadEventFired":
            self._loaded = True

    def open(self, path: Path, fragment: str = "") -> None:
        self._loaded = False
        self.send("Page.navigate", url="about:blank")
        while not self._loaded:
            self._receive()
        self._loaded = False
        self.send("Page.navigate", url=path.as_uri() + fragment)
        while not self._loaded:
            self._receive()

    def open_report(self, path: Path, fragment: str = "") -> None:
        self.open(path, fragment)
        self.wait("document.documentElement.dataset.ready === '1'")

    def run(self, expression: str) -> Any:
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise PageError(answer["exceptionDetails"].get("exception", {}).get("description", expression))
        return answer["result"].get("value")

    def wait(self, expression: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not self.run(expression):
            if time.monotonic() > deadline:
                raise PageError(f"never came true: {expression}; {self.problems}")
            self.run("new Promise(requestAnimationFrame)")

    def resize(self, width: int, height: int, scale: float = 1) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )

    def media(self, scheme: str = "light", kind: str = "") -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", media=kind, features=features)

    def scripts(self, on: bool) -> None:
        self.send("Emulation.setScriptExecutionDisabled", value=not on)

    def place_of(self, selector: str) -> tuple[float, float, float, float]:
        """Left, top, width and height of an element, after it was scrolled into view."""
        box = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); "
            "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect(); "
            "return [b.left, b.top, b.width, b.height]; })()"
        )
        return box[0], box[1], box[2], box[3]

    def click(self, selector: str) -> None:
        left, top, width, height = self.place_of(selector)
        self.click_at(left + width / 2, top + height / 2)

    def click_at(self, x: float, y: float, count: int = 1) -> None:
        self.mouse("mouseMoved", x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(
                kind, x, y, button="left", buttons=1 if kind == "mousePressed" else 0, clickCount=count
            )

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        self.mouse("mouseMoved", *start)
        self.mouse("mousePressed", *start, button="left", buttons=1, clickCount=1)
        for k in range(1, 6):
            x, y = (a + (b - a) * k / 5 for a, b in zip(start, end, strict=True))
            self.mouse("mouseMoved", x, y, button="left", buttons=1)
        self.mouse("mouseReleased", *end, button="left", buttons=0, clickCount=1)

    def mouse(self, kind: str, x: float, y: float, **more: object) -> None:
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def wheel(self, x: float, y: float, delta: float, ctrl: bool = False) -> None:
        self.mouse("mouseWheel", x, y, deltaX=0, deltaY=delta, modifiers=2 if ctrl else 0)

    def press(self, key: str, shift: bool = False) -> None:
        text = {"text": key} if len(key) == 1 else {}
        modifiers = 8 if shift else 0
        codes = {"Enter": 13, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        code = codes.get(key, 0)
        self.send(
            "Input.dispatchKeyEvent",
            type="keyDown",
            key=key,
            modifiers=modifiers,
            windowsVirtualKeyCode=code,
            **text,
        )
        self.send(
            "Input.dispatchKeyEvent", type="keyUp", key=key, modifiers=modifiers, windowsVirtualKeyCode=code
        )

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self) -> bytes:
        return base64.b64decode(self.send("Page.printToPDF", printBackground=False)["data"])

    def close(self) -> None:
        self._session = None
        try:
            self.send("Browser.close")
        except (PageError, OSError):
            pass
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
