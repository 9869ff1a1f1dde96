"""Small data of every task, drawn by a fixed seed: the same bytes on every machine."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path

NAMES = ["Ada", "Ben", "Eva", "Ian", "Kim", "Leo", "Mia", "Ned", "Ola", "Pam", "Ray", "Sue", "Tom", "Una", "Vic", "Zoë"]
CITIES = ["Rome", "Oslo", "Lima", "Cairo", "Paris", "New Delhi", "Las Vegas"]
WORDS = {
    "the": "le", "a": "un", "cat": "chat", "dog": "chien", "owl": "hibou", "hat": "chapeau", "key": "clé", "red": "rouge",
    "old": "vieux", "new": "neuf", "sees": "voit", "has": "a", "likes": "aime", "finds": "trouve", "today": "aujourd'hui",
}  # fmt: skip
SUBJECTS, ADJECTIVES, VERBS = ["cat", "dog", "owl"], ["red", "old", "new"], ["sees", "has", "likes", "finds"]
OBJECTS = ["hat", "key", "cat", "dog"]
OPINIONS = {
    "good": ["lovely", "funny", "a delight", "well made"],
    "bad": ["dull", "far too long", "a mess", "badly made"],
    "mixed": ["fine in parts", "good but long", "neither here nor there"],
}
TOPICS = {"late": "it has not come yet", "damage": "it has a scratch", "price": "it costs too much"}


def _sentence(chance: random.Random) -> list[str]:
    noun = [chance.choice(["the", "a"]), *chance.sample(ADJECTIVES, chance.randint(0, 1)), chance.choice(SUBJECTS)]
    words = [*noun, chance.choice(VERBS), chance.choice(["the", "a"]), chance.choice(OBJECTS)]
    return [*words, "today"] if chance.random() < 0.3 else words


def _story(chance: random.Random) -> str:
    first = f"{chance.choice(NAMES)} lives in {chance.choice(CITIES)}."
    return " ".join([first, *(f"{' '.join(_sentence(chance)).capitalize()}." for _ in range(chance.randint(0, 2)))])


def _opinion(chance: random.Random) -> tuple[str, str]:
    label = chance.choice(list(OPINIONS))
    return label, f"The {chance.choice(['music', 'play', 'soup', 'film'])} was {chance.choice(OPINIONS[label])}."


def _letter(chance: random.Random) -> str:
    labels = chance.sample(list(TOPICS), chance.choice([0, 1, 1, 2]))
    said = " and ".join([f"I bought a {chance.choice(OBJECTS)}", *(TOPICS[label] for label in labels)])
    return json.dumps({"text": said, "label": labels})


def _inference(chance: random.Random) -> str:
    sentence = _sentence(chance)
    label = chance.choice(["yes", "no", "maybe"])
    ends = {"yes": sentence, "no": ["no", *sentence[1:]], "maybe": [*sentence, "every", "day"]}
    return "\t".join([" ".join(sentence), " ".join(ends[label]), label])


def _entities(chance: random.Random) -> str:
    person, city = chance.choice(NAMES), chance.choice(CITIES).split()
    tagged = [(person, "B-PER"), (chance.choice(["sees", "leaves", "likes"]), "O")]
    tagged += [(word, "I-LOC" if at else "B-LOC") for at, word in enumerate(city)]
    return "".join(f"{word} {tag}\n" for word, tag in [*tagged, (".", "O")])


def _parts_of_speech(chance: random.Random) -> str:
    kinds = {"the": "DET", "a": "DET", "today": "ADV"} | dict.fromkeys(ADJECTIVES, "ADJ") | dict.fromkeys(VERBS, "VERB")
    words = _sentence(chance)
    lines = [f"{at}\t{word}\t_\t{kinds.get(word, 'NOUN')}" + "\t_" * 6 for at, word in enumerate(words, 1)]
    return "\n".join([f"# text = {' '.join(words)}", *lines]) + "\n"


def _question(chance: random.Random) -> str:
    name, city, thing = chance.choice(NAMES), chance.choice(CITIES), chance.choice(OBJECTS)
    day = chance.choice([" on Friday", " on Monday", ""])
    passage = f"{name} bought a {thing} in {city}{day}."
    question, answer = chance.choice([("Who", name), ("Where", city), ("When", day.removeprefix(" on "))])
    start = str(passage.index(answer)) if answer else ""
    return "\t".join([f"{question} was the {thing} bought?", passage, answer, start])


def _lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def make(place: Path) -> None:
    """Write all files into a directory."""

    def drawn(draw: Callable[[random.Random], str], count: int, seed: int) -> list[str]:
        chance = random.Random(seed)
        return [draw(chance) for _ in range(count)]

    _lines(place / "tales.txt", drawn(_story, 240, 0))
    pairs = [line.split() for line in drawn(lambda chance: " ".join(_sentence(chance)), 240, 1)]
    sides = [" ".join(words) for words in pairs], [" ".join(WORDS[word] for word in words) for words in pairs]
    _lines(place / "pairs.en", sides[0])
    _lines(place / "pairs.fr", sides[1])
    _lines(place / "pairs.tsv", ["source\ttarget", *("\t".join(pair) for pair in zip(*sides, strict=True))])
    chance = random.Random(2)
    opinions = [_opinion(chance) for _ in range(240)]
    _lines(place / "reviews.csv", ["label,text", *(f"{label},{text}" for label, text in opinions)])
    _lines(place / "letters.jsonl", drawn(_letter, 240, 3))
    _lines(place / "inference.tsv", ["premise\thypothesis\tlabel", *drawn(_inference, 240, 4)])
    _lines(place / "entities.txt", drawn(_entities, 240, 5))
    _lines(place / "speech.conllu", drawn(_parts_of_speech, 160, 6))
    _lines(place / "answers.tsv", ["question\tpassage\tanswer\tanswer_start", *drawn(_question, 240, 7)])
    agreement = [(f"The {one} sees a hat.", f"The {one} see a hat.", "verb", "0") for one in SUBJECTS]
    agreement += [
        (f"The {one} that the dogs like sees a key.", f"The {one} that the dogs like see a key.", "verb", "1")
        for one in SUBJECTS
    ]
    _lines(place / "suite.tsv", ["good\tbad\tphenomenon\tattractors", *("\t".join(row) for row in agreement)])
