"""Runs of every task that can be exported, in onnxruntime: equal to the run at other shapes, and the examples say what weft says."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from label_runs import (
    classification_run_file,
    single_label_rows,
    tagged_sentences,
    tagging_run_file,
    text_pair_rows,
    write_conll,
    write_tsv,
)
from seq2seq_runs import make_pairs, seq2seq_run_file
from small_runs import WORDS, make_text, run_file, train_here
from toy_qa import make_questions, qa_run_file
from toy_qa import write_tsv as write_questions

import weft
from weft.errors import ModelError, UsageError
from weft.interop import onnx_check, onnx_export
from weft.interop.export_record import ExportOptions
from weft.runs.resolve import resolve

SHORT = "train.max_steps=3"


def _preferences(path: Path) -> dict[str, Any]:
    rng = random.Random(1)
    rows = [(" ".join(rng.choices(WORDS, k=3)), *(" ".join(rng.choices(WORDS, k=4)) for _ in range(2))) for _ in range(60)]
    write_tsv(path, rows, "prompt\tchosen\trejected")
    return {
        "task": "reward-model",
        "recommend": False,
        "seed": 3,
        "data": {"train": str(path), "valid": 0.2, "prompt_column": "prompt"},
        "tokenizer": {"type": "bpe", "vocab_size": 300},
        "model": {"arch": "transformer", "hidden_size": 16, "num_layers": 1},
        "train": {"max_steps": 3, "batch_tokens": 300, "device": "cpu"},
    }


def _masked(path: Path) -> dict[str, Any]:
    values = run_file(make_text(path), "transformer", train__max_steps=3)
    return values | {"task": "masked-lm", "model": {"arch": "bert", "hidden_size": 16, "num_layers": 1}}


def _instructions(path: Path) -> dict[str, Any]:
    rng = random.Random(1)
    rows = [(" ".join(rng.choices(WORDS, k=3)), " ".join(rng.choices(WORDS, k=4))) for _ in range(60)]
    write_tsv(path, rows, "prompt\tresponse")
    return {
        "task": "instruction-tuning",
        "recommend": False,
        "seed": 3,
        "data": {"train": str(path), "valid": 0.2, "template": "Q: {prompt}\nA: {response}"},
        "tokenizer": {"type": "bpe", "vocab_size": 300},
        "model": {"arch": "gpt", "hidden_size": 16, "num_layers": 1},
        "train": {"max_steps": 3, "batch_tokens": 300, "device": "cpu"},
    }


def _denoising(path: Path) -> dict[str, Any]:
    return {
        "task": "denoising",
        "recommend": False,
        "seed": 3,
        "data": {"train": str(make_text(path)), "valid": 0.2, "max_length": 24},
        "tokenizer": {"type": "word"},
        "model": {"arch": "transformer", "hidden_size": 16, "num_layers": 1},
        "train": {"max_steps": 3, "batch_tokens": 300, "device": "cpu"},
    }


def _questions(path: Path) -> dict[str, Any]:
    return qa_run_file(write_questions(path, make_questions(100)), "transformer", SHORT, "data.max_length=22", "data.doc_stride=4")


RUN_FILES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "classifier": lambda path: classification_run_file(write_tsv(path, single_label_rows(80)), "lstm", SHORT),
    "pairs": lambda path: classification_run_file(
        write_tsv(path, text_pair_rows(80), "label\tpremise\thypothesis"), "transformer", SHORT, "data.max_length=16"
    ),
    "tagger": lambda path: tagging_run_file(write_conll(path, tagged_sentences(60)), "gru", SHORT),
    "linear-tagger": lambda path: tagging_run_file(
        write_conll(path, tagged_sentences(60)), "transformer", SHORT, "model.head=linear", "tokenizer.type=bpe",
        "tokenizer.vocab_size=300",
    ),  # fmt: skip
    "masked-lm": _masked,
    "qa": _questions,
    "reward": _preferences,
    "gpt": lambda path: run_file(make_text(path), "gpt", train__max_steps=3),
    "lstm-lm": lambda path: run_file(make_text(path), "lstm", train__max_steps=3, data__read_as="lines"),
    "instructions": _instructions,
    "transformer": lambda path: seq2seq_run_file(make_pairs(path), "transformer", SHORT),
    "lstm": lambda path: seq2seq_run_file(make_pairs(path), "lstm", SHORT),
    "copying": lambda path: seq2seq_run_file(make_pairs(path), "joint", SHORT),
    "denoising": _denoising,
}
SENTENCE = "the old cat sees a dog by the river ."


class Exports:
    """Runs by name, and their exports, each made on first use."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def run(self, name: str) -> Any:
        path = self.directory / name
        if not path.exists():
            train_here(RUN_FILES[name](self.directory / f"{name}.data.{'txt' if 'tagger' in name else 'tsv'}"), path)
        return weft.load(path, device="cpu")

    def exported(self, name: str) -> Path:
        path = self.directory / f"{name}.onnx"
        if not path.exists():
            onnx_export.export(self.run(name), path, ExportOptions())
        return path


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    return Exports(tmp_path_factory.mktemp("onnx"))


