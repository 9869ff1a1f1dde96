"""Write the questions and passages of the examples, all generated:
python examples/make_answers.py [--output-dir DIR] [--times N]

purchases.tsv   who bought what, where and when: a question, a passage, and the span that answers it with its offset; empty if
                the passage has no answer

The data is regular, so scores on it say nothing about real text. --times 10 makes ten times as many questions. The file in the
repository was made without it.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

FIRST = "Ada Otto Nora Emil Clara Hugo Ines Karl Lina Milo Rosa Theo"
FAMILY = "Moner Tasen Bivic Rado Kelner Losen"
THINGS = "lamp kettle piano ladder clock mirror kite violin chair table"
COLOURS = "red blue green black white brown"
TOWNS = "Oslo Lima Cairo Delhi Rome Paris Quito"
DAYS = "Monday Tuesday Thursday Friday Sunday"


class Chance:
    """Only `random()` is used: of all that the module offers, it alone is promised to stay the same."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed).random

    def pick(self, options: list[str]) -> str:
        return options[int(self.random() * len(options))]

    def one(self, words: str) -> str:
        return self.pick(words.split())

    def maybe(self, text: str, share: float = 0.75) -> str:
        return text if self.random() < share else ""


def question(chance: Chance) -> tuple[str, str, str]:
    """A question, a passage, and its answer, which may be empty."""
    who = chance.one(FIRST) + chance.maybe(" " + chance.one(FAMILY), 0.4)
    thing, colour = chance.one(THINGS), chance.maybe(chance.one(COLOURS))
    town, day = chance.maybe(chance.one(TOWNS)), chance.maybe(chance.one(DAYS))
    where, when = f" in {town}" if town else "", f" on {day}" if day else ""
    end = chance.pick([where + when, when + where])
    what = f"{colour} {thing}".strip()
    passage = chance.pick([f"{who} bought a {what}{end}.", f"A {what} was sold to {who}{end}."])
    forms = {
        "Who bought the {}?": who,
        "Where was the {} bought?": town,
        "When was the {} bought?": day,
        "What colour is the {}?": colour,
    }
    form = chance.pick(list(forms))
    return form.format(thing), passage, forms[form]


def text(*, times: int = 1) -> str:
    """What the file holds; no question comes twice with one passage."""
    chance, found = Chance(21), dict[tuple[str, str], str]()
    while len(found) < 450 * times:
        asked, passage, answer = question(chance)
        found.setdefault((asked, passage), answer)
    rows = [
        f"{asked}\t{passage}\t{answer}\t{passage.index(answer) if answer else ''}\n"
        for (asked, passage), answer in found.items()
    ]
    return "question\tpassage\tanswer\tanswer_start\n" + "".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output-dir", type=Path, default=Path(__file__).parent / "data", help="output directory (examples/data)"
    )
    parser.add_argument("--times", type=int, default=1, help="multiply the number of questions (1)")
    chosen = parser.parse_args()
    chosen.output_dir.mkdir(parents=True, exist_ok=True)
    (chosen.output_dir / "purchases.tsv").write_bytes(text(times=chosen.times).encode())


if __name__ == "__main__":
    main()
