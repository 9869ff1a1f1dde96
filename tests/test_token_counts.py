"""Budgets, logs and speeds count tokens, whatever unit a task averages its loss over."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from label_runs import LabelRuns
from seq2seq_runs import make_pairs, seq2seq_run_file
from small_runs import SilentCallback, make_text, run_file, train_here
from toy_qa import make_questions, qa_run_file, write_tsv

import weft
from weft.cli.main import main
from weft.config import override
from weft.tasks.seq2seq.data import pairs

pytestmark = pytest.mark.usefixtures("restore_openmp_env")


def files_of(directory: Path, *settings: str) -> dict[str, dict[str, Any]]:
    """A run file of each task, one epoch long."""
    labels = LabelRuns(directory)
    lines = run_file(make_text(directory / "text.txt"), task="masked-lm", data__read_as="lines", train__batch_tokens=200)
    actual = {
        "classification": labels.values("labels-lstm"),
        "two texts": labels.values("pairs-lstm"),
        "tagging": labels.values("spans-lstm"),
        "qa": qa_run_file(write_tsv(directory / "asked.tsv", make_questions(60)), "gru"),
        "masked-lm": {
            **lines,
            "model": {"arch": "bert", "hidden_size": 16, "num_heads": 2, "num_layers": 1},
            "tokenizer": {"type": "word"},
        },
        "seq2seq": seq2seq_run_file(make_pairs(directory / "words.tsv", 100), "luong", "train.label_smoothing=0"),
    }
    for values in actual.values():
        values["train"].pop("max_steps", None)
        values["train"]["num_validations"] = 1
    return {name: override(values, settings) for name, values in actual.items()}


TASKS = ["classification", "two texts", "tagging", "qa", "masked-lm", "seq2seq"]
UNITS = {"classification": "example", "two texts": "example", "tagging": "word", "qa": "window", "masked-lm": "masked_token"}


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().split("\n")[:-1]]


def tokens_of(run: Any, name: str) -> int:
    """Number of tokens of the training data with <s> and </s>, from the tokenizer alone."""
    source = run.config.datasets["train"]
    if name == "seq2seq":
        return sum(1 + len(run.vocabulary.target.encode(target)) for _, target in pairs(source))
    if name == "masked-lm":
        return sum(2 + len(run.vocabulary.encode(text)) for text in source.texts())
    if name == "qa":
        records = list(source.records())
        return sum(
            3 + sum(len(run.vocabulary.encode(text)) for text in (record.question, record.passage)) for record in records
        )
    encode = run.vocabulary.tokenizer.encode
    if name == "tagging":
        return sum(2 + sum(len(encode(word)) for word in record.words) for record in source.records())
    return sum(1 + sum(1 + len(encode(text)) for text in record.texts) for record in source.records())


@pytest.mark.parametrize("name", TASKS)
def test_an_epoch_has_as_many_tokens_as_the_data(name, tmp_path, capsys):
    callback = SilentCallback()
    folder = train_here(files_of(tmp_path, "train.max_epochs=1")[name], tmp_path / "run", callback).path
    run = weft.load(folder, device="cpu")
    expected = tokens_of(run, name)
    logged = [record for record in metrics(folder) if "tokens" in record]
    assert logged[-1]["tokens"] == expected
    last = json.loads((folder / "timings.jsonl").read_text().split("\n")[-2])
    assert last["tokens_per_second"] * last["seconds"] == pytest.approx(expected)
    assert main(["info", str(folder)]) == 0
    assert re.search(rf"^Training .* {expected:,} tokens, ", capsys.readouterr().out, re.MULTILINE)
    # the unit of the mean loss is unchanged, and its name states it
    losses = [record["train_loss"] for record in logged]
    assert losses == pytest.approx(callback.losses)


@pytest.mark.parametrize("name", ["classification", "qa", "masked-lm"])
def test_max_tokens_counts_tokens(name, tmp_path):
    values = files_of(tmp_path, "train.max_tokens=3000")[name]
    folder = train_here(values, tmp_path / "run").path
    logged = [record["tokens"] for record in metrics(folder) if "tokens" in record]
    assert logged[-1] >= 3000 > logged[-2]
    assert logged[-1] - logged[-2] <= values["train"]["batch_tokens"]


def test_models_without_a_network_count_words_and_examples(tmp_path, capsys):
    folder = train_here(LabelRuns(tmp_path).values("labels-logistic-regression"), tmp_path / "run").path
    examples = list(weft.load(folder).config.datasets["train"].records())
    (record,) = metrics(folder)
    assert record["examples"] == len(examples)
    assert record["tokens"] == sum(len(text.split()) for example in examples for text in example.texts)
    assert main(["info", str(folder)]) == 0
    assert f"fitted to {len(examples)} examples" in capsys.readouterr().out
    assert main(["info", str(folder), "--json"]) == 0
    progress = json.loads(capsys.readouterr().out)["progress"]
    assert (progress["tokens"], progress["examples"]) == (record["tokens"], len(examples))
