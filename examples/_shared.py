"""Shared by the scripts that generate the example data."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
DATA = Path(__file__).parent / "data"


class StableRandom:
    """Random choices based on `random()`, the only function whose results are the same in all versions of Python."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed).random

    def below(self, limit: int) -> int:
        return int(self.random() * limit)

    def choice(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def word(self, words: str) -> str:
        """One of several space-separated words."""
        return self.choice(words.split())


def distinct(generate: Callable[[StableRandom], tuple[str, T]], number: int, rng: StableRandom) -> list[tuple[str, T]]:
    """`number` pairs with different first texts, so that no test text is in the training data."""
    pairs: dict[str, T] = {}
    while len(pairs) < number:
        text, target = generate(rng)
        pairs.setdefault(text, target)
    return list(pairs.items())


def pairs_tsv(pairs: Sequence[tuple[str, str]]) -> str:
    """A TSV file with the columns source and target."""
    return "source\ttarget\n" + "".join(f"{source}\t{target}\n" for source, target in pairs)


def write_files(description: str | None, texts: Callable[[int], dict[str, str]], unit: str) -> None:
    """Parse --output-dir and --times, and write `texts(times)`, the contents by file name."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, default=DATA, help="output directory (examples/data)")
    parser.add_argument("--times", type=int, default=1, help=f"multiply the number of {unit} (1)")
    args = parser.parse_args()
    for name, text in texts(args.times).items():
        path = args.output_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
