"""Write minimal pairs about the stories: python examples/make_agreement.py [--output FILE]

suites/agreement.tsv  part of a correct story, and the same with one or two wrong words:
                      verb     agrees with its subject, over a clause with a noun of the same number, of the other
                               number (an attractor), or without a clause
                      pronoun  she or he, as the hero's name requires
                      home     at the end the hero goes home to where the story began
"""

from __future__ import annotations

import argparse
import random
import runpy
from pathlib import Path

DATA = Path(__file__).parent / "data"
EACH = 40  # pairs of each kind


def verbs(words: dict[str, list[tuple[str, str]]], chance: random.Random, attractors: int | None) -> tuple[str, str]:
    """'The owl that the cats see waits.' and '... wait.'; without a clause where `attractors` is None."""

    def pick(name: str) -> tuple[str, str]:
        return words[name][int(chance.random() * len(words[name]))]

    number = int(chance.random() < 0.5)
    subject = f"The {pick('ANIMALS')[number]}"
    if attractors is not None:
        other = number ^ attractors
        subject += f" that the {pick('ANIMALS')[other]} {pick('SEES')[other]}"
    forms = pick("DOES")
    return f"{subject} {forms[number]}.", f"{subject} {forms[1 - number]}."


def pairs(seed: int = 3) -> list[tuple[str, str, str, str]]:
    """Good, bad, phenomenon, attractors; only `random()` is used, which alone is promised to stay the same."""
    words, chance = runpy.run_path(str(DATA / "make.py")), random.Random(seed)
    heroes, places, things = words["HEROES"], words["PLACES"], words["THINGS"]
    found: dict[tuple[str, str, str, str], None] = {}
    for wanted, attractors in (("verb", None), ("verb", 0), ("verb", 1), ("pronoun", None), ("home", None)):
        before = len(found)
        while len(found) < before + EACH:
            name, pronoun, owner = heroes[int(chance.random() * len(heroes))]
            place, other = (places[int(chance.random() * len(places))] for _ in range(2))
            start = f"{name} lives by the {place}."
            if wanted == "verb":
                good, bad = (f"{start} {sentence}" for sentence in verbs(words, chance, attractors))
            elif wanted == "pronoun":
                thing = things[int(chance.random() * len(things))]
                shown = [(pronoun, owner), ("he", "his") if pronoun == "she" else ("she", "her")]
                good, bad = (f"{start} {one.capitalize()} takes {own} {thing} to the {other}." for one, own in shown)
            else:
                good, bad = (f"{start} In the evening {name} goes home to the {end}." for end in (place, other))
            if good != bad:
                found[good, bad, wanted, "" if wanted != "verb" else str(attractors or 0)] = None
    # by turns, so that the first lines have some of everything
    rows = list(found)
    return [rows[start + at] for at in range(EACH) for start in range(0, len(rows), EACH)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=DATA.parent / "suites" / "agreement.tsv")
    lines = [("good", "bad", "phenomenon", "attractors"), *pairs()]
    parser.parse_args().output.write_bytes("".join("\t".join(line) + "\n" for line in lines).encode())
