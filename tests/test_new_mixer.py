"""Adding a sequence mixer takes a class, an entry in MIXERS and a typed field in the config. The new mixer obeys the
contract of mixers and works with every command."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import test_contracts
import test_seq2seq_contracts
import torch
import toy_seq2seq
from command_line import expect_error, set_stdin
from compare_helpers import InProcessTrainer, compare
from pydantic import Field
from pydantic.fields import FieldInfo
from torch import Tensor, nn
from toy_models import DIM, enlarge_weights, mixer, stack_config

import weft
from weft.cli.main import main
from weft.comparison import runner as comparing
from weft.config import Config, parse_config, read_toml, to_dict
from weft.errors import ConfigError
from weft.models.build import stack
from weft.models.config import LanguageModelConfig, StackConfig
from weft.models.parts import count_parameters
from weft.models.seq2seq_config import merge
from weft.nn.bidirectional import Bidirectional
from weft.nn.mixers import MIXERS, Mixer
from weft.nn.recurrent import last_token_state
from weft.runs.resolve import resolve
from weft.tasks.lm.contexts import Context, default_context
from weft.tasks.lm.presets import NETWORK as language
from weft.tasks.presets import RECURRENT
from weft.tasks.registry import find_task
from weft.tasks.spec import Preset


class Smoothing(nn.Module):
    """s(t) = a s(t-1) + (1 - a) W x(t), exponential smoothing; its state is s, (B, D)."""

    def __init__(self, dim: int, *, input_size: int | None = None, decay: float) -> None:
        super().__init__()
        self.decay, self.read = decay, nn.Linear(input_size or dim, dim)

    def forward(self, x: Tensor, state: Tensor | None = None, token_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        read = self.read(x)
        s, outputs = read.new_zeros(read.shape[::2]) if state is None else state.to(read.dtype), list[Tensor]()
        for entered in read.unbind(1):
            s = self.decay * s + (1 - self.decay) * entered
            outputs.append(s)
        y = torch.stack(outputs, dim=1)
        return y, last_token_state(y, token_mask, state)


ROW = Mixer(Smoothing, "smoothing", num_state_vectors=1, options={"decay": 0.9})


def below(kind: type[Config]) -> list[type[Config]]:
    return [kind, *(actual for subclass in kind.__subclasses__() for actual in below(subclass))]


@pytest.fixture(autouse=True)
def smoothing(monkeypatch) -> Iterator[None]:
    """Register the mixer, with `decay: float | None = Field(None, gt=0.0, lt=1.0)` as if it were a field of the config."""
    monkeypatch.setitem(MIXERS, "smoothing", ROW)
    for kind in below(StackConfig):
        kind.model_fields["decay"] = FieldInfo.from_annotated_attribute(float | None, Field(None, gt=0.0, lt=1.0))
    for kind in below(Config):
        kind.model_rebuild(force=True)
    yield
    for kind in below(StackConfig):
        kind.model_fields.pop("decay", None)  # a class that was imported meanwhile may lack it
    for kind in below(Config):
        kind.model_rebuild(force=True)


# ---- its laws


def laws(module: Any, argument: str) -> dict[str, Callable[..., None]]:
    """The contract tests that run over everything in the registry, by name."""
    actual = {name: test for name, test in vars(module).items() if name.startswith("test_")}
    return {name: test for name, test in actual.items() if next(iter(inspect.signature(test).parameters), "") == argument}


# not every mixer has a bidirectional form
OF_MIXERS = {name: test for name, test in laws(test_contracts, "build").items() if "bidirectional_layer" not in name}
OF_PAIRS = laws(test_seq2seq_contracts, "name")


def test_contracts_are_collected():
    assert len(OF_MIXERS) == 9 and len(OF_PAIRS) == 10


@pytest.mark.parametrize("law", OF_MIXERS.values(), ids=OF_MIXERS)
def test_layer_and_stack_obey_the_mixer_contract(law):
    def layer() -> nn.Module:
        torch.manual_seed(0)
        return enlarge_weights(mixer("smoothing", decay=0.7)).eval()

    def layers() -> nn.Module:
        torch.manual_seed(0)
        options = {"position_encoding": "sinusoidal", "skip_connection": "residual", "norm": "layernorm", "ffn_dim": 12}
        return enlarge_weights(stack(stack_config(layer_type="smoothing", **options), context_length=32)).eval()

    for build in (layer, layers):
        law(build, *([4] if "cut" in inspect.signature(law).parameters else []))


PAIRS: dict[str, dict[str, Any]] = {
    "smoothing-copy": {"layer_type": "smoothing", "num_layers": 2, "bridge": "copy"},
    "smoothing-before": {"layer_type": "smoothing", "decay": 0.5, "attention": "additive", "attention_placement": "before"},
    "smoothing-under-attention": {
        "encoder": {"layer_type": "smoothing", "decay": 0.5},
        "decoder": {"layer_type": "attention", "num_heads": 2, "skip_connection": "residual", "norm": "layernorm"},
        "attention": "scaled-dot",
    },
}


@pytest.mark.parametrize("law", OF_PAIRS.values(), ids=OF_PAIRS)
def test_encoder_decoders_obey_their_contract(monkeypatch, law):
    for name, options in PAIRS.items():
        monkeypatch.setitem(toy_seq2seq.ALL_MODELS, name, options)
        monkeypatch.setitem(toy_seq2seq.VARIANTS, name, options)
        law(name)
    toy_seq2seq.build.cache_clear()


# ---- its option


def test_default_comes_from_the_registry_and_a_value_reaches_every_layer():
    assert stack_config(layer_type="smoothing").decay == 0.9 and "decay" not in to_dict(stack_config(layer_type="lstm"))
    model = stack(stack_config(layer_type="smoothing", decay=0.25, bidirectional=True), context_length=8)
    actual = [part.decay for part in model.modules() if isinstance(part, Smoothing)]
    assert actual == [0.25] * 4 and sum(isinstance(part, Bidirectional) for part in model.modules()) == 2
    assert [(part.name, part.num_parameters) for part in count_parameters(model)] == [("smoothing", 4 * (DIM // 2) * (DIM + 1))]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layer_type": "lstm", "decay": 0.5}, "model.decay: not used with layer_type 'lstm'; remove it"),
        ({"layer_type": "smoothing", "num_heads": 2}, "model.num_heads: not used with layer_type 'smoothing'; remove it"),
        ({"layer_type": "smoothing", "kernel_size": 2}, "model.kernel_size: not used with layer_type 'smoothing'; remove it"),
        (
            {"layer_type": "smoothing", "nonlinearity": "tanh"},
            "model.nonlinearity: not used with layer_type 'smoothing'; remove it",
        ),
        (
            {"layer_type": "smoothing", "position_encoding": "rotary"},
            "model.position_encoding: 'rotary' requires layer_type 'attention'; use none, sinusoidal or learned",
        ),
        ({"layer_type": "smoothing", "decay": 1.5}, "model.decay: must be less than 1, got 1.5"),
        (
            {"layer_type": "smoothin"},
            "model.layer_type: unknown value 'smoothin'; did you mean 'smoothing'?",
        ),
    ],
)
def test_inapplicable_options_are_rejected_as_for_other_mixers(values, message):
    with pytest.raises(ConfigError) as caught:
        parse_config(LanguageModelConfig, values, prefix="model")
    assert str(caught.value) == message


def test_option_is_removed_if_one_side_changes_its_mixer():
    preset = {"layer_type": "smoothing", "decay": 0.5, "num_layers": 1}
    merged = merge(preset, {"decoder": {"layer_type": "gru"}})
    assert merged["encoder"] == preset and merged["decoder"] == {"layer_type": "gru", "num_layers": 1}
    assert "decay" not in merge({"layer_type": "lstm"}, {"encoder": {"layer_type": "smoothing"}})["encoder"]


def test_every_registered_option_is_a_config_field_and_a_parameter():
    for name, row in MIXERS.items():
        assert set(row.options) <= set(StackConfig.model_fields), name
        if not row.attends:
            kinds = [kind for kind in (row.factory, row.bidirectional_factory) if kind is not None]
            assert all({"input_size", *row.options} <= set(inspect.signature(kind).parameters) for kind in kinds), name


def test_a_causal_only_mixer_rejects_bidirectional(monkeypatch):
    monkeypatch.setitem(MIXERS, "ahead", MIXERS["attention"]._replace(bidirectional=None))
    assert stack(stack_config(layer_type="ahead", num_heads=2), context_length=4)(torch.zeros(1, 3, DIM))[0].shape == (
        1,
        3,
        DIM,
    )
    with pytest.raises(ConfigError) as caught:
        parse_config(StackConfig, {"layer_type": "ahead", "bidirectional": True}, prefix="model")
    assert str(caught.value) == "model.bidirectional: not possible with layer_type 'ahead'; set it to false"


# ---- a run of it

RUN = """
task = "lm"
seed = 5
[data]
train = "text.txt"
valid = 0.1
test = 0.1
read_as = "lines"
[tokenizer]
type = "char"
[model]
arch = "smoothing"
hidden_size = 8
num_layers = 1
decay = 0.5
[train]
max_steps = 6
batch_tokens = 128
num_validations = 2
"""
PAIRED = """
task = "seq2seq"
[data]
train = "pairs.tsv"
valid = 0.2
[tokenizer]
type = "char"
[model]
arch = "lstm"
layer_type = "smoothing"
hidden_size = 8
decay = 0.5
[train]
max_steps = 4
batch_tokens = 128
num_validations = 2
"""
NAMES = "".join(f"{a}{b}{c}\n" for a in ("an", "ber", "cla") for b in ("a", "ni", "to") for c in ("", "s", "ra", "mi", "l"))


@pytest.fixture
def work_dir(tmp_path, monkeypatch) -> Path:
    """A directory with run files, where runs are trained in this process, and a preset with the mixer."""
    (tmp_path / "text.txt").write_text(NAMES)
    (tmp_path / "pairs.tsv").write_text("".join(f"{name}\t{name[::-1]}\n" for name in NAMES.split()))
    (tmp_path / "run.toml").write_text(RUN)
    (tmp_path / "pairs.toml").write_text(PAIRED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparing, "ParallelTrainer", InProcessTrainer)
    monkeypatch.setattr(InProcessTrainer, "trained", [], raising=False)
    preset = Preset(language, LanguageModelConfig, {"layer_type": "smoothing"}, RECURRENT)
    monkeypatch.setitem(find_task("lm").presets, "smoothing", preset)  # type: ignore[arg-type]
    return tmp_path


def test_language_model_is_checked_trained_evaluated_and_used(work_dir, capsys):
    assert main(["check", "run.toml"]) == 0
    assert main(["train", "run.toml", "--output-dir", "run", "--quiet"]) == 0
    assert "\ndecay = 0.5\n" in (work_dir / "run" / "resolved.toml").read_text()
    capsys.readouterr()
    assert main(["evaluate", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scores"]
    assert main(["generate", "run", "an", "--max-new-tokens", "5", "--seed", "1"]) == 0
    assert main(["info", "run"]) == 0
    assert "smoothing" in capsys.readouterr().out
    run: Any = weft.load(work_dir / "run", device="cpu")
    (layer,) = (part for part in run.model.modules() if isinstance(part, Smoothing))
    assert layer.decay == 0.5
    assert default_context(run.config) == Context("reset", run.config.data.context_length)
    code, message = expect_error(capsys, "train", "run.toml", "--quiet", "--output-dir", "other", "--set", "model.decay=2")
    assert (code, message) == (2, "model.decay: must be less than 1, got 2")


def test_encoder_decoder_is_trained_and_predicts(work_dir, monkeypatch, capsys):
    assert main(["train", "pairs.toml", "--output-dir", "run", "--quiet"]) == 0
    set_stdin(monkeypatch, b"anas\nberto\n")
    capsys.readouterr()
    assert main(["predict", "run"]) == 0
    assert capsys.readouterr().out.count("\n") == 2
    assert main(["evaluate", "run", "--data", "pairs.tsv"]) == 0
    model = resolve(read_toml(work_dir / "pairs.toml"), base=work_dir).model
    assert (model.encoder.decay, model.decoder.decay, model.bridge) == (0.5, 0.5, "copy")


def test_comparisons_apply_options_to_the_architectures_that_have_them(work_dir, capsys):
    code, out, err = compare(capsys, "run.toml", "--models", "smoothing,lstm,conv")
    assert code == 0 and all(name in out for name in ("smoothing", "lstm", "conv"))
    assert err.splitlines()[:2] == ["lstm: ignoring decay", "conv: ignoring decay"]
    directory = work_dir / "runs" / "run-comparison"
    names = [path.parent.name for path in directory.glob("*/resolved.toml") if "\ndecay = 0.5\n" in path.read_text()]
    assert names == ["smoothing-5"] and len(InProcessTrainer.trained) == 3
