"""Tables in a terminal: columns are aligned for characters of any display width."""

from __future__ import annotations

import pytest

from weft.text.table_layout import align, columns, display_width, wrap


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("abc", 3),
        ("é", 1),
        ("e\u0301", 1),
        ("日本", 4),
        ("ｱ", 1),
        ("Ａ", 2),
        ("한", 2),
        ("के", 1),
        ("😀", 2),
        ("\u1112\u1161\u11ab", 2),
        ("❤", 1),
        ("❤\ufe0f", 2),
        ("😀\ufe0f", 2),
        ("1\ufe0f\u20e3", 2),
        ("👍🏽", 2),
        ("👨\u200d👩\u200d👧", 2),
    ],
)
def test_display_width(text, expected):
    assert display_width(text) == expected


def test_columns_are_aligned():
    assert align([["name", "n"], ["日本語", "12"], ["e\u0301", "3"]]) == ["name     n", "日本語  12", "e\u0301        3"]
    assert align([["a", "b", "c"], ["aa", "bb", "cc"]], left=(1,)) == [" a  b    c", "aa  bb  cc"]
    assert columns([["日", "x"], ["abc", "yy"]], left=2) == "日   x\nabc  yy\n"


def test_rows_must_have_equal_length():
    with pytest.raises(ValueError, match="zip"):
        align([["a", "b"], ["c"]])


def test_words_are_wrapped_by_display_width():
    assert wrap("head  ", "a bc def ghij", 12) == "head  a bc\n      def\n      ghij"
    assert wrap("語 ", "日本 語の 長い", 9) == "語 日本\n   語の\n   長い"
    assert wrap("語 ", "日本 語の 長い", 12) == "語 日本 語の\n   長い"
    assert wrap("- ", "a longerthanthat b", 6) == "- a\n  longerthanthat\n  b"
    assert wrap("- ", "", 6) == ""
