"""A run reads its data files only if they are those of training: a run directory from elsewhere may name any file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import expect_error
from label_runs import classification_run_file, single_label_rows, tagged_sentences, tagging_run_file, write_conll, write_tsv
from small_runs import make_text, run_file, train_here

from weft.cli.main import main
from weft.errors import DataError, ModelError
from weft.runs.load import load

SECRET = "root:x:0:0:root of all:/root:/bin/sh\n" * 20


def differs(path: Path, split: str, run: Path, option: str = "`data`") -> str:
    return (
        f"{path}: differs from the {split} data of {run} (size or checksum in {run / 'data' / split}.json); "
        f"restore the file or set {option}"
    )


@pytest.fixture
def language(tmp_path: Path) -> tuple[Path, Path]:
    """A small language model, and its test data, which is another file by now."""
    text, test = make_text(tmp_path / "train.txt"), make_text(tmp_path / "test.txt", words=200, seed=9)
    train_here(run_file(text, "gpt", data__test=str(test), train__max_steps=2), tmp_path / "run")
    test.write_text(SECRET)
    return tmp_path / "run", test


def test_no_command_reads_a_file_that_training_did_not_read(language, capsys, monkeypatch, tmp_path):
    run, test = language
    monkeypatch.chdir(tmp_path)
    for command in (("evaluate",), ("compare", "--report", str(tmp_path / "report.html"))):
        assert expect_error(capsys, *command, str(run)) == (3, differs(test, "test", run, "--data"))
    assert not (tmp_path / "report.html").exists() and not (run / "evidence").exists()
    assert main(["evaluate", str(run), "--data", str(test)]) == 0  # a file that somebody names is read
    assert main(["compare", str(run), "--data", str(test), "--report", str(tmp_path / "page.html"), "-q"]) == 0
    capsys.readouterr()
    text = tmp_path / "train.txt"  # its validation data is a part of this
    text.write_text(SECRET)
    assert expect_error(capsys, "analyze", "geometry", str(run), "-q") == (3, differs(text, "valid", run, "--data"))
    assert expect_error(capsys, "prune", str(run), "-q") == (3, differs(text, "valid", run, "--data"))


def test_the_same_text_moved_or_restored_is_read(language, tmp_path):
    run, test = language
    make_text(test, words=200, seed=9)
    before = [score.value for score in load(run, device="cpu").evaluate()]
    test.unlink()  # the tokens that training left are the same text
    assert [score.value for score in load(run, device="cpu").evaluate()] == before


def test_a_run_without_a_record_reads_only_given_files(language):
    run, test = language
    for path in (run / "data").glob("test.*"):
        path.unlink()
    with pytest.raises(ModelError) as caught:
        load(run, device="cpu").evaluate()
    assert str(caught.value) == f"{run}: has no record of its test data; set `data`"
    # a size alone is guessed easily
    record = {"provenance": {"files": [{"file": "test.txt", "bytes": test.stat().st_size}]}}
    (run / "data" / "test.json").write_text(json.dumps(record))
    with pytest.raises(DataError) as other:
        load(run, device="cpu").evaluate()
    assert str(other.value) == differs(test, "test", run)


@pytest.mark.parametrize("kind", ["naive-bayes", "lstm"])
def test_labeled_texts(kind, tmp_path):
    data, test = (
        write_tsv(tmp_path / f"{name}.tsv", single_label_rows(60, seed=seed)) for seed, name in enumerate(("train", "test"))
    )
    values = classification_run_file(data, kind, f"data.test={test}", "train.max_steps=1")
    if kind != "lstm":
        values = {**values, "model": {"arch": kind}}
    run = train_here(values, tmp_path / "run").path
    assert load(run, device="cpu").evaluate().scores
    test.write_text("label\ttext\n" + "".join(f"good\t{line}\n" for line in SECRET.split("\n")[:-1]))
    with pytest.raises(DataError) as caught:
        load(run, device="cpu").evaluate()
    assert str(caught.value) == differs(test, "test", run)


def test_a_changed_training_text_counts_as_missing(tmp_path):
    """Which words training had is not told from another text."""
    data, test = (
        write_conll(tmp_path / f"{name}.txt", tagged_sentences(40, seed=at)) for at, name in enumerate(("train", "test"))
    )
    run = train_here(tagging_run_file(data, "lstm", f"data.test={test}", "train.max_steps=1"), tmp_path / "run").path
    known = {score.name for score in load(run, device="cpu").evaluate()}
    write_conll(data, tagged_sentences(40, seed=5))
    changed = {score.name for score in load(run, device="cpu").evaluate()}
    data.unlink()
    assert changed == {score.name for score in load(run, device="cpu").evaluate()} < known


def test_a_pruned_run_knows_the_data_of_the_original(language, capsys):
    run, test = language
    small = run.parent / "small"
    assert main(["prune", str(run), "--remove", "1", "--output-dir", str(small), "-q"]) == 0
    capsys.readouterr()
    assert expect_error(capsys, "evaluate", str(small)) == (3, differs(test, "test", small, "--data"))
    make_text(test, words=200, seed=9)
    assert main(["evaluate", str(small), "-q"]) == 0
    shutil.rmtree(small)
