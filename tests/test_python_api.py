"""The Python API: training with callbacks, data in memory, single inputs and lists, and type checks of the docs."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compare_helpers import InProcessTrainer
from rich.console import Console
from small_runs import make_text, run_file, run_hashes

import weft
from weft.comparison import runner as comparing
from weft.config import apply_overrides
from weft.errors import ConfigError, DataError, ModelError, TrainingInterrupted, UsageError
from weft.explain.alignment import Alignment
from weft.runs.progress_bar import progress_bar

ROOT = Path(__file__).parents[1]
REVIEWS = [("good soup", "yes"), ("bad soup", "no"), ("nice room", "yes"), ("awful room", "no")]
BAYES: dict[str, Any] = {"task": "classification", "model": {"arch": "naive-bayes"}}
NGRAM: dict[str, Any] = {"task": "lm", "model": {"arch": "ngram", "order": 2}}


@pytest.fixture
def lm(tmp_path: Path) -> dict[str, Any]:
    return run_file(make_text(tmp_path / "text.txt"), "lstm", train__max_steps=6, train__num_validations=2)


class Remembers(weft.TrainCallback):
    """Records events; stops after a step if requested."""

    def __init__(self, last: int | None = None) -> None:
        self.last, self.steps, self.told = last, list[weft.TrainProgress](), list[str]()

    def on_note(self, text: str) -> None:
        self.told.append("note")

    def on_progress(self, phase: str, done: int, total: int) -> None:
        self.told.append(phase)

    def on_step(self, state: weft.TrainProgress, loss: float) -> None:
        assert loss > 0
        self.steps.append(state)

    def on_validation(self, state: weft.TrainProgress, metrics: Mapping[str, float]) -> None:
        self.told.append(next(iter(metrics)))

    def on_fit(self, num_parameters: int, metrics: Mapping[str, float]) -> None:
        self.told.append(f"fit {num_parameters}")

    def should_stop(self) -> bool:
        return bool(self.steps) and self.steps[-1].step == self.last


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# ---- training


def test_callback_receives_all_events(lm, tmp_path):
    callback = Remembers()
    run = weft.train(lm, output_dir=tmp_path / "run", callback=callback)
    assert run.directory.path == tmp_path / "run" and run.config.arch == "lstm"
    assert [state.step for state in callback.steps] == [1, 2, 3, 4, 5, 6]
    last = callback.steps[-1]
    assert (last.total_steps, last.progress, last.best_step) == (6, 1.0, callback.steps[2].step)
    assert {"note", "tokenizing train", "validating", "loss"} <= {*callback.told}
    counted = Remembers()
    weft.train({**lm, "model": {"arch": "ngram"}, "train": {}}, output_dir=tmp_path / "counted", callback=counted)
    assert not counted.steps and counted.told[-1].startswith("fit ")


def test_a_resumed_run_equals_an_uninterrupted_run(lm, tmp_path):
    weft.train(lm, output_dir=tmp_path / "whole")
    with pytest.raises(TrainingInterrupted) as caught:
        weft.train(lm, output_dir=tmp_path / "run", callback=Remembers(last=4))
    assert str(caught.value) == f"{tmp_path / 'run'}: training was interrupted and has saved; train again to resume"
    assert caught.value.exit_code == 130
    weft.train(lm, output_dir=tmp_path / "run")
    assert run_hashes(tmp_path / "run") == run_hashes(tmp_path / "whole")
    again = Remembers()
    assert weft.train(lm, output_dir=tmp_path / "run", callback=again).num_parameters and not again.steps  # already finished
    weft.train(lm, output_dir=tmp_path / "run", callback=again, overwrite=True)
    assert len(again.steps) == 6


class Interrupted(Remembers):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def on_step(self, state: weft.TrainProgress, loss: float) -> None:
        super().on_step(state, loss)
        if state.step == 3 and self.how == "raised":
            raise KeyboardInterrupt
        if state.step == 3:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("source", ["raised", "sent"])
def test_keyboard_interrupt_saves_and_stops(lm, tmp_path, source):
    before = signal.getsignal(signal.SIGINT)
    callback = Interrupted(source)
    with pytest.raises(TrainingInterrupted):
        weft.train(lm, output_dir=tmp_path / "run", callback=callback)
    assert [state.step for state in callback.steps] == [1, 2, 3]
    assert signal.getsignal(signal.SIGINT) is before
    resumed = Remembers()
    weft.train(lm, output_dir=tmp_path / "run", callback=resumed)
    assert [state.step for state in resumed.steps] == [4, 5, 6]


def test_keyboard_interrupt_before_the_first_step_propagates(lm, tmp_path):
    class Early(weft.TrainCallback):
        def on_note(self, text: str) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        weft.train(lm, output_dir=tmp_path / "run", callback=Early())


def test_training_works_in_any_thread(lm, tmp_path):
    results: list[weft.Run[Any, Any]] = []
    thread = threading.Thread(target=lambda: results.append(weft.train(lm, output_dir=tmp_path / "run")))
    thread.start()
    thread.join()
    assert results[0].num_parameters


def test_run_directory_equals_that_of_the_command_line(lm, tmp_path, monkeypatch):
    import tomli_w

    monkeypatch.chdir(tmp_path)
    file = {**lm, "model": {"arch": "ngram"}, "train": {}}
    Path("mine.toml").write_text(tomli_w.dumps(file))
    assert weft.train("mine.toml").directory.path == Path("runs/mine")
    assert weft.train(file, overrides={"model": {"order": 2}}).directory.path == Path("runs/run")


def test_overrides_are_strings_or_a_dict():
    values = {"task": "lm", "model": {"arch": "lstm", "hidden_size": 8}, "train": {"max_steps": 5}}
    expected = {"task": "lm", "model": {"arch": "lstm", "hidden_size": 16}, "train": {"max_epochs": 2}}
    for overrides in (["model.hidden_size=16", "train.max_epochs=2"], {"model.hidden_size": 16, "train": {"max_epochs": 2}}):
        assert apply_overrides(values, overrides) == expected
    assert apply_overrides(values, "model.hidden_size=16")["model"] == expected["model"]
    assert values["train"] == {"max_steps": 5}
    with pytest.raises(ConfigError, match=r"^overrides: task\.kind is not an option; task is not a table$"):
        apply_overrides(values, {"task.kind": 1})


def test_progress_bar_is_one_line_in_a_terminal_and_absent_elsewhere(lm, tmp_path, capsys):
    state = weft.TrainProgress(3, 6, 0, 100, 1.0, 0.5, None, 0)
    for terminal in (True, False):
        stream = io.StringIO()
        with progress_bar(Console(file=stream, force_terminal=terminal, width=100)) as bar:
            bar.on_progress("tokenizing train", 2, 2)
            bar.on_step(state, 1.25)
            bar.on_validation(state, {"loss": 2.5})
            bar.on_step(state, 1.5)
        text_printed = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
        assert ("3/6  loss 1.5000  loss 2.5000" in text_printed) == terminal
        assert bool(text_printed) == terminal
        assert "0:00:00" not in text_printed.partition("loss")[2]  # each phase has its own progress
    weft.train(lm, output_dir=tmp_path / "run")
    assert capsys.readouterr() == ("", "")


# ---- data in memory


class FakePandas:
    """The parts of pandas.DataFrame that weft uses."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self._columns = columns

    @property
    def columns(self) -> list[str]:
        return list(self._columns)

    def itertuples(self, *, index: bool, name: str | None) -> Iterator[tuple[Any, ...]]:
        assert not index and name is None
        return iter(zip(*self._columns.values(), strict=True))


