"""Speech recognition, captioning and denoising as jobs: kill and resume, ensembles, memory, scores by length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from caption_runs import run_values, trained, write_clips, write_images
from killable import Killable, count_lines
from small_runs import SilentCallback, leftovers, make_text, run_hashes, train_here
from speech_runs import make_recordings, speech_run_file

import weft
from weft.cli.main import main
from weft.comparison.results import cache_key
from weft.errors import ResourceError, TrainingInterrupted, UsageError
from weft.training import memory

NUM_STEPS = 6


def asr_values(directory: Path) -> dict[str, Any]:
    return speech_run_file(make_recordings(directory), model__dropout=0.2, train__ema_decay=0.9, train__max_steps=NUM_STEPS)


def captioning_values(directory: Path) -> dict[str, Any]:
    write_images(directory)
    data = {"train": str(directory / "images.tsv"), "root": str(directory / "images.zip"), "valid": 0.25, "test": 0.25}
    train = {"max_steps": NUM_STEPS, "num_validations": 3, "ema_decay": 0.9, "device": "cpu"}
    return run_values(data, model={"dropout": 0.2}, train=train)


def denoising_values(directory: Path) -> dict[str, Any]:
    train = {"max_steps": NUM_STEPS, "batch_tokens": 200, "num_validations": 3, "ema_decay": 0.9, "device": "cpu"}
    return {
        "task": "denoising",
        "recommend": False,
        "data": {"train": str(make_text(directory / "text.txt")), "valid": 0.1, "test": 0.1, "max_length": 32},
        "tokenizer": {"type": "word"},
        "model": {"arch": "lstm-input-feeding", "hidden_size": 8, "dropout": 0.2},
        "train": train,
    }


VALUES = {"asr": asr_values, "captioning": captioning_values, "denoising": denoising_values}


# ---- resuming


def test_a_captioner_stopped_at_checkpoints_ends_identically(tmp_path):
    values = captioning_values(tmp_path)
    train_here(values, tmp_path / "whole")
    for step in (1, 4):
        with pytest.raises(TrainingInterrupted):
            train_here(values, tmp_path / "parts", SilentCallback(stop_at=step))
    train_here(values, tmp_path / "parts")
    assert run_hashes(tmp_path / "parts") == run_hashes(tmp_path / "whole") and leftovers(tmp_path / "parts") == []


@pytest.mark.slow
@pytest.mark.parametrize("task", ["captioning", "denoising"])  # asr: test_asr_run.py
def test_a_killed_run_ends_identically(tmp_path, task):
    """Killed before several lines of the code that writes checkpoints, frames and texts."""
    values = VALUES[task](tmp_path)
    train_here(values, tmp_path / "whole")
    expected = run_hashes(tmp_path / "whole")
    with Killable() as children:
        for part, step in (("save", 9), ("begin", 9), *((("frames", 3),) if task == "captioning" else ())):
            for line in range(1, count_lines(part), step):
                out = tmp_path / f"{part}{line}"
                children.train(values, out, before=(part, line))
                assert children.train(values, out)
                assert run_hashes(out) == expected and leftovers(out) == []


# ---- ensembles


def test_ensembles_of_captioners(tmp_path):
    write_images(tmp_path)
    data = {"train": "images.tsv", "root": "images.zip", "valid": 0.25, "test": 0.25}
    first = trained(run_values(data), tmp_path, name="first")
    others = {**run_values(data), "tokenizer": {"file": str(tmp_path / "first" / "tokenizer.json")}, "seed": 4}
    others["model"]["arch"] = "show-and-tell"
    second = trained(others, tmp_path, name="second")
    path = f"{tmp_path / 'images.zip'}/0.png"
    both = weft.ensemble([tmp_path / "first", tmp_path / "second"])
    assert "runs:2" in next(iter(both.evaluate())).signature
    assert weft.ensemble([tmp_path / "first"] * 2).predict(path).text == first.predict(path).text
    scores = [run.score((path, "a red square")).log_prob for run in (first, second, both)]
    assert min(scores[:2]) < scores[2] < max(scores[:2])
    asr = speech_run_file(make_recordings(tmp_path / "sounds"), train__max_steps=1)
    train_here(asr, tmp_path / "asr")
    with pytest.raises(UsageError, match="asr"):
        weft.ensemble([tmp_path / "first", tmp_path / "asr"])


# ---- memory


@pytest.mark.parametrize(("task", "free"), [("asr", 400_000), ("captioning", 600_000)])
def test_a_batch_that_does_not_fit_is_refused(tmp_path, monkeypatch, task, free):
    values = VALUES[task](tmp_path)
    values["train"]["batch_tokens"] = 5000
    monkeypatch.setattr(memory, "free_device_memory", lambda device: free)
    with pytest.raises(ResourceError, match=r"a batch of \d+ rows .* needs about .*, .* are free; reduce batch_tokens"):
        train_here(values, tmp_path / "run")


# ---- scores by length


@pytest.mark.parametrize("task", ["asr", "captioning", "denoising"])
def test_comparisons_show_scores_by_length(tmp_path, task):
    """Recordings and texts of different lengths, and clips of 3 to 5 frames."""
    if task == "captioning":
        write_clips(tmp_path, 60)
        data = dict.fromkeys(("train", "valid", "test"), str(tmp_path / "clips.tsv"))
        values = run_values(data, train={"max_steps": 1, "device": "cpu"})
    else:
        values = VALUES[task](tmp_path)
        values["train"] |= {"max_steps": 1, "num_validations": 1}
    train_here(values, tmp_path / "run")
    words = ["compare", str(tmp_path / "run"), "--output-dir", str(tmp_path / "compared"), "--quiet"]
    if task == "asr":
        words += ["--data", str(make_recordings(tmp_path, 60, name="test", seed=3))]
    assert main(words) == 0
    document = json.loads((tmp_path / "compared" / "comparison.json").read_text())
    unit = {"asr": "frames of 10 ms", "captioning": "frames", "denoising": "tokens"}[task]
    (by_length,) = [breakdown for breakdown in document["breakdowns"] if breakdown["by"] == f"input length in {unit}"]
    assert sum(by_length["counts"]) == document["test_items"]["count"] and len(by_length["bins"]) > 1


def test_stored_results_depend_on_the_files_of_a_manifest(tmp_path):
    values = asr_values(tmp_path)
    train_here({**values, "train": {**values["train"], "max_steps": 1}}, tmp_path / "run")
    test = make_recordings(tmp_path, 2, name="test", seed=5)
    run = weft.load(tmp_path / "run")
    first = cache_key(run, test)
    assert cache_key(run, test) == first
    recording = tmp_path / "wav" / "test1.wav"
    recording.write_bytes((tmp_path / "wav" / "train0.wav").read_bytes())
    assert cache_key(run, test) != first
    recording.unlink()
    assert cache_key(run, test) != first
