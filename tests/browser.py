"""A real browser to look at pages with: Debian's Chromium, driven by playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def _missing(reason: str) -> None:
    """Skip; where WEFT_BROWSER says that everything must run, fail instead: a test that is never run proves nothing."""
    (pytest.fail if os.environ.get("WEFT_BROWSER") else pytest.skip)(reason)


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser; whoever asks for it is skipped, with the reason, where there is none."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("playwright is not installed: pip install playwright")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        _missing("there is no Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()