class FakePolars:
    """The parts of polars.DataFrame that weft uses."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self._columns = columns

    @property
    def columns(self) -> list[str]:
        return list(self._columns)

    def iter_rows(self, *, named: bool = False) -> Iterator[dict[str, Any]]:
        assert named
        return (dict(zip(self._columns, row, strict=True)) for row in zip(*self._columns.values(), strict=True))


class FakeArrow:
    """The parts of pyarrow.Table that weft uses."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self._columns = columns

    def to_pylist(self) -> list[dict[str, Any]]:
        return [dict(zip(self._columns, row, strict=True)) for row in zip(*self._columns.values(), strict=True)]


COLUMNS = {
    "label": [label for _, label in REVIEWS],
    "text": [text for text, _ in REVIEWS],
    "when": [1.0, 2.0, 3.0, float("nan")],
}


def real(package: str, make: str) -> Any:
    """A table of an optional package."""
    return getattr(pytest.importorskip(package), make)(COLUMNS)


@pytest.mark.parametrize(
    "make",
    {
        "tuples": lambda: REVIEWS,
        "lists": lambda: [list(item) for item in REVIEWS],
        "dicts": lambda: [{"text": text, "label": label, "more": object()} for text, label in REVIEWS],
        "generator": lambda: (item for item in REVIEWS),
        "columns": lambda: COLUMNS,
        "arrays": lambda: {name: np.array(column, dtype=object) for name, column in COLUMNS.items()},
        "pandas-like": lambda: FakePandas(COLUMNS),
        "polars-like": lambda: FakePolars(COLUMNS),
        "arrow-like": lambda: FakeArrow(COLUMNS),
        "pandas": lambda: real("pandas", "DataFrame"),
        "polars": lambda: real("polars", "DataFrame"),
        "pyarrow": lambda: real("pyarrow", "table"),
    }.items(),
    ids=lambda item: item[0],
)
def test_data_containers_give_the_same_run(tmp_path, make):
    run = weft.train(BAYES, output_dir=tmp_path / "run", data={"train": make[1]()})
    written = (tmp_path / "run" / "inputs" / "train.jsonl").read_text()
    assert [json.loads(line) for line in written.splitlines()] == [{"text": text, "label": label} for text, label in REVIEWS]
    assert run.predict("good room").labels == ("yes",)
    again = run.evaluate(make[1]())
    assert again["accuracy"].value == 100.0 and again.units == 4


