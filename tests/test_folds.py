"""Cross-validation: `data.fold` makes one fold of the training data the validation data."""

from pathlib import Path
from typing import Any

import pytest
from label_runs import single_label_rows, tagged_sentences, write_conll, write_tsv

from weft.errors import ConfigError
from weft.runs.resolve import resolve

NUM_FOLDS = 3
SPLITS = ("train", "valid", "test")


def datasets(task: str, arch: str, path: Path, **data: Any) -> dict[str, Any]:
    values = {"task": task, "model": {"arch": arch}, "data": {"train": str(path), "test": 0.1, **data}}
    return resolve(values, base=path.parent).datasets


def check_partition(train: list[Any], folds: list[dict[str, list[Any]]], test: list[Any]) -> None:
    """Every training example is validation data of one fold; the rest is its training data; the test data is the same."""
    assert sorted(row for fold in folds for row in fold["valid"]) == sorted(train)
    for fold in folds:
        assert fold["test"] == test
        assert sorted([*fold["train"], *fold["valid"]]) == sorted(train) and not set(fold["train"]) & set(fold["valid"])
        assert abs(len(fold["valid"]) - len(train) / NUM_FOLDS) <= 1


def read_rows(splits: dict[str, Any]) -> dict[str, list[Any]]:
    return {name: [row.line for row in splits[name].rows()] for name in SPLITS if name in splits}


def make_file(task: str, directory: Path) -> Path:
    path = directory / {"classification": "a.tsv", "tagging": "a.conll", "seq2seq": "a.csv", "lm": "a.txt"}[task]
    if task == "classification":
        return write_tsv(path, single_label_rows(101))
    if task == "tagging":
        return write_conll(path, tagged_sentences(101))
    line = "source {0},target {0}\n" if task == "seq2seq" else "line {0}\n"
    path.write_text(("source,target\n" if task == "seq2seq" else "") + "".join(line.format(n) for n in range(101)))
    return path


@pytest.mark.parametrize(
    ("task", "arch", "data"),
    [
        ("classification", "lstm", {}),
        ("tagging", "lstm", {}),
        ("seq2seq", "luong", {}),
        ("lm", "gpt", {"read_as": "lines"}),
        ("lm", "gpt", {"read_as": "windows"}),
    ],
)
def test_every_training_example_is_validation_data_once(task, arch, data, tmp_path):
    path = make_file(task, tmp_path)
    whole = read_rows(datasets(task, arch, path, **data))
    folds = [read_rows(datasets(task, arch, path, fold=[index, NUM_FOLDS], **data)) for index in range(1, NUM_FOLDS + 1)]
    assert len(whole["train"]) + len(whole["test"]) == 101
    check_partition(whole["train"], folds, whole["test"])  # running text is split at line ends
    if data.get("read_as") != "windows":
        return
    text = [datasets(task, arch, path, fold=[index, NUM_FOLDS], **data)["valid"] for index in range(1, NUM_FOLDS + 1)]
    assert "".join(chunk for split in text for chunk in split.chunks()) == "".join(
        datasets(task, arch, path, **data)["train"].chunks()
    )


def test_folds_of_labeled_texts_are_stratified(tmp_path):
    path = make_file("classification", tmp_path)
    for index in range(1, NUM_FOLDS + 1):
        valid = datasets("classification", "lstm", path, fold=[index, NUM_FOLDS])["valid"]
        labels = [record.labels[0] for record in valid.records()]
        counts = [labels.count(label) for label in set(labels)]
        assert len(counts) == len({label for label, _ in single_label_rows(101)}) and max(counts) - min(counts) <= 2


def test_the_tokens_of_a_fold_are_not_those_of_another(tmp_path):
    path = make_file("lm", tmp_path)
    splits = [datasets("lm", "gpt", path, read_as="lines", fold=[index, 3])["train"] for index in (1, 2)]
    assert splits[0].provenance() != splits[1].provenance()
    assert splits[0].size() < path.stat().st_size * 0.7


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"fold": [0, 3]}, "1 <= I <= N"),
        ({"fold": [4, 3]}, "1 <= I <= N"),
        ({"fold": [1, 1]}, "N >= 2"),
        ({"fold": [1, 3], "valid": 0.1}, "data.valid is not set"),
    ],
)
def test_invalid_folds_are_refused(data, problem, tmp_path):
    with pytest.raises(ConfigError, match=problem):
        datasets("lm", "gpt", make_file("lm", tmp_path), **data)


def test_a_fold_is_validation_data_for_early_stopping(tmp_path):
    values = {"task": "lm", "data": {"train": str(make_file("lm", tmp_path)), "fold": [1, 2]}, "train": {"patience": 2}}
    assert resolve({**values, "model": {"arch": "gpt"}}, base=tmp_path).train.patience == 2
