"""`weft gradcheck`: correct gradients pass for every task, wrong ones are reported by name and exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from command_line import expect_error
from label_runs import LabelRuns
from seq2seq_runs import make_pairs, seq2seq_run_file
from small_runs import SilentCallback, make_text, run_file
from torch import Tensor, nn

from weft.cli.main import main
from weft.config import override
from weft.explain.gradcheck import ExactMath, LossFunction, check_tensors, make_loss_function
from weft.nn.lm_head import LMHead
from weft.runs.resolve import resolve

RUN = """
task = "lm"
[data]
train = "text.txt"
context_length = 16
[model]
arch = "lstm"
hidden_size = 8
num_layers = 1
[train]
max_steps = 5
batch_tokens = 64
"""


def errors(values: dict, directory: Path) -> dict[str, float]:
    work = directory / "work"
    work.mkdir(exist_ok=True)
    function = make_loss_function(resolve(values, base=directory), work, SilentCallback())
    return {item.name: item.error for item in check_tensors(function, entries=3)}


@pytest.mark.parametrize("kind", ["conv", "lstm", "gpt"])
def test_gradients_of_language_models_are_correct(tmp_path, kind):
    actual = errors(run_file(make_text(tmp_path / "text.txt"), kind), tmp_path)
    assert "embedding.weight" in actual and "head.bias" in actual
    assert max(actual.values()) < 1e-5


@pytest.mark.parametrize(
    "setting", ["model.layer_type=gru-reset-before", "model.layer_type=gru", "model.skip_connection=highway"]
)
def test_gradients_of_other_parts_are_correct(tmp_path, setting):
    values = override(run_file(make_text(tmp_path / "text.txt"), "lstm", data__read_as="lines"), [setting])
    assert max(errors(values, tmp_path).values()) < 1e-5


def test_gradcheck_draws_the_same_masks_each_time(tmp_path):
    values = run_file(make_text(tmp_path / "text.txt"), "transformer", task="masked-lm", model__arch="bert")
    state = torch.get_rng_state()
    assert max(errors(values, tmp_path).values()) < 1e-5
    assert torch.equal(torch.get_rng_state(), state)


def test_gradients_of_seq2seq_classification_and_tagging_are_correct(tmp_path):
    assert max(errors(seq2seq_run_file(make_pairs(tmp_path / "pairs.tsv"), "joint"), tmp_path).values()) < 1e-5
    labels = LabelRuns(tmp_path)
    for name in ("labels-lstm", "spans-lstm"):  # one head is a softmax, the other a CRF
        values = override(labels.values(name), ["model.hidden_size=8"])
        assert max(errors(values, tmp_path).values()) < 1e-5


@pytest.mark.parametrize("name", ["labels-lstm", "several-lstm"])
def test_gradients_with_class_weights_are_correct(tmp_path, name):
    values = override(LabelRuns(tmp_path).values(name), ["model.hidden_size=8", "model.class_weight=balanced"])
    assert max(errors(values, tmp_path).values()) < 1e-5


def test_known_derivative_passes_and_wrong_derivative_fails():
    class Wrong(torch.autograd.Function):
        """x^2 with the derivative x."""

        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad_output: Tensor) -> Tensor:
            return grad_output * ctx.saved_tensors[0]

    model = nn.ParameterDict({"cubed": torch.tensor([2.0, -1.0]), "wrong": torch.tensor([3.0]), "unused": torch.ones(2, 2)})
    model = model.double()
    function = LossFunction(model, lambda: model["cubed"].pow(3).sum() + Wrong.apply(model["wrong"]).sum())
    actual = {item.name: item for item in check_tensors(function, entries=4)}
    assert actual["cubed"].error < 1e-9 and actual["cubed"].max_gradient == 12.0 and actual["cubed"].entries == 2
    assert actual["wrong"].error == pytest.approx(0.5) and actual["wrong"].shape == (1,)
    assert actual["unused"].error == 0.0 and actual["unused"].max_gradient == 0.0
    assert model["cubed"].tolist() == [2.0, -1.0]  # unchanged


def test_float64_stays_float64_and_the_model_is_unchanged():
    with ExactMath():
        assert torch.ones(1, dtype=torch.float64).float().dtype == torch.float64
        assert torch.ones(1, dtype=torch.float16).float().dtype == torch.float32
    assert torch.ones(1, dtype=torch.float64).float().dtype == torch.float32


# ---- the command


def test_command_reports_correct_gradients(work_dir, capsys):
    assert main(["check", "run.toml", "--gradients", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    rows = out.partition(" notes\n\n")[2].split("\n") if " notes\n\n" in out else out.partition(" note\n\n")[2].split("\n")
    assert rows[0].split() == ["tensor", "shape", "checked", "largest", "error"]
    assert rows[1].split()[0] == "embedding.weight"
    assert rows[-2] == "All 7 gradients are correct (relative error up to 1e-05)"


def test_command_names_wrong_gradients_and_sets_the_exit_code(work_dir, capsys, monkeypatch):
    logits = LMHead.logits

    def halved(self: LMHead, x: Tensor) -> Tensor:
        # the same output, but half of the gradient is lost
        return logits(self, 0.5 * x + 0.5 * x.detach())

    monkeypatch.setattr(LMHead, "logits", halved)
    assert main(["check", "run.toml", "--gradients", "--quiet", "--json", "--entries", "2"]) == 1
    gradients = json.loads(capsys.readouterr().out)["gradients"]
    correct = {tensor["tensor"]: tensor["correct"] for tensor in gradients["tensors"]}
    assert gradients["wrong"] == 5 and correct["head.weight"] and correct["head.bias"] and not correct["embedding.weight"]
    assert {tensor["entries"] for tensor in gradients["tensors"]} == {2}
    assert main(["check", "run.toml", "--gradients", "--quiet"]) == 1
    assert capsys.readouterr().out.endswith("5 of 7 gradients are wrong (relative error up to 1e-05)\n")
    assert main(["check", "run.toml", "--gradients", "--quiet", "--tolerance", "1"]) == 0


def test_unsupported_models_are_rejected(work_dir, capsys):
    check = ["check", "run.toml", "--gradients", "--quiet"]
    assert expect_error(capsys, *check, "--entries", "0") == (2, "--entries: must be at least 1, got 0")
    assert expect_error(capsys, *check, "--tolerance", "0") == (2, "--tolerance: must be greater than 0, got 0")
    model = 'arch = "lstm"\nhidden_size = 8\nnum_layers = 1'
    (work_dir / "ngram.toml").write_text(RUN.replace(model, 'arch = "ngram"').split("[train]")[0])
    code, error = expect_error(capsys, "check", "ngram.toml", "--gradients", "--quiet")
    assert (code, error) == (2, "model.arch: 'ngram' is trained without gradients")
