"""Naive Bayes and logistic regression compared with scikit-learn: accuracy, CPU seconds, and differences of probabilities.

    python benchmarks/baselines.py [--data DIR] [--only trec] [--threads 1]

TREC-6, SST-2 and SST-5 (sentences only) have the usual test sets. Names by language: the distinct names of each file, shuffled
with seed 0; a tenth is for validation and a tenth for testing. `size` measures the speed of the features on 11,314 texts of
about 2,000 characters (as in the training set of 20 newsgroups), made of lines of Tatoeba.

C of logistic regression is the one of 1, 10 and 100 with the best validation accuracy (for TREC, on a tenth of the training
set). CPU seconds include the test set. scikit-learn's logistic regression uses tol=1e-8; its default of 1e-4 is printed as
well.
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
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import torch
from _common import SHARED_DATA, require_data
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import BernoulliNB, MultinomialNB

from weft.models import logistic_regression, naive_bayes
from weft.models.baseline_config import LogisticRegressionConfig, NaiveBayesConfig
from weft.text.features import FeatureConfig, Features, Sparse

P = ParamSpec("P")
T = TypeVar("T")
Texts = tuple[list[str], list[str]]  # texts and their labels
INVERSE_PENALTIES = (1.0, 10.0, 100.0)  # values of C


class Splits(NamedTuple):
    train: Texts
    valid: Texts
    test: Texts


def timed(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, float]:
    """The result of a call, and its CPU seconds."""
    start = time.process_time()
    result = function(*args, **kwargs)
    return result, time.process_time() - start


# ---- data


def read_label_first(path: Path, encoding: str = "utf-8") -> Texts:
    rows = [line.split(" ", 1) for line in path.read_text(encoding=encoding).split("\n") if line]
    return [text for _, text in rows], [label for label, _ in rows]


def split_rows(rows: list[tuple[str, str]], *sizes: int) -> list[Texts]:
    """Consecutive parts of these sizes."""
    bounds = np.cumsum([0, *sizes])
    parts = [rows[start:end] for start, end in pairwise(bounds)]
    return [([text for text, _ in part], [label for _, label in part]) for part in parts]


def read_trec(directory: Path) -> Splits:
    texts, labels = read_label_first(directory / "trec" / "TREC.train.all", "latin-1")
    rows = list(zip(texts, labels, strict=True))
    random.Random(0).shuffle(rows)
    valid, train = split_rows(rows, len(rows) // 10, len(rows) - len(rows) // 10)
    return Splits(train, valid, read_label_first(directory / "trec" / "TREC.test.all", "latin-1"))


def sst_reader(name: str) -> Callable[[Path], Splits]:
    def read_sst(directory: Path) -> Splits:
        return Splits(*(read_label_first(directory / "sst" / f"stsa.{name}.{split}") for split in ("train", "dev", "test")))

    return read_sst


def read_names(directory: Path) -> Splits:
    splits: list[list[tuple[str, str]]] = [[], [], []]
    for path in sorted((directory / "names-by-language").glob("*.txt")):
        names = sorted({line.strip() for line in path.read_text(encoding="utf-8").split("\n") if line.strip()})
        random.Random(0).shuffle(names)
        tenth = round(len(names) / 10)
        parts = names[2 * tenth :], names[:tenth], names[tenth : 2 * tenth]
        for split, part in zip(splits, parts, strict=True):
            split += [(name, path.stem) for name in part]
    return Splits(*(split_rows(split, len(split))[0] for split in splits))


WORDS = {"analyzer": "whitespace", "ngram_range": [1, 2]}
CHARACTERS = {"analyzer": "char", "ngram_range": [1, 4]}
TASKS: dict[str, tuple[Callable[[Path], Splits], dict[str, Any]]] = {
    "trec": (read_trec, WORDS),
    "sst-2": (sst_reader("binary"), WORDS),
    "sst-5": (sst_reader("fine"), WORDS),
    "names": (read_names, CHARACTERS),
}


# ---- features


def feature_config(options: dict[str, Any], *, tfidf: bool = True) -> FeatureConfig:
    return FeatureConfig.model_validate({**options, "tfidf": tfidf})


def sklearn_vectorizer(config: FeatureConfig) -> Any:
    """scikit-learn's vectorizer with the same options."""
    options: dict[str, Any] = {"analyzer": config.analyzer, "ngram_range": tuple(config.ngram_range)}
    if config.analyzer == "whitespace":
        options |= {"analyzer": "word", "token_pattern": r"\S+"}
    return TfidfVectorizer(**options) if config.tfidf else CountVectorizer(**options)


def weft_features(splits: Splits, config: FeatureConfig) -> list[Sparse]:
    features = Features.fit(splits.train[0], config)
    return [features.transform(texts) for texts, _ in splits]


def sklearn_features(splits: Splits, config: FeatureConfig) -> list[Any]:
    vectorizer = sklearn_vectorizer(config)
    train = vectorizer.fit_transform(splits.train[0])
    return [train, vectorizer.transform(splits.valid[0]), vectorizer.transform(splits.test[0])]


class Dataset:
    """The features of a task in both libraries, and class indices; lists have one item per split."""

    def __init__(self, splits: Splits, config: FeatureConfig) -> None:
        class_ids = {label: i for i, label in enumerate(sorted(set(splits.train[1])))}
        self.num_classes = len(class_ids)
        self.gold = [np.array([class_ids.get(label, -1) for label in labels]) for _, labels in splits]
        self.weft, weft_seconds = timed(weft_features, splits, config)
        self.sklearn, sklearn_seconds = timed(sklearn_features, splits, config)
        weighting = "TF-IDF" if config.tfidf else "counts"
        name = f"{config.analyzer} {config.ngram_range[0]}-{config.ngram_range[1]} {weighting}, {self.weft[0].columns:,} terms"
        print(f"  {name:<58} {weft_seconds:.2f} s, scikit-learn {sklearn_seconds:.2f} s")