def test_predictions_for_tables_equal_those_for_their_inputs(tmp_path):
    run = weft.train(BAYES, output_dir=tmp_path / "run", data={"train": REVIEWS})
    expected = run.predict([text for text, _ in REVIEWS])
    for table in (COLUMNS, FakePandas(COLUMNS), FakePolars(COLUMNS), FakeArrow(COLUMNS), FakeArrow(COLUMNS).to_pylist()):
        assert run.predict(table) == expected
    assert run.predict(text for text, _ in REVIEWS) == expected and run.predict(np.array(COLUMNS["text"])) == expected
    with pytest.raises(DataError) as caught:
        run.predict([{"txt": "good"}])
    assert str(caught.value) == "inputs: record 1: no key 'text'; did you mean 'txt'?"


def test_data_in_memory_is_recorded_and_required_to_resume(tmp_path):
    out, data = tmp_path / "run", {"train": REVIEWS, "test": REVIEWS[:2]}
    run = weft.train(BAYES, output_dir=out, data=data)
    assert run.evaluate()["accuracy"].value == 100.0
    assert weft.load(out).evaluate().units == 2
    before = contents(out)
    weft.train(BAYES, output_dir=out, data=data)
    assert contents(out) == before
    with pytest.raises(UsageError) as caught:
        weft.train(BAYES, output_dir=out, data={**data, "train": REVIEWS[:3]})
    assert str(caught.value) == (
        f"data['train']: differs from the data that {out} is trained on; pass the same data to resume, choose another `output_dir`, "
        "or use `overwrite`"
    )
    assert contents(out) == before
    weft.train(BAYES, output_dir=out, data={**data, "train": REVIEWS[:3]}, overwrite=True)
    assert len((out / "inputs" / "train.jsonl").read_text().splitlines()) == 3


