"""Write the names of countries in six languages, one file per language: python examples/make_countries.py [--output-dir DIR]

Only names that are unique to one language: Malta is Malta in several. They are those of the Unicode CLDR (Unicode license),
from the package Babel (BSD license): pip install "weft[demo]".
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

LANGUAGES = {"English": "en", "Finnish": "fi", "French": "fr", "German": "de", "Polish": "pl", "Turkish": "tr"}


def names(language: str) -> list[str]:
    """Of every country, in the order of the alphabet; numbers are parts of the world, Z... is nowhere."""
    from babel import Locale

    found = Locale.parse(language).territories
    return sorted({name for code, name in found.items() if code.isalpha() and code[0] not in "XZ"})


def texts() -> dict[str, str]:
    """What every file holds, by its name."""
    found = {name: names(code) for name, code in LANGUAGES.items()}
    shared = Counter(name for each in found.values() for name in each)
    return {f"{name}.txt": "".join(f"{one}\n" for one in each if shared[one] == 1) for name, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output-dir", type=Path, default=Path(__file__).parent / "data" / "countries", help="output directory"
    )
    chosen = parser.parse_args()
    chosen.output_dir.mkdir(parents=True, exist_ok=True)
    for name, text in texts().items():
        (chosen.output_dir / name).write_bytes(text.encode())


if __name__ == "__main__":
    main()
