"""A headless browser for pages of ours: what is in them, and how they look."""

from __future__ import annotations

import shutil
import subprocess

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
