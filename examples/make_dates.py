"""Write dates as people write them, and in ISO format: python examples/make_dates.py [--output FILE] [--number N]

    15 novembre 2026        2026-11-15
    sunnuntai 15. marraskuuta 2026
    Nov 15, 2026

No day occurs twice, so no test day is in the training data in any language or format. Names and formats are those of the
Unicode CLDR (Unicode license), from the package Babel (BSD license): pip install "weft[demo]".
"""

from __future__ import annotations

import argparse
import random
from datetime import date, timedelta
from pathlib import Path

NUMBER = 900
FIRST, DAYS = date(1900, 1, 1), 201 * 365  # to 2100
LANGUAGES = ["cs", "de", "el", "en", "es", "fi", "fr", "it", "nl", "pl", "pt", "ru", "sv", "tr"]
FORMATS = ["medium", "long", "full"]


def written(day: date, language: str, form: str) -> str:
    """The day in words and numbers, on one line; where a language's medium form has numbers alone, its long one."""
    from babel.dates import format_date

    text = format_date(day, format=form, locale=language)
    if not any(letter.isalpha() for letter in text):
        text = format_date(day, format="long", locale=language)
    return " ".join(text.split())


def pairs(number: int = NUMBER, *, seed: int = 0) -> list[tuple[str, str]]:
    """So many days, each once, in a language and a format by chance."""
    chance = random.Random(seed).random  # of all that the module offers, promised to stay the same
    days = sorted(range(DAYS), key=lambda _: chance())[:number]
    found = []
    for day in (FIRST + timedelta(days=number) for number in days):
        language, form = (options[int(chance() * len(options))] for options in (LANGUAGES, FORMATS))
        found.append((written(day, language, form), day.isoformat()))
    return found


def text(number: int = NUMBER) -> str:
    return "source\ttarget\n" + "".join(f"{source}\t{target}\n" for source, target in pairs(number))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "data" / "dates.tsv")
    parser.add_argument("--number", type=int, default=NUMBER, help=f"of days ({NUMBER})")
    chosen = parser.parse_args()
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_bytes(text(chosen.number).encode())


if __name__ == "__main__":
    main()