def test_a_network_resumes_with_the_same_data(lm, tmp_path):
    texts = Path(lm["data"]["train"]).read_text().splitlines()
    values = {**lm, "data": {"read_as": "lines"}}
    data = {"train": texts, "valid": 0.2}
    with pytest.raises(TrainingInterrupted):
        weft.train(values, output_dir=tmp_path / "run", data=data, callback=Remembers(last=3))
    with pytest.raises(UsageError, match="differs from the data that"):
        weft.train(values, output_dir=tmp_path / "run", data={**data, "train": texts[:-1]})
    resumed = Remembers()
    run = weft.train(values, output_dir=tmp_path / "run", data={**data, "train": iter(texts)}, callback=resumed)
    assert [state.step for state in resumed.steps] == [4, 5, 6]
    from_file = {**lm, "data": {**lm["data"], "read_as": "lines", "valid": 0.2}}
    assert run.config.data.valid == 0.2
    other = weft.train(from_file, output_dir=tmp_path / "file")
    assert run.score("the cat") == other.score("the cat")


def test_every_task_takes_data_in_memory(tmp_path):
    few = {"train": {"max_steps": 1, "batch_tokens": 64, "device": "cpu"}}
    small = {"hidden_size": 8, "num_layers": 1}
    translate = {"task": "seq2seq", "model": {"arch": "transformer", "num_heads": 2, **small}, **few}
    pairs = weft.train(translate, output_dir=tmp_path / "pairs", data={"train": [("a b", "A B"), ("b", "B")]})
    assert isinstance(pairs.predict("a b", max_new_tokens=3).text, str)
    assert pairs.evaluate({"source": ["a"], "target": ["A"]}, beam_size=1).units == 1
    tag = {"task": "tagging", "model": {"arch": "lstm", **small}, **few}
    sentences = [(["Ida", "works"], ["B-PER", "O"]), ("Otto sleeps", "B-PER O")]
    tagger = weft.train(tag, output_dir=tmp_path / "tags", data={"train": sentences})
    assert (tmp_path / "tags" / "inputs" / "train.conll").read_text() == "Ida\tB-PER\nworks\tO\n\nOtto\tB-PER\nsleeps\tO\n\n"
    assert len(tagger.predict("Ida sleeps").tags) == 2
    questions = [("who ?", "Ida works", "Ida"), {"question": "what ?", "passage": "she works", "answer": None}]
    qa = weft.train(
        {"task": "qa", "model": {"arch": "lstm", **small}, **few}, output_dir=tmp_path / "qa", data={"train": questions}
    )
    assert qa.evaluate(questions).units == 2
    masked = {
        "task": "masked-lm",
        "model": {"arch": "transformer", "num_heads": 2, **small},
        "data": {"read_as": "lines"},
        **few,
    }
    filler = weft.train(masked, output_dir=tmp_path / "masked", data={"train": ["the cat", "the dog"] * 4})
    assert len(filler.predict("the [MASK]", n_best=2)[0]) == 2