# ---- models


def print_result(name: str, log_probs: np.ndarray, sklearn_probs: np.ndarray, gold: np.ndarray, seconds: str) -> None:
    """Print both accuracies and the largest difference of a probability."""
    accuracies = [100 * float((scores.argmax(1) == gold).mean()) for scores in (log_probs, sklearn_probs)]
    difference = float(np.abs(np.exp(log_probs) - sklearn_probs).max())
    print(f"  {name:<30} {accuracies[0]:6.2f} {accuracies[1]:6.2f}   {difference:8.1e}   {seconds}", flush=True)


def measure_naive_bayes(data: Dataset) -> None:
    for event_model, sklearn_class in (("multinomial", MultinomialNB), ("bernoulli", BernoulliNB)):
        config = NaiveBayesConfig.model_validate({"event_model": event_model})
        model, weft_seconds = timed(naive_bayes.fit, data.weft[0], data.gold[0], data.num_classes, config)
        sklearn_model, sklearn_seconds = timed(sklearn_class().fit, data.sklearn[0], data.gold[0])
        probs = sklearn_model.predict_proba(data.sklearn[2])
        seconds = f"{weft_seconds:.2f} {sklearn_seconds:.2f}"
        print_result(f"naive Bayes, {event_model}", model.log_probs(data.weft[2]), probs, data.gold[2], seconds)


def measure_regression(data: Dataset) -> None:
    fits = {}
    for C in INVERSE_PENALTIES:
        config = LogisticRegressionConfig.model_validate({"C": C})
        fits[C] = timed(logistic_regression.fit, data.weft[0], data.gold[0], data.num_classes, config)
    accuracies = {C: (model.log_probs(data.weft[1]).argmax(1) == data.gold[1]).mean() for C, (model, _) in fits.items()}
    C = max(INVERSE_PENALTIES, key=lambda C: accuracies[C])
    model, weft_seconds = fits[C]
    exact, default = (LogisticRegression(C=C, tol=tol, max_iter=5000) for tol in (1e-8, 1e-4))
    _, exact_seconds = timed(exact.fit, data.sklearn[0], data.gold[0])
    _, default_seconds = timed(default.fit, data.sklearn[0], data.gold[0])
    exact_probs, default_probs = (fitted.predict_proba(data.sklearn[2]) for fitted in (exact, default))
    difference = float(np.abs(exact_probs - default_probs).max())
    seconds = f"{weft_seconds:.2f} {exact_seconds:.2f} (tol=1e-4: {default_seconds:.2f}, difference {difference:.1e})"
    print_result(f"logistic regression, C={C:g}", model.log_probs(data.weft[2]), exact_probs, data.gold[2], seconds)
    for note in model.notes:
        print(f"  note: {note}")


def measure_task(name: str, directory: Path) -> None:
    read, options = TASKS[name]
    splits = read(directory)
    counts = ", ".join(f"{len(texts):,} {split}" for split, (texts, _) in splits._asdict().items())
    print(f"{name}: {counts}; columns: accuracy of weft and scikit-learn, difference of probabilities, seconds of both")
    data = Dataset(splits, feature_config(options, tfidf=False))
    measure_naive_bayes(data)
    measure_regression(data)
    measure_regression(Dataset(splits, feature_config(options)))


def measure_features(directory: Path) -> None:
    """Print the speed of the features on long texts."""
    with gzip.open(directory / "tatoeba-eng-fra" / "fra.txt.gz", "rt", encoding="utf-8") as file:
        lines = [cell for row in file for cell in row.split("\t")[:2]]
    rng = random.Random(0)
    texts = ["\n".join(rng.choices(lines, k=60)) for _ in range(11_314)]
    print(f"size: {len(texts):,} texts, {sum(map(len, texts)) / 1e6:.1f} M characters; seconds of fit and transform")
    for analyzer, ngram_range in (("word", [1, 1]), ("word", [1, 2]), ("char_wb", [1, 4])):
        config = feature_config({"analyzer": analyzer, "ngram_range": ngram_range})
        features, fit_seconds = timed(Features.fit, texts, config)
        _, transform_seconds = timed(features.transform, texts)
        vectorizer = sklearn_vectorizer(config)
        _, sklearn_fit_seconds = timed(vectorizer.fit_transform, texts)
        _, sklearn_transform_seconds = timed(vectorizer.transform, texts)
        name = f"{analyzer} {ngram_range[0]}-{ngram_range[1]}, {features.num_features:,} terms"
        print(f"  {name:<30} {fit_seconds:5.1f} {transform_seconds:5.1f}", end="; ")
        print(f"scikit-learn (fit_transform) {sklearn_fit_seconds:5.1f} {sklearn_transform_seconds:5.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED_DATA, help="directory with trec, sst and names-by-language")
    parser.add_argument("--only", action="append", choices=[*TASKS, "size"], help="measure only this; repeatable")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    require_data(parser, args.data)
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore", ConvergenceWarning)
    for name in args.only or [*TASKS, "size"]:
        if name == "size":
            measure_features(args.data)
        else:
            measure_task(name, args.data)


if __name__ == "__main__":
    main()
