"""Texts and numbers as a page shows them: nothing invisible, nothing that could be markup, as many digits as mean something."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable
from html import escape
from typing import Any

# what would turn around, hide or join the letters beside it; joiners are left, for scripts that need them
HIDDEN = re.compile(r"[\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
MISSING = "\u2013"  # a dash
MINUS = "\u2212"


def _spelt(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def visible(text: str) -> str:
    """A text in which every letter can be seen: what is invisible or steers the reader's screen is spelt as an escape."""
    return HIDDEN.sub(_spelt, CONTROL.sub(_spelt, text))


def on_one_line(text: str) -> str:
    """The same on one line: ends of lines, and tabs, by a sign."""
    return visible(text).replace("\n", "⏎").replace("\t", "⇥")


def html(text: object) -> str:
    """Any text as it may stand in a page, between tags or in an attribute."""
    return escape(visible(str(text)))


def cut(text: str, letters: int) -> str:
    """At most so many letters, and how many there would be more; never between a letter and its accents."""
    if len(text) <= letters:
        return text
    while letters > 0 and unicodedata.combining(text[letters]):
        letters -= 1
    return f"{text[:letters]}… ({len(text) - letters:,} more characters)"


def finite(value: Any) -> float | None:
    """A number that can be drawn, else None."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def decimals(values: Iterable[Any]) -> int:
    """Decimals that show the smallest of these widths with two digits; two where there is none."""
    known = [value for value in map(finite, values) if value]
    return min(4, max(0, 1 - math.floor(math.log10(min(map(abs, known)))))) if known else 2


def number(value: Any, places: int) -> str:
    """A number with so many decimals; infinity by its sign, nothing by a dash."""
    if not isinstance(value, int | float) or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    return f"{value:,.{places}f}".replace("-", MINUS)


def short(value: Any) -> str:
    """1234567 -> '1.23 M'."""
    known = finite(value)
    if known is None:
        return MISSING
    for unit in ("", " k", " M", " G"):
        if abs(known) < 999.5:
            return f"{known:.3g}{unit}"
        known /= 1000
    return f"{known:,.3g} T"


def size(value: Any) -> str:
    """1234567 -> '1.23 MB'."""
    known = short(value)
    return known if known == MISSING else f"{known}B" if " " in known else f"{known} B"


def duration(seconds: Any) -> str:
    """75.2 -> '1 min 15 s'."""
    known = finite(seconds)
    if known is None:
        return MISSING
    if known < 59.95:
        return f"{known:.1f} s" if known >= 0.05 or not known else f"{known:.1g} s"
    whole = round(known)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole // 60 % 60:02d} min"


def p_value(p: Any) -> str:
    """A probability with as many digits as a test by resampling has."""
    known = finite(p)
    if known is None:
        return MISSING
    return "< 0.001" if known < 0.001 else f"{known:.3f}"


def score_name(name: str) -> str:
    """bits_per_char -> bits/character, f1_macro -> macro F1; for what has no label of its own."""
    return re.sub(r"\bf1\b", "F1", name.replace("_per_", "/").replace("_", " "))
