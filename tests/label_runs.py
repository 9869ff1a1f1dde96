"""Toy data, run files and runs of classifiers and taggers that learn in a second."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from small_runs import SilentCallback, train_here

from weft.config import override

KEYS = {"animal": ["cat", "dog", "owl"], "colour": ["red", "blue", "green"], "tool": ["saw", "axe", "drill"]}
FILLERS = ["the", "a", "some", "old", "new", "near", "here", "there"]
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


def make_sentence(rng: random.Random, *keys: str) -> str:
    """One to four filler words and the keys, in random order."""
    words = rng.choices(FILLERS, k=rng.randint(1, 4)) + list(keys)
    rng.shuffle(words)
    return " ".join(words)


def single_label_rows(count: int = 240, *, seed: int = 0) -> list[tuple[str, str]]:
    """Rows of label and text; one word of the text determines the label."""
    rng, names = random.Random(seed), list(KEYS)
    labels = [names[index % 3] for index in range(count)]
    return [(label, make_sentence(rng, rng.choice(KEYS[label]))) for label in labels]


def multilabel_rows(count: int = 240, *, seed: int = 0) -> list[tuple[str, str]]:
    """Rows of comma-separated labels (any subset) and text."""
    rng, rows = random.Random(seed), []
    for _ in range(count):
        labels = [name for name in KEYS if rng.random() < 0.5]
        rows.append((",".join(labels), make_sentence(rng, *(rng.choice(KEYS[name]) for name in labels))))
    return rows


def text_pair_rows(count: int = 300, *, seed: int = 0) -> list[tuple[str, str, str]]:
    """Rows of label and two texts; the label says which text contains an animal."""
    rng, rows = random.Random(seed), []
    for _ in range(count):
        texts = [make_sentence(rng), make_sentence(rng)]
        index = rng.randrange(2)
        texts[index] = make_sentence(rng, rng.choice(KEYS["animal"]))
        rows.append((("first", "second")[index], *texts))
    return rows


def write_tsv(path: Path, rows: list[Any], header: str = "label\ttext", encoding: str = "utf-8") -> Path:
    path.write_text("\n".join([header, *("\t".join(row) for row in rows)]) + "\n", encoding=encoding)
    return path


def tagged_sentences(count: int = 120, *, seed: int = 0, spans: bool = True) -> list[list[tuple[str, str]]]:
    """Sentences of (word, tag). With `spans`, `mr` is followed by a random name of one or two words, tagged B-PER I-PER.
    Without, the tag depends on the ending: NOUN for -o, VERB for -i, otherwise X."""
    rng, sentences = random.Random(seed), []

    def random_word(end: str = "") -> str:
        return "".join(rng.choices("bcdfg", k=4)) + end

    for _ in range(count):
        sentence: list[tuple[str, str]] = []
        for _ in range(rng.randint(1, 3)):
            sentence += [(word, "O" if spans else "X") for word in rng.choices(FILLERS, k=rng.randint(1, 3))]
            if not spans:
                sentence += rng.choices([(random_word("o"), "NOUN"), (random_word("i"), "VERB")], k=2)
            elif rng.random() < 0.8:
                sentence += [("mr", "O"), (random_word("o"), "B-PER")] + [(random_word("s"), "I-PER")] * rng.randint(0, 1)
        sentences.append(sentence)
    return sentences


def write_conll(path: Path, sentences: list[list[tuple[str, str]]]) -> Path:
    path.write_text("\n\n".join("\n".join(" ".join(pair) for pair in sentence) for sentence in sentences) + "\n")
    return path


def classification_run_file(data: Path | list[str], arch: str = "lstm", *overrides: str) -> dict[str, Any]:
    """Run file of a classifier, with `--set` overrides."""
    values: dict[str, Any] = {
        "task": "classification",
        "recommend": False,
        "seed": 3,
        "data": {"train": str(data), "valid": 0.15, "test": 0.15},
        "model": {"arch": arch},
        "train": dict(TRAIN),
    }
    if arch not in ("naive-bayes", "logistic-regression"):
        values["model"] |= SMALL
    return override(values, overrides)


def tagging_run_file(data: Path, arch: str = "lstm", *overrides: str) -> dict[str, Any]:
    """Run file of a tagger, with `--set` overrides."""
    values: dict[str, Any] = {
        "task": "tagging",
        "recommend": False,
        "seed": 3,
        "data": {"train": str(data), "valid": 0.15, "test": 0.15},
        "tokenizer": {"vocab_size": 16},  # so small that training has unknown words, too
        "model": {"arch": arch, **SMALL, "char_encoder": {"hidden_size": 24, "embedding_dim": 16}},
        "train": {
            **{name: value for name, value in TRAIN.items() if name != "label_smoothing"},
            "max_steps": 40,
            "lr": 0.03,
            "batch_tokens": 250,
        },
    }
    return override(values, overrides)


class LabelRuns:
    """Run directories by name, each trained on first use: `labels-ARCH`, `several-ARCH` (multilabel) and `pairs-ARCH` (text
    pairs) are classifiers, `spans-ARCH` and `speech-ARCH` (parts of speech) are taggers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = {
            "labels": write_tsv(directory / "labels.tsv", single_label_rows()),
            "several": write_tsv(directory / "several.tsv", multilabel_rows()),
            "pairs": write_tsv(directory / "pairs.tsv", text_pair_rows(), "label\tone\ttwo"),
            "spans": write_conll(directory / "spans.txt", tagged_sentences()),
            "speech": write_conll(directory / "speech.txt", tagged_sentences(spans=False)),
        }

    def values(self, name: str, *overrides: str) -> dict[str, Any]:
        """The run file of this name."""
        data, _, arch = name.partition("-")
        if data in ("spans", "speech"):
            return tagging_run_file(self.data[data], arch, *overrides)
        extra = {"several": ["data.multilabel=true"], "pairs": ['data.text_column=["one", "two"]', "train.max_steps=120"]}.get(
            data, []
        )
        return classification_run_file(self.data[data], arch, *extra, *overrides)

    def run_dir(self, name: str) -> Path:
        run_dir = self.directory / name
        if not run_dir.exists():
            train_here(self.values(name), run_dir, SilentCallback())
        return run_dir
