"""Gradients in metrics.jsonl: gradient norms, learning rate, and the number of clipped steps."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from report_documents import lm_document
from small_runs import SilentCallback, make_text, run_file, run_hashes, train_here
from test_loop import metrics, run, small_loop, small_model

from weft.cli.main import main
from weft.comparison.curves import curve
from weft.errors import TrainingInterrupted
from weft.log import with_checksum
from weft.report.page import page
from weft.report.page_check import find_problem
from weft.report.page_data import page_data
from weft.training import loop as training
from weft.training.gradients import summarize
from weft.training.loop import Loop
from weft.training.schedules import schedule
from weft.training.train_state import TrainState

NAMES = ("grad_norm", "grad_norm_max", "learning_rate", "clipped_steps")


def watched(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Gradient norm of each step before clipping, computed in float64."""
    norms: list[float] = []
    summed_gradients = loop.summed_gradients

    def noting(batch: tuple[Any, ...]) -> Any:
        total, count, tokens = summed_gradients(batch)
        squares = [w.grad.double().square().sum() for w in loop.optimizers.weights if w.grad is not None]
        norms.append(float(torch.stack(squares).sum().sqrt() / count))
        return total, count, tokens

    monkeypatch.setattr(loop, "summed_gradients", noting)
    return norms


def lines_of(loop: Loop) -> list[dict[str, Any]]:
    return [record for record in run(loop).records if "grad_norm" in record]


def test_each_line_has_mean_and_maximum_norm_lr_and_clipped_steps_since_the_last(monkeypatch):
    monkeypatch.setattr(training, "LOG_LINES", 4)
    loop = small_loop(small_model(), max_steps=10, max_grad_norm=0.35, lr_schedule="linear", warmup_ratio=0.0)
    norms = watched(loop, monkeypatch)
    lines = lines_of(loop)
    steps = [line["step"] for line in lines]
    assert steps == [1, 3, 5, 8, 10]
    assert 0 < sum(norm > 0.35 for norm in norms) < 10  # otherwise the test is vacuous
    factor = schedule("linear", warmup=0.0)
    for line, (before, step) in zip(lines, pairwise([0, *steps]), strict=True):
        interval = norms[before:step]
        assert line["grad_norm"] == pytest.approx(sum(interval) / len(interval), rel=1e-5)
        assert line["grad_norm_max"] == pytest.approx(max(interval), rel=1e-5)
        assert line["clipped_steps"] == sum(norm > 0.35 for norm in interval)
        assert line["learning_rate"] == pytest.approx(0.1 * factor((step - 0.5) / 10))


def test_without_clipping_no_step_is_clipped():
    lines = lines_of(small_loop(small_model(), max_steps=3, max_grad_norm=0))
    assert [line["clipped_steps"] for line in lines] == [0, 0, 0]
    assert all(line["grad_norm"] == line["grad_norm_max"] > 0 for line in lines)


def test_a_run_resumed_between_two_lines_logs_the_same_values(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "LOG_LINES", 2)
    values = run_file(
        make_text(tmp_path / "text.txt"), "lstm", train__max_steps=9, train__num_validations=1, train__max_grad_norm=0.5
    )
    train_here(values, tmp_path / "whole")
    for step in (2, 3, 6):
        with pytest.raises(TrainingInterrupted):
            train_here(values, tmp_path / "parts", SilentCallback(stop_at=step))
    train_here(values, tmp_path / "parts")
    assert run_hashes(tmp_path / "parts") == run_hashes(tmp_path / "whole")
    lines = [record for record in metrics(tmp_path / "whole") if "grad_norm" in record]
    assert [line["step"] for line in lines] == [1, 5, 9]
    assert set(NAMES) <= set(lines[0])


def test_a_train_state_without_gradient_norms_is_read(tmp_path: Path):
    values = TrainState(step=3).to_json()
    for name in ("norm_sum", "norm_max", "norm_steps", "clipped"):
        del values[name]
    assert TrainState.from_json(values, "train_state.json") == TrainState(step=3)


# ---- what is made of the lines

LOGGED: list[dict[str, Any]] = [
    {"step": 1, "tokens": 10, "train_loss": 3.0, **dict(zip(NAMES, (4.0, 4.0, 0.1, 1), strict=True))},
    {"step": 2, "valid_loss": 2.5},
    {"step": 4, "tokens": 40, "train_loss": 2.0, **dict(zip(NAMES, (1.0, 2.0, 0.2, 2), strict=True))},
]


def test_gradient_summary_covers_all_steps():
    actual = summarize(LOGGED)
    assert actual is not None
    assert actual.to_json() == {"mean": 1.75, "max": 4.0, "clipped": 3, "steps": 4, "lr": 0.2}
    assert summarize([{"step": 1, "tokens": 10}]) is None


def test_info_counts_clipped_steps(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    values = run_file(
        make_text(tmp_path / "text.txt"), "lstm", train__max_steps=6, train__num_validations=1, train__max_grad_norm=0.5
    )
    train_here(values, tmp_path / "run")
    lines = [record for record in metrics(tmp_path / "run") if "grad_norm" in record]
    clipped = sum(line["grad_norm_max"] > 0.5 for line in lines)  # one line per step
    assert main(["info", "run"]) == 0
    mean = sum(line["grad_norm"] for line in lines) / 6
    largest = max(line["grad_norm_max"] for line in lines)
    message = f"Gradients  mean norm {mean:.3g}, largest {largest:.3g}; clipped to 0.5 in {clipped} of 6 steps\n"
    assert message in capsys.readouterr().out
    assert main(["info", "run", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["progress"]["gradients"]
    assert (data["clipped"], data["steps"]) == (clipped, 6)


def test_curves_show_norms_lr_and_the_clipping_limit(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(with_checksum(line)) + "\n" for line in LOGGED))
    (tmp_path / "resolved.toml").write_text("[train]\nmax_grad_norm = 0.5\n")
    actual = curve(tmp_path, "loss", ["loss"])
    assert [(point["step"], point["value"]) for point in actual["grad_norm"]] == [(1, 4.0), (4, 1.0)]
    assert [(point["step"], point["value"]) for point in actual["grad_norm_max"]] == [(1, 4.0), (4, 2.0)]
    assert [(point["tokens"], point["value"]) for point in actual["learning_rate"]] == [(10, 0.1), (40, 0.2)]
    assert (actual["gradients"]["clipped"], actual["gradients"]["max_grad_norm"]) == (3, 0.5)


def test_report_has_norms_and_clipped_steps():
    document = lm_document()
    seen = {"mean": 0.5, "max": 12.25, "clipped": 3, "steps": 1500, "lr": 0.001, "max_grad_norm": 1.0}
    point = {"step": 1, "tokens": 10, "seconds": 0.1, "value": 0.5}
    document["curves"][0] |= {
        "grad_norm": [point],
        "grad_norm_max": [{**point, "value": 12.25}],
        "learning_rate": [point],
        "gradients": seen,
    }
    assert find_problem(document) == ""
    drawn = page_data(document)["curves"]
    assert (drawn[0]["grad_norm"]["value"], drawn[0]["grad_norm_max"]["value"], drawn[0]["max_grad_norm"]) == (
        [0.5],
        [12.25],
        1.0,
    )
    assert (drawn[1]["grad_norm"]["value"], drawn[1]["max_grad_norm"]) == ([], None)
    assert "<td>0.5</td><td>12.2</td><td>1</td><td>3 of 1,500</td>" in page(document)
