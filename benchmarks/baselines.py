"""Naive Bayes and softmax regression beside scikit-learn's: accuracy, seconds, and how far the probabilities are apart.

    python benchmarks/baselines.py [--data FOLDER] [--only trec] [--threads 1]

TREC-6, SST-2 and SST-5 (whole sentences) have the usual test sets. Names by language: of the different names of each
file, shuffled with seed 0, a tenth is for validation, a tenth for testing. `size` is the speed of features alone on
11,314 texts of about 2,000 characters, as many as 20 newsgroups trains on, put together from lines of Tatoeba.

C of the regression is the one of 1, 10, 100 with the best validation accuracy (TREC, which has no validation set: a
tenth of its training set), never by the test set. Seconds are of the processor, features and model each with the
test set. scikit-learn's regression is at tol=1e-8, and next to it at the 1e-4 that it has by default.
"""

from __future__ import annotations

import argparse
import gzip
import random
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import BernoulliNB, MultinomialNB

from weft.models import logistic_regression as regression
from weft.models import naive_bayes as bayes
from weft.models.baseline_config import LogisticRegressionConfig, NaiveBayesConfig
from weft.text.features import FeatureConfig, Features

T = TypeVar("T")
Texts = tuple[list[str], list[str]]  # texts, and the label of each
STRENGTHS = (1.0, 10.0, 100.0)


class Splits(NamedTuple):
    train: Texts
    valid: Texts
    test: Texts


def timed(work: Callable[[], T]) -> tuple[T, float]:
    began = time.process_time()
    found = work()
    return found, time.process_time() - began


def label_first(path: Path, encoding: str = "utf-8") -> Texts:
    rows = [line.split(" ", 1) for line in path.read_text(encoding=encoding).split("\n") if line]
    return [text for _, text in rows], [label for label, _ in rows]


def cut(rows: list[tuple[str, str]], *counts: int) -> list[Texts]:
    """The rows in consecutive parts of these sizes."""
    edges = np.cumsum([0, *counts])
    parts = [rows[low:high] for low, high in pairwise(edges)]
    return [([text for text, _ in part], [label for _, label in part]) for part in parts]


