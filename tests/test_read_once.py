"""Files are read, and texts tokenized, as often as needed and no more."""

from __future__ import annotations

import numpy as np
import pytest
from label_runs import classification_run_file, single_label_rows, tagged_sentences, tagging_run_file, write_conll, write_tsv
from small_runs import train_here

import weft
from weft.data.config import datasets
from weft.tasks.tagging import data as tagging_data
from weft.tasks.tagging.data import TaggedDataConfig, TaggedFormat
from weft.text.tokenizers import Tokenizer

pytestmark = pytest.mark.usefixtures("restore_openmp_env")


@pytest.fixture
def reads(monkeypatch):
    """The files of each call that reads tagged sentences."""
    calls, read_sentences = [], tagging_data.read_sentences

    def counting(paths, reading, summary):
        calls.append(tuple(path.name for path in paths))
        return read_sentences(paths, reading, summary)

    monkeypatch.setattr(tagging_data, "read_sentences", counting)
    return calls


def test_training_and_evaluation_of_a_tagger_read_its_file_once(tmp_path, reads):
    data = write_conll(tmp_path / "tagged.txt", tagged_sentences(60))
    train_here(tagging_run_file(data, "lstm", "train.max_steps=2", "train.num_validations=1"), tmp_path / "run")
    assert reads == [("tagged.txt",)]
    weft.load(tmp_path / "run", device="cpu").evaluate()
    assert reads == [("tagged.txt",)] * 2


def test_splits_of_one_file_share_its_records_and_others_do_not(tmp_path, reads):
    write_conll(tmp_path / "a.txt", tagged_sentences(40))
    write_conll(tmp_path / "b.txt", tagged_sentences(20, seed=1))
    config = TaggedDataConfig.model_validate({"train": "a.txt", "valid": 0.25, "test": "b.txt"})
    splits = datasets(tmp_path, TaggedFormat(), config)
    found = {name: [record.words for record in split.records()] for name, split in splits.items()}
    assert {name: len(records) for name, records in found.items()} == {"train": 30, "valid": 10, "test": 20}
    assert sorted(reads) == [("a.txt",), ("b.txt",)]
    alone = {name: [record.words for record in split_alone(split).records()] for name, split in splits.items()}
    assert found == alone


def split_alone(split):
    """The same split without the records that splits share."""
    return type(split)(split.inputs, split.format, split.low, split.high, split.without)


@pytest.mark.parametrize("arch", ["naive-bayes", "logistic-regression"])
def test_baselines_that_need_no_tokens_tokenize_nothing(tmp_path, monkeypatch, arch):
    calls = []
    for name in ("encode", "encode_batch", "encode_lines"):
        monkeypatch.setattr(Tokenizer, name, lambda *words, name=name: calls.append(name))
    data = write_tsv(tmp_path / "labeled.tsv", single_label_rows(90))
    train_here(classification_run_file(data, arch), tmp_path / "run")
    run = weft.load(tmp_path / "run")
    run.evaluate()
    assert len(run.predict(["the red cat", "a saw"])) == 2
    assert calls == [] and not list((tmp_path / "run" / "data").glob("*.tokens"))


def test_the_counter_counts(tmp_path, monkeypatch):
    """A network tokenizes: the test above would fail for it."""
    calls, encode_lines = [], Tokenizer.encode_lines
    monkeypatch.setattr(Tokenizer, "encode_lines", lambda self, texts: calls.append(1) or encode_lines(self, texts))
    data = write_tsv(tmp_path / "labeled.tsv", single_label_rows(90))
    train_here(classification_run_file(data, "lstm", "train.max_steps=1", "train.num_validations=1"), tmp_path / "run")
    assert np.sum(calls) >= 3
