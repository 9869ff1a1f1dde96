"""Finds words that the project does not use: in Markdown, docstrings, comments, help texts and messages.

    python tools/lint_words.py PATH...          a line for each hit; exit code 1 if there is one
    python tools/lint_words.py --count PATH...  hits by pattern

CONTRIBUTING.md says how the project writes.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SUFFIXES = (".py", ".md", ".toml", ".js", ".css")
BANNED = {  # pattern: what to write instead
    r"\bunless (given|told)( otherwise)?\b": "Default: ...",
    r"\bis needed and not given\b": "required option is missing",
    r"\bno such\b": "unknown ..., ... not found",
    r"\bthan it reads\b|\bthan the model reads\b": "too long for the model",
    r"\b(stands?|standing) (in|there|for itself|beside|behind|before|after|at)\b": "is in, occurs, precedes",
    r"\blikewise\b": "repeat the description",
    r"\bhow alike\b|\bare alike\b|\blike lengths?\b": "similar; of similar length",
    r"\bone upon the other\b": "number of layers",
    r"\bcan't be (read|used|moved|made)\b": "cannot read ...",
    r"(?<!here )\bis no [a-z.]+\b": "is not a ...",
    r"\bwhat (it|they|the model) (says?|said)\b": "the prediction, the output",
    r"\bwhere (it|the model) look(s|ed)\b": "attention",
    r"\bspoke for\b": "attribution",
    r"\bcure\b": "fix",
    r"\b(two|one)[-_ ]way\b": "bidirectional, unidirectional",
    r"\bthaw\w*\b": "unfreeze",
    r"\bheld[- ]?out\b": "validation data, test data",
    r"\bmay be given several times\b": "Repeatable.",
    r"\b(a|the) share of\b": "a fraction of",
    r"\bso (many|long|much|near|large)\b": "this many",
    r"\bfrom chance\b": "from random initialization",
    r"\bof (runs|those|labels|tags|pairs|answers) (that|a line|it)\b": "for runs that",
    r"\b(tokens|lines|texts|steps|bytes) a second\b|\bone a (line|layer|CPU|head)\b": "per second, per line",
    r"\b(behaviou?rs|colours?|normalis\w*|initialis\w*|labell\w*|centred|optimis\w*|tokenis\w*|summaris\w*|minimis\w*)\b": (
        "US spelling"
    ),
    r"\d %(?! ?\d)": "95% (no space)",
    "\u2014": "a comma, a colon or a new sentence",
    r"\bfolders?\b": "directory",
    r"\bgaps?\b(?!:)": "mask",
}
PATTERNS = {re.compile(pattern): better for pattern, better in BANNED.items()}
DATA = {"examples": {"colour", "colours"}}  # words in the texts that generators of example data write


def _files(paths: list[str]) -> Iterator[Path]:
    for path in map(Path, paths):
        yield from [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)


def hits(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, banned words and what to write instead."""
    for number, line in enumerate(text.split("\n"), 1):
        for pattern, better in PATTERNS.items():
            for match in pattern.finditer(line):
                yield number, match[0], better


def main(args: list[str]) -> int:
    count = args[:1] == ["--count"]
    totals: Counter[str] = Counter()
    for path in _files(args[count:]):
        excused = DATA.get(path.parts[0], set())
        for number, words, better in hits(path.read_text(encoding="utf-8")):
            if words in excused:
                continue
            totals[better] += 1
            if not count:
                print(f"{path}:{number}: {words!r}; use: {better}")
    if count:
        for better, total in totals.most_common():
            print(f"{total:6}  {better}")
        print(f"{totals.total():6}  in total")
    return int(bool(totals))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
