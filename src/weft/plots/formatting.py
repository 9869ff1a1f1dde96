"""Text and numbers for HTML and SVG: escaped, without invisible characters, with significant digits only."""

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
MISSING = "\u2013"  # an en dash
MINUS = "\u2212"


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def visible(text: str) -> str:
    """The text with invisible and control characters written as escapes."""
    return HIDDEN.sub(_escaped, CONTROL.sub(_escaped, text))


def on_one_line(text: str) -> str:
    """The text on one line: newlines and tabs as symbols."""
    return visible(text).replace("\n", "⏎").replace("\t", "⇥")


def html(text: object) -> str:
    """The text escaped for HTML, between tags or in an attribute."""
    return escape(visible(str(text)))


def truncate(text: str, max_chars: int) -> str:
    """The text up to `max_chars` characters and the number of characters left out; never between a letter and its accents."""
    if len(text) <= max_chars:
        return text
    while max_chars > 0 and unicodedata.combining(text[max_chars]):
        max_chars -= 1
    return f"{text[:max_chars]}… ({len(text) - max_chars:,} more characters)"


def finite(value: Any) -> float | None:
    """The value if it is a finite number, else None."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def decimals(values: Iterable[Any]) -> int:
    """The number of decimals that shows the smallest of the values with two digits; 2 without nonzero values."""
    nonzero = [value for value in map(finite, values) if value]
    return min(4, max(0, 1 - math.floor(math.log10(min(map(abs, nonzero)))))) if nonzero else 2


def number(value: Any, num_decimals: int) -> str:
    """A number with `num_decimals` decimals; infinity as a symbol, a missing value as a dash."""
    if not isinstance(value, int | float) or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    return f"{value:,.{num_decimals}f}".replace("-", MINUS)


def short(value: Any) -> str:
    """1234567 -> '1.23M'."""
    x = finite(value)
    if x is None:
        return MISSING
    for unit in ("", "k", "M", "B"):
        if abs(x) < 999.5:
            return f"{x:.3g}{unit}"
        x /= 1000
    return f"{x:,.3g}T"


def size(value: Any) -> str:
    """1234567 -> '1.23 MB'."""
    x = finite(value)
    if x is None:
        return MISSING
    for unit in ("B", "kB", "MB", "GB"):
        if abs(x) < 999.5:
            return f"{x:.3g} {unit}"
        x /= 1000
    return f"{x:,.3g} TB"


def duration(seconds: Any) -> str:
    """75.2 -> '1m15s'."""
    seconds = finite(seconds)
    if seconds is None:
        return MISSING
    if seconds < 59.95:
        return f"{seconds:.1f}s" if seconds >= 0.05 or not seconds else f"{seconds:.1g}s"
    total = round(seconds)
    if total < 3600:
        return f"{total // 60}m{total % 60:02d}s"
    return f"{total // 3600}h{total // 60 % 60:02d}m"


def p_value(p: Any) -> str:
    """A p-value with three decimals."""
    p = finite(p)
    if p is None:
        return MISSING
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def score_name(name: str) -> str:
    """bits_per_char -> bits per char, f1_macro -> F1 macro; for metrics without a label."""
    return re.sub(r"\bf1\b", "F1", name.replace("_", " "))
