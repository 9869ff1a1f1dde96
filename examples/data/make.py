"""Write the texts of the examples, all generated: python examples/data/make.py

hello.txt   one word, for the smallest network
names.txt   invented names, one per line, made of syllables
tales.txt   short stories, one per line, from a grammar with three long-distance dependencies: a verb agrees with its subject
            over a clause between them, a pronoun agrees with the hero, and the hero's name returns at the end
yes-ok.txt  a hundred answers, chosen so that trigrams have the probabilities of a small tree
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

NAMES, TALES = 800, 500

# fmt: off
FIRST = ["a", "be", "ca", "da", "e", "fio", "gi", "ha", "i", "jo", "ka", "li", "ma", "no", "o", "pe", "ra", "si", "ta", "vi"]
MIDDLE = ["l", "lli", "m", "mma", "n", "nna", "r", "ri", "ro", "s", "sha", "t", "tti", "v", "vi", "z", "zo", "le", "ne", "do"]
LAST = {
    "vowel": ["n", "s", "th", "r", "l", "nna", "lle", "ra", "rio", "x"],
    "other": ["a", "e", "o", "an", "en", "el", "is", "ia", "on", "us"],
}
HEROES = [(name, "she", "her") for name in ("Anna", "Ida", "Mona", "Ruth", "Tess")]
HEROES += [(name, "he", "his") for name in ("Ben", "Carl", "Emil", "Hugo", "Otto")]
# singular, plural
ANIMALS = [("cat", "cats"), ("dog", "dogs"), ("goat", "goats"), ("owl", "owls"), ("mouse", "mice"), ("goose", "geese")]
PLACES = ["river", "old mill", "harbour", "forest", "long road", "school", "market", "garden"]
THINGS = ["lamp", "map", "boat", "bell", "letter", "kite", "key", "red coat"]
SEES = [("sees", "see"), ("follows", "follow"), ("likes", "like"), ("fears", "fear"), ("hears", "hear")]
DOES = [("sleeps", "sleep"), ("sings", "sing"), ("waits", "wait"), ("runs away", "run away"), ("comes home", "come home")]
WEATHER = ["it rains", "the wind is cold", "the sun is out", "snow falls", "the night is clear"]
FEELS = ["glad", "tired", "hungry", "brave", "alone", "curious"]
# fmt: on


class Writer:
    """Text by chance. Only `random()` is used: of all that the module offers, it alone is promised to stay the same."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.chance.random() * len(options))]

    def name(self) -> str:
        start = self.pick(FIRST) + self.pick(MIDDLE) * (self.chance.random() < 0.8)
        return start + self.pick(LAST["vowel" if start[-1] in "aeio" else "other"])

    def animals(self) -> tuple[str, int]:
        """'the dogs that the owl sees', and 1: its number, on which the verb depends over all that stands between."""
        number = int(self.chance.random() < 0.5)
        noun = f"the {self.pick(ANIMALS)[number]}"
        if self.chance.random() < 0.5:
            other = int(self.chance.random() < 0.5)
            noun += f" that the {self.pick(ANIMALS)[other]} {self.pick(SEES)[other]}"
        return noun, number

    def sentence(self, name: str, pronoun: str, owner: str) -> str:
        subject, number = self.animals()
        return self.pick(
            [
                f"{subject} {self.pick(DOES)[number]}.",
                f"{pronoun} takes {owner} {self.pick(THINGS)} to the {self.pick(PLACES)}.",
                f"when {self.pick(WEATHER)}, {subject} {self.pick(DOES)[number]}.",
                f"{pronoun} is {self.pick(FEELS)}, but {self.pick(WEATHER)}.",
                f"by the {self.pick(PLACES)} {pronoun} finds a {self.pick(THINGS)}.",
            ]
        )

    def tale(self) -> str:
        hero = self.pick(HEROES)
        place = self.pick(PLACES)
        sentences = [f"{hero[0]} lives by the {place}."]
        sentences += [self.sentence(*hero) for _ in range(3 + int(3 * self.chance.random()))]
        sentences.append(f"in the evening {hero[0]} goes home to the {place}.")
        return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)


def names() -> str:
    writer, found = Writer(1), dict[str, None]()
    while len(found) < NAMES:
        found[writer.name()] = None
    return "".join(f"{name}\n" for name in found)


def tales() -> str:
    writer = Writer(2)
    return "".join(f"{writer.tale()}\n" for _ in range(TALES))


# of a hundred: P(yes) = 0.5, P(ok) = 0.4; P(yes | yes) = 0.4, P(ok | yes) = 0.3; P(yes | ok) = 0.2, P(ok | ok) = 0.7
ANSWERS = {"yes yes": 20, "yes ok": 15, "yes": 15, "ok ok": 28, "ok yes": 8, "ok": 4, "": 10}


def answers() -> str:
    return "".join(f"{answer}\n" * count for answer, count in ANSWERS.items())


TEXTS = {"hello.txt": lambda: "hello\n", "names.txt": names, "tales.txt": tales, "yes-ok.txt": answers}

if __name__ == "__main__":
    for file, text in TEXTS.items():
        Path(__file__).with_name(file).write_bytes(text().encode())
