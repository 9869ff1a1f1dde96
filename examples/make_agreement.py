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
from typing import Any, TypeVar

T = TypeVar("T")
DATA = Path(__file__).parent / "data"
PAIRS_PER_GROUP = 40
GROUPS = (("verb", None), ("verb", 0), ("verb", 1), ("pronoun", None), ("home", None))  # phenomenon, attractors


def _choice(rng: random.Random, options: list[T]) -> T:
    """A random option, the same in all versions of Python: only `random()` is stable."""
    return options[int(rng.random() * len(options))]


def verb_sentences(words: dict[str, Any], rng: random.Random, attractors: int | None) -> tuple[str, str]:
    """'The owl that the cats see waits.' and '... wait.'; without the clause if `attractors` is None."""
    number = int(rng.random() < 0.5)
    subject = f"The {_choice(rng, words['ANIMALS'])[number]}"
    if attractors is not None:
        clause_number = number ^ attractors
        subject += f" that the {_choice(rng, words['ANIMALS'])[clause_number]} {_choice(rng, words['SEES'])[clause_number]}"
    forms = _choice(rng, words["DOES"])
    return f"{subject} {forms[number]}.", f"{subject} {forms[1 - number]}."


def pairs(seed: int = 3) -> list[tuple[str, str, str, str]]:
    """Distinct rows: good and bad text, phenomenon, number of attractors."""
    words, rng = runpy.run_path(str(DATA / "make.py")), random.Random(seed)
    rows: dict[tuple[str, str, str, str], None] = {}
    for i, (phenomenon, attractors) in enumerate(GROUPS, 1):
        while len(rows) < i * PAIRS_PER_GROUP:
            name, pronoun, possessive = _choice(rng, words["HEROES"])
            place, other_place = (_choice(rng, words["PLACES"]) for _ in range(2))
            start = f"{name} lives by the {place}."
            if phenomenon == "verb":
                good, bad = (f"{start} {sentence}" for sentence in verb_sentences(words, rng, attractors))
            elif phenomenon == "pronoun":
                thing = _choice(rng, words["THINGS"])
                wrong = ("he", "his") if pronoun == "she" else ("she", "her")
                good, bad = (
                    f"{start} {subject.capitalize()} takes {owner} {thing} to the {other_place}."
                    for subject, owner in ((pronoun, possessive), wrong)
                )
            else:
                good, bad = (f"{start} In the evening {name} goes home to the {end}." for end in (place, other_place))
            if good != bad:
                rows[good, bad, phenomenon, str(attractors or 0) if phenomenon == "verb" else ""] = None
    # interleave the groups, so that the first lines have all phenomena
    ordered = list(rows)
    return [ordered[i + j] for i in range(PAIRS_PER_GROUP) for j in range(0, len(ordered), PAIRS_PER_GROUP)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=DATA.parent / "suites" / "agreement.tsv")
    lines = [("good", "bad", "phenomenon", "attractors"), *pairs()]
    parser.parse_args().output.write_bytes("".join("\t".join(line) + "\n" for line in lines).encode())