def test_columns_are_named_by_the_run_file(tmp_path):
    values = {**BAYES, "data": {"text_column": ["title", "body"], "label_column": "stars"}}
    rows = [{"body": "bb " * n, "stars": n % 2, "title": "tt"} for n in range(1, 5)]
    run = weft.train(values, output_dir=tmp_path / "run", data={"train": rows})
    assert run.labels == ("0", "1")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"train": []}, "data['train']: is empty"),
        ({"train": 7.5}, None),
        ({"training": REVIEWS}, "data: unknown split 'training'; did you mean 'train'?"),
        ([REVIEWS], 'data: expected a dict of splits, got list; pass {"train": ..., "valid": 0.1}'),
        ({"train": object()}, "data['train']: expected a path, a list of records, a dict of columns or a table, got object"),
        (
            {"train": {"text": ["a"], "label": ["x", "y"]}},
            "data['train']: columns have different lengths: 'text' (1), 'label' (2)",
        ),
        (
            {"train": {"text": "a", "label": ["x"]}},
            "data['train']: expected a list as column 'text', got str",
        ),
        (
            {"train": [{"text": "a", "lable": "x"}]},
            "data['train']: record 1: no key 'label'; did you mean 'lable'?",
        ),
        ({"train": [("a", "x", 1)]}, "data['train']: record 1: expected a dict or a tuple (text, label), got 3 values"),
        ({"train": [REVIEWS[0], 7]}, "data['train']: record 2: expected a dict or a tuple (text, label), got int"),
        (
            {"train": [("a", object())]},
            "data['train']: record 1: cannot be written as JSON: Object of type object is not JSON serializable",
        ),
        ({"train": [("a\ud800", "x")]}, "data['train']: cannot be encoded as utf-8: surrogates not allowed"),
        ({"train": ["a"]}, None),
        (REVIEWS, 'data: expected a dict of splits, got list; pass {"train": ..., "valid": 0.1}'),
        ("reviews.tsv", 'data: expected a dict of splits, got str; pass {"train": ..., "valid": 0.1}'),
        ({1: REVIEWS}, "data: unknown split 1; choose from train, valid, test"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else str(value),  # the repr of an object has an address
)
def test_invalid_data_is_rejected(tmp_path, data, message):
    with pytest.raises(weft.errors.WeftError) as caught:
        weft.train(BAYES, output_dir=tmp_path / "run", data=data)
    assert message is None or str(caught.value).startswith(message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "record", "message"),
    [
        ({}, (["a"], ["X", "Y"]), "record 1: 1 words and 2 tags; give each word one tag"),
        ({}, (["a\tb"], ["X"]), "record 1: 'words' contains 'a\\tb', which a column cannot contain; change or remove it"),
        ({}, (["a"], [1]), "record 1: expected a list of strings or a string with spaces as 'tags'"),
        ({"tag_column": "pos"}, (["a"], ["X"]), "data: unknown column 'pos'; did you mean 'xpos'?"),
    ],
    ids=str,
)
def test_invalid_tagged_sentences_are_rejected(tmp_path, options, record, message):
    values = {"task": "tagging", "model": {"arch": "lstm"}, "data": options}
    with pytest.raises(DataError) as caught:
        weft.train(values, output_dir=tmp_path / "run", data={"train": [record]})
    assert str(caught.value).removeprefix("data['train']: ").startswith(message)


@pytest.mark.parametrize(
    ("options", "name", "line"),
    [
        ({"tag_column": 3}, "train.conll", "Ida\t_\tX"),
        ({"tag_column": "xpos"}, "train.conllu", "1\tIda\t_\t_\tX\t_\t_\t_\t_\t_"),
    ],
    ids=str,
)
def test_tagged_sentences_use_the_configured_columns(tmp_path, options, name, line):
    values = {
        "task": "tagging",
        "model": {"arch": "lstm", "hidden_size": 8, "num_layers": 1},
        "data": options,
        "train": {"max_steps": 1},
    }
    run = weft.train(values, output_dir=tmp_path / "run", data={"train": {"words": [["Ida"]], "tags": [["X"]]}})
    assert (tmp_path / "run" / "inputs" / name).read_text() == f"{line}\n\n"
    assert run.labels == ("X",)


def test_column_indices_are_rejected_for_data_in_memory(tmp_path):
    values = {**BAYES, "data": {"text_column": 2, "label_column": 1}}
    with pytest.raises(UsageError) as caught:
        weft.train(values, output_dir=tmp_path / "run", data={"train": REVIEWS})
    assert str(caught.value) == "data: column 2 is an index, but records in memory have names; use the name of a key instead"


def test_a_task_without_support_for_data_in_memory_is_reported(tmp_path, monkeypatch):
    from dataclasses import replace

    from weft.tasks.registry import find_task

    task = find_task("classification")
    plain = replace(task, data=replace(task.data, in_memory=None))
    monkeypatch.setattr("weft.runs.memory_data.find_task", lambda name: plain)
    with pytest.raises(UsageError) as caught:
        weft.train(BAYES, output_dir=tmp_path / "run", data={"train": REVIEWS})
    assert str(caught.value) == "data: task 'classification' reads files only; pass their paths"


