"""R-Drop: the loss equals its equation, without dropout it is that of ordinary training, and a resumed run is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from label_runs import LabelRuns
from seq2seq_runs import Seq2SeqRuns, seq2seq_run_file
from small_runs import SilentCallback, make_text, run_file, run_hashes, train_here
from speech_runs import make_recordings, speech_run_file

from weft.config import override
from weft.data.batch import map_tensors
from weft.errors import ConfigError, TrainingInterrupted
from weft.training.loop import Loop
from weft.training.r_drop import RDropObjective

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
WEIGHT = 3.0
NAMES = ["seq2seq:lstm", "seq2seq:joint", "lm:windows", "lm:lines", "lm:stream", "labels:labels-lstm", "labels:several-lstm"]
NAMES += ["labels:speech-lstm", "labels:spans-lstm", "asr:1.0", "asr:0.3"]
# the others are run by `make test-all`
SOME = [
    pytest.param(name, marks=[] if name in ("seq2seq:lstm", "lm:stream", "labels:spans-lstm", "asr:0.3") else pytest.mark.slow)
    for name in NAMES
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def pairs(directory: Path) -> Path:
    (directory / "seq2seq").mkdir()
    return Seq2SeqRuns(directory / "seq2seq").pairs


@pytest.fixture(scope="module")
def labels(directory: Path) -> LabelRuns:
    (directory / "labels").mkdir()
    return LabelRuns(directory / "labels")


@pytest.fixture
def values(request: pytest.FixtureRequest, directory: Path, pairs: Path, labels: LabelRuns) -> dict[str, Any]:
    """The run file of a small network with R-Drop."""
    task, _, kind = request.param.partition(":")
    overrides = [f"train.r_drop={WEIGHT}", "train.max_steps=3", "train.num_validations=1", "train.batch_tokens=80"]
    if task == "seq2seq":
        return override(seq2seq_run_file(pairs, kind), [*overrides, "train.label_smoothing=0.1", "model.dropout=0.3"])
    if task == "asr":
        speech = speech_run_file(make_recordings(directory / "speech"))
        return override(speech, [*overrides, "train.label_smoothing=0.1", "model.dropout=0.3", f"model.ctc_weight={kind}"])
    if task == "lm":
        text = make_text(directory / "text.txt")
        return override(run_file(text, "lstm", data__read_as=kind), [*overrides, "model.dropout=0.3"])
    return labels.values(kind, *overrides, "model.dropout=0.3")


def expected_loss(objective: RDropObjective, model: Any, batch: Any) -> float:
    """The loss by its equation, with probabilities in float64 and a loop over the positions."""
    outputs = objective.objective.outputs(model, map_tensors(batch, lambda part: torch.cat([part, part])), None)
    probs = outputs.log_probs.double().exp()
    mask = torch.ones(probs.shape[:-1], dtype=torch.bool) if outputs.mask is None else outputs.mask
    half, divergence = len(probs) // 2, 0.0
    for p, q in zip(probs[:half][mask[:half]].flatten(0, -2), probs[half:][mask[half:]].flatten(0, -2), strict=True):
        divergence += sum(float((x - y) * (x / y).log()) for x, y in zip(p, q, strict=True) if x > 0 and y > 0)
    assert divergence > 0.01  # the dropout masks differ
    return float(outputs.loss.total) / 2 + WEIGHT / 4 * divergence


@pytest.mark.parametrize("values", SOME, indirect=True)
def test_the_loss_equals_its_equation(values: dict[str, Any], tmp_path: Path) -> None:
    losses = list[tuple[float, float]]()

    def compare(loop: Loop) -> None:
        objective: Any = loop.loss_module.objective
        batch = loop.next_batch()
        with torch.no_grad():
            torch.manual_seed(1)
            loss = loop.loss_module(batch, None)
            torch.manual_seed(1)
            losses.append((float(loss.to_minimize()), expected_loss(objective, loop.loss_module.model, batch)))

    train_here(values, tmp_path / "run", SilentCallback(inspect=compare))
    assert len(losses) == 3
    np.testing.assert_allclose(*zip(*losses, strict=True), rtol=2e-5)


@pytest.mark.parametrize("values", SOME, indirect=True)
def test_without_dropout_it_is_the_loss_of_ordinary_training(values: dict[str, Any], tmp_path: Path) -> None:
    checked = list[int]()

    def compare(loop: Loop) -> None:
        objective: Any = loop.loss_module.objective
        model, batch = loop.loss_module.model, loop.next_batch()
        model.eval()
        with torch.no_grad():
            actual, expected = objective.loss(model, batch, None), objective.objective.loss(model, batch, None)
        model.train()
        assert float(actual.total) == pytest.approx(float(expected.total), rel=1e-5)
        assert float(actual.to_minimize()) == pytest.approx(float(expected.to_minimize()), rel=1e-5)
        assert int(actual.count) == int(expected.count)
        assert (actual.tokens is None) == (expected.tokens is None)
        assert actual.tokens is None or int(actual.tokens) == int(expected.tokens)
        checked.append(1)

    train_here(values, tmp_path / "run", SilentCallback(inspect=compare))
    assert len(checked) == 3


@pytest.mark.parametrize("values", ["seq2seq:lstm", "lm:stream"], indirect=True)
def test_a_resumed_run_is_the_same(values: dict[str, Any], tmp_path: Path) -> None:
    values = override(values, ["train.num_validations=3"])
    train_here(values, tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        train_here(values, tmp_path / "resumed", SilentCallback(stop_at=2))
    train_here(values, tmp_path / "resumed")
    assert run_hashes(tmp_path / "whole") == run_hashes(tmp_path / "resumed")


def test_tasks_and_options_without_it_are_refused(directory: Path, tmp_path: Path) -> None:
    text = make_text(directory / "masked.txt")
    values = {"task": "masked-lm", "data": {"train": str(text)}, "model": {"arch": "lstm"}, "recommend": False}
    with pytest.raises(ConfigError, match=r"train\.r_drop: not available for task 'masked-lm'; use one of "):
        train_here(override(values, ["train.r_drop=1"]), tmp_path / "run")
    both = override(run_file(text, "lstm"), ["train.r_drop=1", 'train.distill_from=["run"]'])
    with pytest.raises(ConfigError, match=r"train\.r_drop: not possible with distill_from; remove one of them"):
        train_here(both, tmp_path / "run")
