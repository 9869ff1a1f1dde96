"""Chromium, driven by Playwright, to test HTML pages in a real browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

EXECUTABLES = ("chromium", "chromium-browser", "google-chrome")


def _missing(reason: str) -> None:
    """Skip the test, or fail it if WEFT_BROWSER is set (in CI a skipped test would prove nothing)."""
    (pytest.fail if os.environ.get("WEFT_BROWSER") else pytest.skip)(reason)


@contextmanager
def chromium() -> Iterator[Any]:
    """A running browser. The test is skipped if Playwright or Chromium is not installed."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("playwright is not installed: pip install playwright")
    path = next(filter(None, map(shutil.which, EXECUTABLES)), None)
    if path is None:
        _missing("there is no Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()