def test_texts_that_are_file_names_are_rejected(tmp_path):
    path = make_text(tmp_path / "text.txt")
    lines = {**NGRAM, "data": {"read_as": "lines"}}
    with pytest.raises(UsageError) as caught:
        weft.train(lines, output_dir=tmp_path / "run", data={"train": [str(path)]})
    assert str(caught.value) == "data['train']: the texts are names of files; use pathlib.Path for paths, str for texts"
    run = weft.train(lines, output_dir=tmp_path / "run", data={"train": [path]})
    assert run.config.data.train == [str(path)] and not (tmp_path / "run" / "inputs").exists()
    assert run.evaluate([path])["loss"].value == run.evaluate(path)["loss"].value
    texts = path.read_text().splitlines()
    assert run.evaluate(texts)["loss"].value == run.evaluate(path)["loss"].value
    with pytest.raises(DataError) as fault:
        run.evaluate(["a", "b\nc"])
    message = "contains a newline, but the run reads one text per line; split it"
    assert str(fault.value) == f"data: record 2: {message}"
    with pytest.raises(DataError, match="record 1: expected a string, got int"):
        run.evaluate([1])


# ---- the rest


def test_check_equals_the_command(tmp_path):
    (tmp_path / "twice.csv").write_text("text,label\n" + "the same text,yes\n" * 8 + "another,no\n")
    values = {**BAYES, "data": {"train": str(tmp_path / "twice.csv"), "test": str(tmp_path / "twice.csv")}}
    actual = weft.check(values)
    assert any(item.severity == "error" or item.severity == "warning" for item in actual)
    assert weft.check(values, overrides={"data.test": str(tmp_path / "none.csv")})[0].severity == "error"


def test_a_comparison_of_a_run_file_and_of_its_runs(lm, tmp_path, monkeypatch):
    monkeypatch.setattr(comparing, "ParallelTrainer", InProcessTrainer)
    InProcessTrainer.trained = []
    lm["data"]["test"] = 0.1
    callback = Remembers()
    options: dict[str, Any] = {"models": ["ngram", "lstm"], "seeds": 2, "max_tokens": 300}
    actual = weft.compare(lm, output_dir=tmp_path / "all", callback=callback, **options)
    assert {row.name: row.seeds for row in actual.rows} == {"ngram": [3, 4], "lstm": [3, 4]}
    assert actual.rows[0].best and actual.rows[0].score.value <= actual.rows[1].score.value
    assert actual.report == tmp_path / "all" / "report.html" and actual.report.is_file() and not actual.failures
    assert str(actual).split()[:2] == ["model", "loss"] and actual._repr_html_().count("<tr>") == 3
    assert {"note", "evaluating", "comparing"} <= {*callback.told}
    assert len(InProcessTrainer.trained) == 4
    again = weft.compare(lm, output_dir=tmp_path / "all", **options)
    assert len(InProcessTrainer.trained) == 4 and [row.score for row in again.rows] == [row.score for row in actual.rows]
    runs = [weft.load(tmp_path / "all" / "ngram-3"), tmp_path / "all" / "lstm-3", str(tmp_path / "all" / "lstm-4")]
    other = weft.compare(runs, output_dir=tmp_path / "runs", metric="bits_per_token")
    assert {len(row.runs) for row in other.rows} == {1, 2} and other.rows[0].metric.name == "bits_per_token"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_token": 3}, "compare.max_token: unknown option; did you mean 'max_tokens'?"),
        ({"max_tokens": 3, "max_minutes": 1.0}, "compare: `max_minutes` and `max_tokens` are both set; set only one"),
        ({"seeds": 0}, "seeds: must be at least 1, got 0"),
        ({"data": ["x.txt"]}, "data: only available for existing runs; set data.test in the run file"),
    ],
    ids=str,
)
def test_invalid_comparisons_are_rejected(lm, tmp_path, options, message):
    with pytest.raises(UsageError) as caught:
        weft.compare(lm, output_dir=tmp_path / "all", **options)
    assert str(caught.value).startswith(message)
    assert not (tmp_path / "all").exists()


