"""Write dates as people write them, and in ISO format: python examples/make_dates.py [--output FILE] [--number N]

    15 novembre 2026        2026-11-15
    sunnuntai 15. marraskuuta 2026
    Nov 15, 2026

No day occurs twice, so no test day is in the training data in any language or format. Names and formats are those of the
Unicode CLDR (Unicode license), from the package Babel (BSD license): pip install Babel.
"""

from __future__ import annotations

import argparse
import random
from datetime import date, timedelta
from pathlib import Path

NUM_DAYS = 900
FIRST_DAY, CALENDAR_DAYS = date(1900, 1, 1), 201 * 365  # to 2100
LANGUAGES = ["cs", "de", "el", "en", "es", "fi", "fr", "it", "nl", "pl", "pt", "ru", "sv", "tr"]
FORMATS = ["medium", "long", "full"]


def format_day(day: date, language: str, format: str) -> str:
    """A day on one line, with at least one word: some medium formats have only digits and are replaced by the long format."""
    from babel.dates import format_date

    text = format_date(day, format=format, locale=language)
    if not any(letter.isalpha() for letter in text):
        text = format_date(day, format="long", locale=language)
    return " ".join(text.split())


def pairs(number: int = NUM_DAYS, *, seed: int = 0) -> list[tuple[str, str]]:
    """Distinct random days, each in a random language and format, with their ISO format."""
    random_fraction = random.Random(seed).random  # the only function that is stable across versions of Python
    offsets = sorted(range(CALENDAR_DAYS), key=lambda _: random_fraction())[:number]
    rows = []
    for day in (FIRST_DAY + timedelta(days=offset) for offset in offsets):
        language, format = (options[int(random_fraction() * len(options))] for options in (LANGUAGES, FORMATS))
        rows.append((format_day(day, language, format), day.isoformat()))
    return rows


def text(number: int = NUM_DAYS) -> str:
    return "source\ttarget\n" + "".join(f"{source}\t{target}\n" for source, target in pairs(number))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "data" / "dates.tsv")
    parser.add_argument("--number", type=int, default=NUM_DAYS, help=f"number of days ({NUM_DAYS})")
    args = parser.parse_args()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_bytes(text(args.number).encode())


if __name__ == "__main__":
    main()
