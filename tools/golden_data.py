"""Small data sets for all tasks, generated with fixed seeds: the same bytes on every machine."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import golden_media

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


def _sentence(rng: random.Random) -> list[str]:
    noun = [rng.choice(["the", "a"]), *rng.sample(ADJECTIVES, rng.randint(0, 1)), rng.choice(SUBJECTS)]
    words = [*noun, rng.choice(VERBS), rng.choice(["the", "a"]), rng.choice(OBJECTS)]
    return [*words, "today"] if rng.random() < 0.3 else words


def _story(rng: random.Random) -> str:
    first = f"{rng.choice(NAMES)} lives in {rng.choice(CITIES)}."
    return " ".join([first, *(f"{' '.join(_sentence(rng)).capitalize()}." for _ in range(rng.randint(0, 2)))])


def _opinion(rng: random.Random) -> tuple[str, str]:
    label = rng.choice(list(OPINIONS))
    return label, f"The {rng.choice(['music', 'play', 'soup', 'film'])} was {rng.choice(OPINIONS[label])}."


def _letter(rng: random.Random) -> str:
    labels = rng.sample(list(TOPICS), rng.choice([0, 1, 1, 2]))
    text = " and ".join([f"I bought a {rng.choice(OBJECTS)}", *(TOPICS[label] for label in labels)])
    return json.dumps({"text": text, "label": labels})


def _inference(rng: random.Random) -> str:
    sentence = _sentence(rng)
    label = rng.choice(["yes", "no", "maybe"])
    hypotheses = {"yes": sentence, "no": ["no", *sentence[1:]], "maybe": [*sentence, "every", "day"]}
    return "\t".join([" ".join(sentence), " ".join(hypotheses[label]), label])


def _entities(rng: random.Random) -> str:
    person, city = rng.choice(NAMES), rng.choice(CITIES).split()
    tagged = [(person, "B-PER"), (rng.choice(["sees", "leaves", "likes"]), "O")]
    tagged += [(word, "I-LOC" if i else "B-LOC") for i, word in enumerate(city)]
    return "".join(f"{word} {tag}\n" for word, tag in [*tagged, (".", "O")])


def _parts_of_speech(rng: random.Random) -> str:
    tags = {"the": "DET", "a": "DET", "today": "ADV"} | dict.fromkeys(ADJECTIVES, "ADJ") | dict.fromkeys(VERBS, "VERB")
    words = _sentence(rng)
    lines = [f"{i}\t{word}\t_\t{tags.get(word, 'NOUN')}" + "\t_" * 6 for i, word in enumerate(words, 1)]
    return "\n".join([f"# text = {' '.join(words)}", *lines]) + "\n"


def _question(rng: random.Random) -> str:
    name, city, thing = rng.choice(NAMES), rng.choice(CITIES), rng.choice(OBJECTS)
    day = rng.choice([" on Friday", " on Monday", ""])
    passage = f"{name} bought a {thing} in {city}{day}."
    question, answer = rng.choice([("Who", name), ("Where", city), ("When", day.removeprefix(" on "))])
    start = str(passage.index(answer)) if answer else ""
    return "\t".join([f"{question} was the {thing} bought?", passage, answer, start])


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def make(directory: Path) -> None:
    """Write all files to a directory."""
    golden_media.make(directory)

    def samples(generate: Callable[[random.Random], str], count: int, seed: int) -> list[str]:
        rng = random.Random(seed)
        return [generate(rng) for _ in range(count)]

    _write_lines(directory / "tales.txt", samples(_story, 240, 0))
    pairs = [line.split() for line in samples(lambda rng: " ".join(_sentence(rng)), 240, 1)]
    sides = [" ".join(words) for words in pairs], [" ".join(WORDS[word] for word in words) for words in pairs]
    _write_lines(directory / "pairs.en", sides[0])
    _write_lines(directory / "pairs.fr", sides[1])
    _write_lines(directory / "pairs.tsv", ["source\ttarget", *("\t".join(pair) for pair in zip(*sides, strict=True))])
    rng = random.Random(2)
    opinions = [_opinion(rng) for _ in range(240)]
    _write_lines(directory / "reviews.csv", ["label,text", *(f"{label},{text}" for label, text in opinions)])
    _write_lines(directory / "letters.jsonl", samples(_letter, 240, 3))
    _write_lines(directory / "inference.tsv", ["premise\thypothesis\tlabel", *samples(_inference, 240, 4)])
    _write_lines(directory / "entities.txt", samples(_entities, 240, 5))
    _write_lines(directory / "speech.conllu", samples(_parts_of_speech, 160, 6))
    _write_lines(directory / "answers.tsv", ["question\tpassage\tanswer\tanswer_start", *samples(_question, 240, 7)])
    agreement = [(f"The {noun} sees a hat.", f"The {noun} see a hat.", "verb", "0") for noun in SUBJECTS]
    agreement += [
        (f"The {noun} that the dogs like sees a key.", f"The {noun} that the dogs like see a key.", "verb", "1")
        for noun in SUBJECTS
    ]
    _write_lines(directory / "suite.tsv", ["good\tbad\tphenomenon\tattractors", *("\t".join(row) for row in agreement)])