def trec(directory: Path) -> Splits:
    texts, labels = label_first(directory / "trec" / "TREC.train.all", "latin-1")
    rows = list(zip(texts, labels, strict=True))
    random.Random(0).shuffle(rows)
    valid, train = cut(rows, len(rows) // 10, len(rows) - len(rows) // 10)
    return Splits(train, valid, label_first(directory / "trec" / "TREC.test.all", "latin-1"))


def sst(kind: str) -> Callable[[Path], Splits]:
    def read(directory: Path) -> Splits:
        train, valid, test = (label_first(directory / "sst" / f"stsa.{kind}.{part}") for part in ("train", "dev", "test"))
        return Splits(train, valid, test)

    return read


def names(directory: Path) -> Splits:
    parts: list[list[tuple[str, str]]] = [[], [], []]
    for path in sorted((directory / "names-by-language").glob("*.txt")):
        found = sorted({line.strip() for line in path.read_text(encoding="utf-8").split("\n") if line.strip()})
        random.Random(0).shuffle(found)
        tenth = round(len(found) / 10)
        for part, some in zip(parts, (found[2 * tenth :], found[:tenth], found[tenth : 2 * tenth]), strict=True):
            part += [(name, path.stem) for name in some]
    return Splits(*(cut(part, len(part))[0] for part in parts))


WORDS = {"analyzer": "whitespace", "ngram_range": [1, 2]}
CHARACTERS = {"analyzer": "char", "ngram_range": [1, 4]}
TASKS: dict[str, tuple[Callable[[Path], Splits], dict[str, Any]]] = {
    "trec": (trec, WORDS),
    "sst-2": (sst("binary"), WORDS),
    "sst-5": (sst("fine"), WORDS),
    "names": (names, CHARACTERS),
}


def vectorizer(table: FeatureConfig) -> Any:
    """scikit-learn's, with the same settings."""
    options: dict[str, Any] = {"analyzer": table.analyzer, "ngram_range": tuple(table.ngram_range)}
    if table.analyzer == "whitespace":
        options |= {"analyzer": "word", "token_pattern": r"\S+"}
    return TfidfVectorizer(**options) if table.tfidf else CountVectorizer(**options)


def line(name: str, ours: np.ndarray, theirs: np.ndarray, gold: np.ndarray, seconds: str) -> None:
    """Accuracies of both, and the largest difference of a probability."""
    right = [100 * float((found.argmax(1) == gold).mean()) for found in (ours, theirs)]
    apart = float(np.abs(np.exp(ours) - theirs).max())
    print(f"  {name:<30} {right[0]:6.2f} {right[1]:6.2f}   {apart:8.1e}   {seconds}", flush=True)


class Material:
    """One task's texts as features, ours and theirs, with the labels as numbers."""

    def __init__(self, splits: Splits, table: FeatureConfig) -> None:
        known = {label: number for number, label in enumerate(sorted(set(splits.train[1])))}
        self.classes = len(known)
        self.gold = [np.array([known.get(label, -1) for label in labels]) for _, labels in splits]
        self.ours, mine = timed(lambda: self._ours(splits, table))
        self.theirs, other = timed(lambda: self._theirs(splits, table))
        kind = f"{table.analyzer} {table.ngram_range[0]}-{table.ngram_range[1]} {'TF-IDF' if table.tfidf else 'counts'}"
        print(f"  {kind + ', ' + format(self.ours[0].columns, ',') + ' terms':<58} {mine:.2f} s, theirs {other:.2f} s")

    @staticmethod
    def _ours(splits: Splits, table: FeatureConfig) -> list[Any]:
        features = Features.fit(splits.train[0], table)
        return [features.transform(texts) for texts, _ in splits]

    @staticmethod
    def _theirs(splits: Splits, table: FeatureConfig) -> list[Any]:
        other = vectorizer(table)
        return [other.fit_transform(splits.train[0]), other.transform(splits.valid[0]), other.transform(splits.test[0])]


def measure_bayes(material: Material) -> None:
    for events, kind in (("multinomial", MultinomialNB), ("bernoulli", BernoulliNB)):
        table = NaiveBayesConfig(event_model=events)
        model, mine = timed(lambda table=table: bayes.fit(material.ours[0], material.gold[0], material.classes, table))
        other, seconds = timed(lambda kind=kind: kind().fit(material.theirs[0], material.gold[0]))
        found = other.predict_proba(material.theirs[2])
        line(f"naive Bayes, {events}", model.log_probs(material.ours[2]), found, material.gold[2], f"{mine:.2f} {seconds:.2f}")


def measure_regression(material: Material) -> None:
    fitted = {}
    for C in STRENGTHS:
        table = LogisticRegressionConfig(C=C)
        fitted[C] = timed(lambda table=table: regression.fit(material.ours[0], material.gold[0], material.classes, table))
    right = {C: (model.log_probs(material.ours[1]).argmax(1) == material.gold[1]).mean() for C, (model, _) in fitted.items()}
    C = max(STRENGTHS, key=lambda C: right[C])
    model, mine = fitted[C]
    slow, quick = (LogisticRegression(C=C, tol=tol, max_iter=5000) for tol in (1e-8, 1e-4))
    _, seconds = timed(lambda: slow.fit(material.theirs[0], material.gold[0]))
    _, short = timed(lambda: quick.fit(material.theirs[0], material.gold[0]))
    found, rough = (other.predict_proba(material.theirs[2]) for other in (slow, quick))
    ours = model.log_probs(material.ours[2])
    off = float(np.abs(found - rough).max())
    line(
        f"regression, C={C:g}", ours, found, material.gold[2], f"{mine:.2f} {seconds:.2f} ({short:.2f} at 1e-4, {off:.1e} off)"
    )
    for note in model.notes:
        print(f"  note: {note}")


def measure(name: str, directory: Path) -> None:
    read, options = TASKS[name]
    splits = read(directory)
    counts = ", ".join(f"{len(texts):,} {part}" for part, (texts, _) in splits._asdict().items())
    print(f"{name}: {counts}; of each: accuracy ours, theirs; probabilities apart; seconds ours, theirs")
    counted = Material(splits, FeatureConfig(**options, tfidf=False))
    measure_bayes(counted)
    measure_regression(counted)
    measure_regression(Material(splits, FeatureConfig(**options)))


def size(directory: Path) -> None:
    with gzip.open(directory / "tatoeba-eng-fra" / "fra.txt.gz", "rt", encoding="utf-8") as file:
        lines = [cell for row in file for cell in row.split("\t")[:2]]
    draw = random.Random(0)
    texts = ["\n".join(draw.choices(lines, k=60)) for _ in range(11_314)]
    print(f"size: {len(texts):,} texts, {sum(map(len, texts)) / 1e6:.1f} M characters; seconds to fit, to transform")
    for analyzer, ngrams in (("word", [1, 1]), ("word", [1, 2]), ("char_wb", [1, 4])):
        table = FeatureConfig(analyzer=analyzer, ngram_range=ngrams)
        features, fit = timed(lambda table=table: Features.fit(texts, table))
        _, mine = timed(lambda features=features: features.transform(texts))
        other = vectorizer(table)
        _, learned = timed(lambda other=other: other.fit_transform(texts))
        _, theirs = timed(lambda other=other: other.transform(texts))
        kind = f"{analyzer} {ngrams[0]}-{ngrams[1]}, {features.size:,} terms"
        print(
            f"  {kind:<30} {fit:5.1f} {mine:5.1f}; theirs (which fits and transforms at once) {learned:5.1f} {theirs:5.1f}",
            flush=True,
        )


def main() -> None:
    shared = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=shared, help="the directory with trec, sst, names-by-language")
    parser.add_argument("--only", action="append", choices=[*TASKS, "size"], help="this alone; repeatable")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    if not options.data.exists():
        parser.exit(0, f"skipped: {options.data} is missing; pass --data DIR\n")
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore", ConvergenceWarning)
    for name in options.only or [*TASKS, "size"]:
        size(options.data) if name == "size" else measure(name, options.data)


if __name__ == "__main__":
    main()
