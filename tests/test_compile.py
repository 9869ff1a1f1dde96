"""Training with torch.compile gives the same run with the same parameter names. Only tracing is tested, with torch's own
tracer."""

from __future__ import annotations

import pytest
import torch
from small_runs import SilentCallback, make_text, run_file, train_here
from torch import nn

from weft.errors import TrainingInterrupted
from weft.tensors import read_tensors
from weft.training.loss_module import LossModule


@pytest.fixture
def graphs(monkeypatch) -> list[torch.fx.GraphModule]:
    """The graphs that were traced; they run as they are, for a compiler of code would take minutes."""
    results: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        results.append(graph)
        return graph

    torch.compiler.reset()
    monkeypatch.setattr(LossModule, "compile", lambda self: nn.Module.compile(self, backend=keep))
    return results


@pytest.mark.parametrize(
    ("model", "read"),
    [
        pytest.param("conv", "windows", marks=pytest.mark.slow),
        ("gpt", "stream"),
        pytest.param("mingru", "stream", marks=pytest.mark.slow),
        pytest.param("gpt", "lines", marks=pytest.mark.slow),
    ],
)
def test_a_compiled_run_equals_the_plain_one(tmp_path, graphs, model, read):
    text = make_text(tmp_path / "text.txt")
    options = {"data__read_as": read, "model__dropout": 0.0, "train__max_steps": 8, "train__num_validations": 1}
    plain, compiled = SilentCallback(), SilentCallback()
    train_here(run_file(text, model, **options), tmp_path / "plain", plain)
    assert graphs == []
    values = run_file(text, model, **options, train__compile=True)
    with pytest.raises(TrainingInterrupted):
        train_here(values, tmp_path / "run", SilentCallback(stop_at=4))
    train_here(values, tmp_path / "run", compiled)
    assert compiled.losses == pytest.approx(plain.losses[4:], abs=1e-4)
    assert 1 <= len(graphs) <= 4  # with and without a carry, one length and any length; not one a step
    weights, _ = read_tensors(tmp_path / "run" / "model.safetensors")
    assert weights.keys() == read_tensors(tmp_path / "plain" / "model.safetensors")[0].keys()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own, where it leaves a graph
def test_a_compiled_run_with_weight_dropout_equals_the_plain_one(tmp_path, graphs):
    text = make_text(tmp_path / "text.txt")
    regularizers = {"weight_dropout": 0.5, "variational_dropout": True, "temporal_activation_regularization": 1.0}
    options = {f"model__{name}": value for name, value in regularizers.items()}
    options |= {"data__read_as": "stream", "train__max_steps": 4, "train__num_validations": 1}
    plain, compiled = SilentCallback(), SilentCallback()
    train_here(run_file(text, "lstm", **options), tmp_path / "plain", plain)
    train_here(run_file(text, "lstm", **options, train__compile=True), tmp_path / "run", compiled)
    assert compiled.losses == pytest.approx(plain.losses, abs=1e-4) and graphs


@pytest.mark.slow
def test_a_compiled_student_equals_the_plain_one(tmp_path, graphs):
    text = make_text(tmp_path / "text.txt")
    options = {"data__read_as": "stream", "model__dropout": 0.0, "train__max_steps": 6, "train__num_validations": 1}
    train_here(run_file(text, "gpt", **options), tmp_path / "teacher")
    options |= {"train__distill_from": [str(tmp_path / "teacher")], "seed": 4}
    plain, compiled = SilentCallback(), SilentCallback()
    train_here(run_file(text, "gpt", **options), tmp_path / "plain", plain)
    train_here(run_file(text, "gpt", **options, train__compile=True), tmp_path / "run", compiled)
    assert compiled.losses == pytest.approx(plain.losses, abs=1e-4)
    assert 1 <= len(graphs) <= 6
    weights, _ = read_tensors(tmp_path / "run" / "model.safetensors")
    assert weights.keys() == read_tensors(tmp_path / "plain" / "model.safetensors")[0].keys()