def test_runs_that_cannot_be_compared_are_rejected(lm, tmp_path, monkeypatch):
    with pytest.raises(UsageError) as caught:
        weft.compare([], output_dir=tmp_path / "all")
    assert str(caught.value) == "compare: no runs to compare; pass run directories or a run file"
    with pytest.raises(UsageError) as caught:
        weft.compare([tmp_path / "run"], output_dir=tmp_path / "all", grid={"model.num_layers": [1]})
    assert str(caught.value) == "grid: not available for existing runs; pass a run file to train models"
    lm["data"]["test"] = 0.1
    weft.train(lm, output_dir=tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").write_bytes(b"x")
    with pytest.raises(ModelError) as damaged:
        weft.compare(tmp_path / "run", output_dir=tmp_path / "all")
    assert str(damaged.value).startswith("compare: all runs failed: lstm, seed 3: ")

    class Stops(InProcessTrainer):
        def train(self, plan: Any) -> Any:
            raise TrainingInterrupted("", "training was interrupted")

    monkeypatch.setattr(comparing, "ParallelTrainer", Stops)
    with pytest.raises(TrainingInterrupted) as stopped:
        weft.compare(lm, models="ngram,lstm", output_dir=tmp_path / "new")
    message = "the comparison was interrupted and has saved; compare again to resume"
    assert str(stopped.value) == f"{tmp_path / 'new'}: {message}"


def test_results_have_notebook_representations(tmp_path):
    run = weft.train(BAYES, output_dir=tmp_path / "run", data={"train": REVIEWS, "test": REVIEWS})
    evaluation = run.evaluate()
    assert evaluation._repr_html_().startswith(
        "<table><thead><tr><th></th><th>value</th><th>95% CI</th></tr></thead><tbody>"
        "<tr><td>accuracy</td><td>100.0</td><td>[100.0, 100.0]</td></tr>"
    )
    assert str(evaluation).splitlines()[1].split() == ["accuracy", "100.0", "[100.0,", "100.0]"]
    assert repr(evaluation).startswith("Evaluation(accuracy=100.0 [100.0, 100.0], ") and len(repr(evaluation)) < 500
    with pytest.raises(KeyError, match="bleu; available: accuracy, "):
        evaluation["bleu"]
    explanation = run.explain("good <soup>", "attribution")
    assert repr(explanation).startswith("Explanation(view='attribution', title='") and len(repr(explanation)) < 300
    assert repr(explanation).endswith(", 1 figure)")
    with pytest.raises(weft.errors.DataError, match=r"^input: expected a string, got NoneType$"):
        run.explain(None)
    assert str(explanation).splitlines()[0] == explanation.title
    html = explanation._repr_html_()
    assert html.startswith("<h4>") and "<svg" in html and "<soup>" not in html
    alignment = Alignment(["a", "b"], ["A"], np.array([[0.25, 0.75]]))
    assert "<svg" in alignment._repr_html_()


def test_an_explanation_is_saved_as_html_svg_or_json(tmp_path):
    run = weft.train(BAYES, output_dir=tmp_path / "run", data={"train": REVIEWS, "test": REVIEWS})
    explanation = run.explain("good soup", "attribution")
    (page,) = explanation.save(tmp_path / "page.html")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    figures = explanation.save(str(tmp_path / "figure.svg"))
    assert figures[0] == tmp_path / "figure.svg" and len(figures) == len(explanation.figures)
    assert [path.read_text(encoding="utf-8") for path in figures] == [figure.svg for figure in explanation.figures]
    (data,) = explanation.save(tmp_path / "data.json")
    assert json.loads(data.read_text(encoding="utf-8"))["view"] == "attribution"
    with pytest.raises(UsageError, match=r"^path: .*x\.pdf must end in \.html, \.svg, \.png or \.json$"):
        explanation.save(tmp_path / "x.pdf")


def test_importing_submodules_does_not_shadow_functions():
    code = "import weft, weft.training.loop; from weft.training import loop; print(callable(weft.train), loop.__name__)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "True weft.training.loop\n"


def test_python_in_the_docs_passes_type_checks(tmp_path):
    """With mypy --strict, using the cache of the last `make check` if there is one."""
    pytest.importorskip("mypy")
    files = []
    for page in (ROOT / "README.md", ROOT / "docs" / "tutorials" / "python.md"):
        actual = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
        files.append(tmp_path / f"{page.stem.lower()}_blocks.py")
        files[-1].write_text("\n".join(actual))
    words = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml")]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    done = subprocess.run([*words, *map(str, files)], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "Success: no issues found in 2 source files\n"), done.stdout + done.stderr
