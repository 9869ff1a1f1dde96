"""Write the names of countries in six languages, one file per language: python examples/make_countries.py [--output-dir DIR]

Only names that are unique to one language: Malta is Malta in several. They are those of the Unicode CLDR (Unicode license),
from the package Babel (BSD license): pip install Babel.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

LANGUAGES = {"English": "en", "Finnish": "fi", "French": "fr", "German": "de", "Polish": "pl", "Turkish": "tr"}


def names(locale: str) -> list[str]:
    """The names of all countries in alphabetical order; other codes are those of continents (digits) and unknown regions."""
    from babel import Locale

    territories = Locale.parse(locale).territories
    return sorted({name for code, name in territories.items() if code.isalpha() and code[0] not in "XZ"})


def texts() -> dict[str, str]:
    """The contents of all files, by name."""
    by_language = {language: names(locale) for language, locale in LANGUAGES.items()}
    counts = Counter(name for language_names in by_language.values() for name in language_names)
    return {
        f"{language}.txt": "".join(f"{name}\n" for name in language_names if counts[name] == 1)
        for language, language_names in by_language.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output-dir", type=Path, default=Path(__file__).parent / "data" / "countries", help="output directory"
    )
    args = parser.parse_args()
    args.output_dir.mkdir(parents=True, exist_ok=True)
    for name, text in texts().items():
        (args.output_dir / name).write_bytes(text.encode())


if __name__ == "__main__":
    main()
