"""Small runs of classifiers and taggers that the tests of them share: toy tasks that take a second to learn."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from small_runs import Silent, train_here

from weft.config import override

KEYS = {"animal": ["cat", "dog", "owl"], "colour": ["red", "blue", "green"], "tool": ["saw", "axe", "drill"]}
FILL = ["the", "a", "some", "old", "new", "near", "here", "there"]
TRAIN: dict[str, Any] = {
    "max_steps": 60,
    "batch_tokens": 400,
    "num_validations": 2,
    "lr": 0.02,
    "label_smoothing": 0.0,
    "ema_decay": 0.5,
    "weight_decay": 0.0,
    "device": "cpu",
}
SMALL: dict[str, Any] = {"hidden_size": 16, "dropout": 0.0}


def words(chance: random.Random, *keys: str) -> str:
    """A few fillers with the keys among them."""
    found = chance.choices(FILL, k=chance.randint(1, 4)) + list(keys)
    chance.shuffle(found)
    return " ".join(found)


def one_label(count: int = 240, *, seed: int = 0) -> list[tuple[str, str]]:
    """Label and text: one word says what it is about."""
    chance, names = random.Random(seed), list(KEYS)
    labels = [names[at % 3] for at in range(count)]
    return [(label, words(chance, chance.choice(KEYS[label]))) for label in labels]


def several_labels(count: int = 240, *, seed: int = 0) -> list[tuple[str, str]]:
    """Labels, none or all of them, separated by commas, and text."""
    chance, found = random.Random(seed), []
    for _ in range(count):
        labels = [name for name in KEYS if chance.random() < 0.5]
        found.append((",".join(labels), words(chance, *(chance.choice(KEYS[name]) for name in labels))))
    return found


def two_texts(count: int = 300, *, seed: int = 0) -> list[tuple[str, str, str]]:
    """Label and two texts: which of them is about animals. One word, in one of them, decides."""
    chance, found = random.Random(seed), []
    for _ in range(count):
        texts = [words(chance), words(chance)]
        at = chance.randrange(2)
        texts[at] = words(chance, chance.choice(KEYS["animal"]))
        found.append((("first", "second")[at], *texts))
    return found


def write_tsv(path: Path, rows: list[Any], header: str = "label\ttext", encoding: str = "utf-8") -> Path:
    path.write_text("\n".join([header, *("\t".join(row) for row in rows)]) + "\n", encoding=encoding)
    return path


def tagged(count: int = 120, *, seed: int = 0, spans: bool = True) -> list[list[tuple[str, str]]]:
    """Sentences of words with tags: after `mr` comes a name of one or two words, any of many; or, if no spans are wanted,
    tags are by the end of a word: nouns end in -o, verbs in -i, others are X."""
    chance, found = random.Random(seed), []

    def new(end: str = "") -> str:
        return "".join(chance.choices("bcdfg", k=4)) + end

    for _ in range(count):
        sentence: list[tuple[str, str]] = []
        for _ in range(chance.randint(1, 3)):
            sentence += [(word, "O" if spans else "X") for word in chance.choices(FILL, k=chance.randint(1, 3))]
            if not spans:
                sentence += chance.choices([(new("o"), "NOUN"), (new("i"), "VERB")], k=2)
            elif chance.random() < 0.8:
                sentence += [("mr", "O"), (new("o"), "B-PER")] + [(new("s"), "I-PER")] * chance.randint(0, 1)
        found.append(sentence)
    return found


def write_conll(path: Path, sentences: list[list[tuple[str, str]]]) -> Path:
    path.write_text("\n\n".join("\n".join(" ".join(pair) for pair in sentence) for sentence in sentences) + "\n")
    return path


def class_file(data: Path | list[str], kind: str = "lstm", *settings: str) -> dict[str, Any]:
    """A run file for labelled texts, with `--set` applied."""
    values: dict[str, Any] = {
        "task": "classification",
        "seed": 3,
        "data": {"train": str(data), "valid": 0.15, "test": 0.15},
        "model": {"arch": kind},
        "train": dict(TRAIN),
    }
    if kind not in ("naive-bayes", "logistic-regression"):
        values["model"] |= SMALL
    return override(values, settings)


def tag_file(data: Path, kind: str = "lstm", *settings: str) -> dict[str, Any]:
    """A run file for tagged sentences, with `--set` applied."""
    values: dict[str, Any] = {
        "task": "tagging",
        "seed": 3,
        "data": {"train": str(data), "valid": 0.15, "test": 0.15},
        "tokenizer": {"vocab_size": 16},  # new words are unknown, and were in training
        "model": {"arch": kind, **SMALL, "char_encoder": {"hidden_size": 24, "embedding_dim": 16}},
        "train": {
            **{name: value for name, value in TRAIN.items() if name != "label_smoothing"},
            "max_steps": 40,
            "lr": 0.03,
            "batch_tokens": 250,
        },
    }
    return override(values, settings)


class LabelRuns:
    """Run folders by name, each trained when it is first asked for: `labels-kind`, `several-kind`, `pairs-kind` classify,
    `spans-kind` and `speech-kind` tag."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.data = {
            "labels": write_tsv(place / "labels.tsv", one_label()),
            "several": write_tsv(place / "several.tsv", several_labels()),
            "pairs": write_tsv(place / "pairs.tsv", two_texts(), "label\tone\ttwo"),
            "spans": write_conll(place / "spans.txt", tagged()),
            "speech": write_conll(place / "speech.txt", tagged(spans=False)),
        }

    def values(self, name: str, *settings: str) -> dict[str, Any]:
        """The run file of such a name."""
        data, _, kind = name.partition("-")
        if data in ("spans", "speech"):
            return tag_file(self.data[data], kind, *settings)
        more = {"several": ["data.multilabel=true"], "pairs": ['data.text_column=["one", "two"]', "train.max_steps=120"]}.get(
            data, []
        )
        return class_file(self.data[data], kind, *more, *settings)

    def folder(self, name: str) -> Path:
        folder = self.place / name
        if not folder.exists():
            train_here(self.values(name), folder, Silent())
        return folder
