"""Samples at each validation (train.num_samples): what is saved, and no effect on training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from report_documents import lm_document
from seq2seq_runs import make_pairs, seq2seq_run_file
from small_runs import SilentCallback, make_text, run_file, run_hashes, train_here

import weft
from weft.cli.progress import format_sample
from weft.comparison.curves import samples_of
from weft.errors import ConfigError, TrainingInterrupted
from weft.log import read_log, with_checksum
from weft.report.page import page
from weft.report.page_check import find_problem
from weft.runs.resolve import resolve
from weft.runs.run import Run


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pairs(tmp_path_factory.mktemp("pairs") / "pairs.tsv")


def written(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "samples.jsonl").read_text().split("\n") if line]


def small(text: Path, model: str = "lstm", **options: Any) -> dict[str, Any]:
    given = {"train__max_steps": 4, "train__num_validations": 2, "train__num_samples": 2, "train__sample_max_new_tokens": 12}
    return run_file(text, model, **{**given, **options})


def test_each_validation_writes_a_text_for_each_prompt_and_sample(tmp_path, text):
    train_here(small(text, train__sample_prompts=["the ", "a "]), tmp_path / "run")
    actual = written(tmp_path / "run")
    places = [(item["step"], item["prompt"], item["sample"]) for item in actual]
    assert places == [(step, prompt, number) for step in (2, 4) for prompt in ("the ", "a ") for number in (1, 2)]
    assert {item["seed"] for item in actual} == {3}
    assert all(0 < len(item["text"]) <= 12 for item in actual)


def test_the_last_texts_are_what_the_trained_run_generates(tmp_path, text):
    out = tmp_path / "run"
    train_here(small(text, train__num_validations=1), out)
    run = weft.load(out, device="cpu")
    assert isinstance(run, Run)
    expected = run.generate("", max_new_tokens=12, num_samples=2, seed=3).ranked()
    assert [item["text"] for item in written(out)] == [item.text for item in expected]


@pytest.mark.parametrize("model", ["lstm", "transformer", "gpt"])
def test_samples_do_not_change_training(tmp_path, text, model):
    for name, samples in (("with", 2), ("without", 0)):
        train_here(small(text, model, train__num_samples=samples, data__context_length=16), tmp_path / name)
    have, plain = (
        (run_hashes(tmp_path / name), (tmp_path / name / "metrics.jsonl").read_bytes()) for name in ("with", "without")
    )
    for part in ("model", "optimizer", "state", "metrics"):
        assert have[0][part] == plain[0][part]
    assert not (tmp_path / "without" / "samples.jsonl").exists()


def test_resuming_neither_repeats_nor_loses_samples(tmp_path, text):
    values = small(text, train__max_steps=6, train__num_validations=3)
    train_here(values, tmp_path / "whole")

    def crash(loop: Any) -> None:
        if loop.train_state.step == 5:
            raise ZeroDivisionError

    with pytest.raises(TrainingInterrupted):
        train_here(values, tmp_path / "parts", SilentCallback(stop_at=3))
    with pytest.raises(ZeroDivisionError):
        train_here(values, tmp_path / "parts", SilentCallback(inspect=crash))
    train_here(values, tmp_path / "parts")
    assert (tmp_path / "parts" / "samples.jsonl").read_bytes() == (tmp_path / "whole" / "samples.jsonl").read_bytes()
    assert run_hashes(tmp_path / "parts") == run_hashes(tmp_path / "whole")


def test_learned_positions_limit_the_sample_length(tmp_path, text):
    values = small(
        text, "transformer", train__num_samples=1, train__sample_max_new_tokens=500, train__sample_prompts=["the old "]
    )
    train_here(values, tmp_path / "run")
    assert (
        max(len(item["text"]) for item in written(tmp_path / "run")) == 16 + 1 - 10
    )  # after a full stop, a newline and 8 characters
    values["train"]["sample_prompts"] = ["the old cat and the dog"]
    message = "train.sample_prompts: 23 tokens exceed the model's limit of 14; shorten the longest prompt"
    with pytest.raises(ConfigError, match=f"^{message}$"):
        train_here(values, tmp_path / "other")


def test_samples_are_written_without_validation_data(tmp_path, text):
    values = small(text)
    del values["data"]["valid"]
    train_here(values, tmp_path / "run")
    assert [item["step"] for item in written(tmp_path / "run")] == [2, 2, 4, 4]


def test_an_n_gram_model_writes_once(tmp_path, text):
    values = small(text)
    values["model"] = {"arch": "ngram", "order": 3}
    train_here(values, tmp_path / "run")
    assert [(item["step"], item["sample"]) for item in written(tmp_path / "run")] == [(1, 1), (1, 2)]
    assert all(item["text"] for item in written(tmp_path / "run"))


def test_seq2seq_samples_are_the_first_lines_with_references(tmp_path, pairs):
    values = seq2seq_run_file(pairs, "lstm", "train.num_samples=3", "train.max_steps=4")
    train_here(values, tmp_path / "run")
    train_here(seq2seq_run_file(pairs, "lstm", "train.max_steps=4"), tmp_path / "plain")
    assert run_hashes(tmp_path / "run")["model"] == run_hashes(tmp_path / "plain")["model"]
    actual = written(tmp_path / "run")
    assert [(item["step"], item["line"]) for item in actual] == [(step, line) for step in (2, 4) for line in (1, 2, 3)]
    lines = dict(line.split("\t") for line in pairs.read_text().splitlines())
    assert all(lines[item["source"]] == item["reference"] for item in actual)
    translator: Any = weft.load(tmp_path / "run", device="cpu")
    last = actual[-3:]
    if json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 4:
        outputs = [prediction.text for prediction in translator.predict([item["source"] for item in last], beam_size=1)]
        assert [item["text"] for item in last] == outputs


REFUSED = [
    (
        "classification",
        {"num_samples": 1},
        "train.num_samples: not available for task 'classification' (only for lm, seq2seq, denoising, instruction-tuning, dpo, policy-gradient); remove it",
    ),
    (
        "lm",
        {"sample_prompts": ["a"]},
        "train.sample_prompts: not used with num_samples = 0; set num_samples",
    ),
    (
        "seq2seq",
        {"num_samples": 1, "sample_prompts": ["a"]},
        "train.sample_prompts: not available for task 'seq2seq'; remove it",
    ),
]


@pytest.mark.parametrize(("task", "train", "message"), REFUSED)
def test_samples_are_rejected_for_tasks_without_generation(tmp_path, task, train, message):
    kind = {"classification": "lstm", "lm": "lstm", "seq2seq": "luong"}[task]
    values = {"task": task, "data": {"train": "data.tsv"}, "model": {"arch": kind}, "train": train}
    with pytest.raises(ConfigError) as error:
        resolve(values, base=tmp_path)
    assert str(error.value) == message


def test_seq2seq_samples_require_validation_data(tmp_path, pairs):
    values = seq2seq_run_file(pairs, "lstm", "train.num_samples=1")
    del values["data"]["valid"]
    with pytest.raises(ConfigError) as error:
        train_here(values, tmp_path / "run")
    message = "train.num_samples: requires validation data; set data.valid"
    assert str(error.value) == message


def test_a_sample_is_printed_on_one_line():
    assert format_sample({"prompt": "The ", "text": "cat\nsat\x1b[2J"}) == "The cat⏎sat\\x1b[2J"
    assert format_sample({"prompt": "", "text": "x" * 200}) == "x" * 99 + "…"
    assert format_sample({"source": "ab", "text": "A BB", "reference": "A B"}) == "ab -> A BB  (reference: A B)"


def test_texts_do_not_depend_on_torch_s_random_state(tmp_path, text):
    for name, seed in (("one", 1), ("two", 2)):
        torch.manual_seed(seed)
        train_here(small(text), tmp_path / name)
    assert written(tmp_path / "one") == written(tmp_path / "two")


# ---- in the report


def test_reports_show_a_selection_of_many_validations(tmp_path):
    lines = [{"step": step, "prompt": "a", "sample": number, "text": f"{step}"} for step in range(1, 21) for number in range(5)]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(with_checksum(line)) + "\n" for line in lines))
    actual = samples_of(tmp_path)
    assert [(line["step"], line["sample"]) for line in actual[:4]] == [(1, 0), (1, 1), (1, 2), (4, 0)]
    assert sorted({line["step"] for line in actual}) == [1, 4, 6, 9, 12, 15, 17, 20]
    assert samples_of(tmp_path / "gone") == []


def test_report_shows_samples_over_training():
    document = lm_document()
    name = document["rows"][0]["name"]
    document["samples_over_training"] = {
        name: [{"step": 1000, "prompt": "The ", "text": "<b>xq"}, {"step": 2000, "prompt": "", "text": "cat"}]
    }
    assert find_problem(document) == ""
    drawn = page(document)
    assert '<section id="progress"><h2>Samples during training</h2>' in drawn
    assert '<h4>step 1,000</h4><pre class="sample" dir="auto"><b>The </b>&lt;b&gt;xq</pre>' in drawn
    assert '<h4>step 2,000</h4><pre class="sample" dir="auto">cat</pre>' in drawn
    document["samples_over_training"] = {name: [{"step": 1, "source": "ab", "text": "A", "reference": "A B"}]}
    assert "<small>source: <bdi>ab</bdi></small><br><small>reference: <bdi>A B</bdi></small>" in page(document)
    document["samples_over_training"] = {name: [{"step": 1}]}
    assert find_problem(document) == f"samples_over_training.{name}[0].text is missing"


@pytest.mark.parametrize("damage", ["gone", "cut", "changed"])
def test_damaged_samples_do_not_affect_the_run(tmp_path, text, damage):
    """Training continues bit for bit with the intact samples and a note."""
    values = small(text, train__num_samples=1)
    train_here(values, tmp_path / "whole")
    train_here(values, tmp_path / "run", SilentCallback(stop_at=4))
    path = tmp_path / "run" / "samples.jsonl"
    full = path.read_bytes()
    assert full.count(b"\n") >= 2
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(full[:-9] if damage == "cut" else full.replace(b'"seed"', b'"sfed"', 1))
    callback = SilentCallback()
    train_here(values, tmp_path / "run", callback)
    assert f"{path}: corrupted; only the intact part was restored" in callback.notes
    assert run_hashes(tmp_path / "run")["model"] == run_hashes(tmp_path / "whole")["model"]
    read_log(path, allow_text=True)  # repaired
