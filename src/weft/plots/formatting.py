"""Texts and numbers for pages and drawings: invisible characters escaped, markup escaped, significant digits only."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable
from html import escape
from typing import Any

# characters that reverse, hide or join their neighbors; joiners stay, because some scripts need them
HIDDEN = re.compile(r"[\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
MISSING = "\u2013"  # a dash
MINUS = "\u2212"


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def visible(text: str) -> str:
    """The text with invisible and control characters as escapes."""
    return HIDDEN.sub(_escape, CONTROL.sub(_escape, text))


def on_one_line(text: str) -> str:
    """The same on one line: newlines and tabs become symbols."""
    return visible(text).replace("\n", "⏎").replace("\t", "⇥")


def html(text: object) -> str:
    """A text that is safe in HTML, between tags or in an attribute."""
    return escape(visible(str(text)))


def cut(text: str, length: int) -> str:
    """At most `length` characters and the number of those left out; never splits a character from its accents."""
    if len(text) <= length:
        return text
    while length > 0 and unicodedata.combining(text[length]):
        length -= 1
    return f"{text[:length]}… ({len(text) - length:,} more characters)"


def finite(value: Any) -> float | None:
    """A finite number, else None."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def decimals(values: Iterable[Any]) -> int:
    """Decimals that show the smallest value with two digits. Default: two."""
    nonzero = [value for value in map(finite, values) if value]
    return min(4, max(0, 1 - math.floor(math.log10(min(map(abs, nonzero)))))) if nonzero else 2


def number(value: Any, places: int) -> str:
    """A number with `places` decimals; a symbol for infinity, a dash for a missing value."""
    if not isinstance(value, int | float) or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    return f"{value:,.{places}f}".replace("-", MINUS)


def short(value: Any) -> str:
    """1234567 -> '1.23 M'."""
    scaled = finite(value)
    if scaled is None:
        return MISSING
    for unit in ("", " k", " M", " G"):
        if abs(scaled) < 999.5:
            return f"{scaled:.3g}{unit}"
        scaled /= 1000
    return f"{scaled:,.3g} T"


def size(value: Any) -> str:
    """1234567 -> '1.23 MB'."""
    text = short(value)
    return text if text == MISSING else f"{text}B" if " " in text else f"{text} B"


def duration(seconds: Any) -> str:
    """75.2 -> '1 min 15 s'."""
    elapsed = finite(seconds)
    if elapsed is None:
        return MISSING
    if elapsed < 59.95:
        return f"{elapsed:.1f} s" if elapsed >= 0.05 or not elapsed else f"{elapsed:.1g} s"
    total = round(elapsed)
    if total < 3600:
        return f"{total // 60} min {total % 60:02d} s"
    return f"{total // 3600} h {total // 60 % 60:02d} min"


def p_value(p: Any) -> str:
    """A p-value with three decimals, or < 0.001."""
    value = finite(p)
    if value is None:
        return MISSING
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def score_name(name: str) -> str:
    """A label for a metric that has none: bits_per_char -> bits/char."""
    return re.sub(r"\bf1\b", "F1", name.replace("_per_", "/").replace("_", " "))