def example(directory: Path, *arguments: str) -> str:
    """The output of example.py in a process that has weft neither imported nor on its path."""
    command = [sys.executable, "-I", str(directory / "example.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def pairs(output: str) -> list[list[str]]:
    return [line.split("\t") for line in output.split("\n")[:-1]]


def says_label(run, directory, texts):
    prediction = run.predict(texts if len(texts) > 1 else texts[0])
    found = pairs(example(directory, *texts))
    assert [label for label, _ in found] == list(prediction.probabilities)
    assert np.allclose([float(value) for _, value in found], list(prediction.probabilities.values()), atol=1e-5)


def says_tags(run, directory, sentence):
    assert [tag for _, tag in pairs(example(directory, sentence))] == run.predict(sentence).tags


def says_answer(run, directory, question, passage):
    assert example(directory, question, passage) == run.predict((question, passage)).text + "\n"


CHECKS: dict[str, Callable[[Any, Path], None]] = {
    "classifier": lambda run, path: says_label(run, path, (SENTENCE * 40,)),
    "pairs": lambda run, path: says_label(run, path, ("the cat", SENTENCE)),
    "tagger": lambda run, path: says_tags(run, path, "mr bo sees mr unknownword"),
    "linear-tagger": lambda run, path: says_tags(run, path, "mr bo sees mr unknownword"),
}


def check_masks(run: Any, directory: Path) -> None:
    text = "the [MASK] sees a [MASK] ."
    found = pairs(example(directory, text))
    expected = [token for mask in run.predict(text) for token in mask]
    assert [token for _, token, _ in found] == [token.token for token in expected]
    assert np.allclose([float(value) for *_, value in found], [token.probability for token in expected], atol=1e-5)


def check_answers(run: Any, directory: Path) -> None:
    run.model.head.threshold.fill_(-1e9)  # every answer exceeds it
    settings = json.loads((directory / "model.json").read_text())
    (directory / "model.json").write_text(json.dumps(settings | {"threshold": -1e9}))
    for question, passage, _ in make_questions(3, seed=5):
        says_answer(run, directory, question, f"{passage} and {passage} then {passage}")  # several windows


def check_rewards(run: Any, directory: Path) -> None:
    assert float(example(directory, "the cat", SENTENCE)) == pytest.approx(run.predict(("the cat", SENTENCE)).value, abs=1e-5)


def check_continuation(run: Any, directory: Path) -> None:
    expected = run.generate("the old", temperature=0.0, max_new_tokens=20).text
    assert example(directory, "the old", "20").removesuffix("\n").strip() == expected.strip()


def check_output(run: Any, directory: Path) -> None:
    for text in ("giacca", "a<mask>b") if run.task == "denoising" else ("giacca", "ab"):
        assert example(directory, text) == run.predict(text, beam_size=1).text + "\n"


CHECKS |= {
    "masked-lm": check_masks,
    "qa": check_answers,
    "reward": check_rewards,
    "gpt": check_continuation,
    "lstm-lm": check_continuation,
    "instructions": check_continuation,
    "transformer": check_output,
    "lstm": check_output,
    "copying": check_output,
    "denoising": check_output,
}
QUICK = ("classifier", "lstm-lm")  # exporting takes seconds
every = pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CHECKS])


@every
def test_an_exported_run_is_checked_and_its_example_says_what_weft_says(exports, name):
    directory = exports.exported(name)
    record = json.loads((directory / "export.json").read_text())
    assert record["check"]["max_difference"] < 2e-5
    assert len({tuple(shape) for shape in record["check"]["shapes"]}) >= 4
    assert {"example.py", "example.mjs", "model.json", "tokenizer.json"} - set(record["files"]) <= {"tokenizer.json"}
    CHECKS[name](exports.run(name), directory)
