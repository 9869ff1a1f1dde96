"""Recording submodules with hooks: inputs and outputs, hook removal, and attention weights that reproduce the output."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from toy_models import build_mixer, build_stack

from weft.errors import UsageError
from weft.explain.hooks import attention_weights, record_activations
from weft.nn.attention import ScaledDotProductAttention
from weft.nn.cross_attention import AdditiveAttention


class Mix(nn.Module):
    """A module whose forward has all kinds of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor, scale: float = 1.0, *, shift: float = 0.0) -> Tensor:
        return scale * self.linear(x) + shift


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Mix(), Mix()])
        self.head = nn.Linear(3, 2)
        self.tied = self.head

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[1](shift=2.0, x=self.layers[0](x))
        if x.isnan().any():
            raise FloatingPointError("not a number")
        return self.tied(x)


def hooks(model: nn.Module) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_hooks_with_kwargs) for part in model.modules())


def test_calls_are_recorded_in_order_with_inputs_and_outputs():
    model, x = Model(), torch.randn(4, 3)
    with record_activations(model, ["head", "layers.1", "layers.0.linear"]) as recorded:
        assert recorded == []
        y = model(x)
        model(x + 1)
    assert [call.name for call in recorded] == ["layers.0.linear", "layers.1", "head"] * 2
    assert recorded[0].inputs == (x,)
    assert recorded[2].output is y
    assert recorded[2].inputs == (recorded[1].output,)
    assert recorded[1].part is model.layers[1]


def test_inputs_are_in_the_order_of_forward_with_defaults():
    model, x = Model(), torch.randn(4, 3)
    with record_activations(model, ["layers.0", "layers.1"]) as recorded:
        model(x)
    assert recorded[0].inputs == (x, 1.0, 0.0)
    assert recorded[1].inputs == (recorded[0].output, 1.0, 2.0)


def test_single_duplicate_alias_and_root_module_names():
    model, x = Model(), torch.randn(1, 3)
    for names, expected in [("tied", ["tied"]), (["head", "head"], ["head"]), ("", [""]), ([], [])]:
        with record_activations(model, names) as recorded:
            model(x)
        assert [call.name for call in recorded] == expected
    with record_activations(model, ["head", "tied"]) as recorded:
        model(x)
    assert sorted(call.name for call in recorded) == ["head", "tied"]


def test_gradients_flow_through_recorded_tensors():
    model = Model()
    with record_activations(model, "layers.0") as recorded:
        model(torch.randn(4, 3))
    [gradient] = torch.autograd.grad(recorded[0].output.sum(), model.layers[0].linear.bias)
    assert gradient.tolist() == [4, 4, 4]


def test_recording_does_not_change_outputs():
    torch.manual_seed(0)
    stack, x = build_stack("attention-rotary"), torch.randn(2, 5, 8)
    plain, _ = stack(x)
    with record_activations(
        stack, [name for name, part in stack.named_modules() if isinstance(part, nn.Linear | ScaledDotProductAttention)]
    ):
        watched, _ = stack(x)
    assert torch.equal(plain, watched)


def test_hooks_are_removed_after_the_block():
    model, x = Model(), torch.randn(1, 3)
    with record_activations(model, ["head", "layers.0"]) as recorded:
        assert hooks(model) > 0
        model(x)
    model(x)
    assert len(recorded) == 2
    assert hooks(model) == 0


def test_hooks_are_removed_if_the_model_fails_and_records_remain():
    model = Model()
    with pytest.raises(FloatingPointError), record_activations(model, ["layers.0", "head"]) as recorded:
        model(torch.full((1, 3), torch.nan))
    assert [call.name for call in recorded] == ["layers.0"]
    assert hooks(model) == 0


def test_other_hooks_remain():
    model = Model()
    calls = []
    handle = model.head.register_forward_hook(lambda *call: calls.append(call))
    with record_activations(model, "head"):
        pass
    model(torch.randn(1, 3))
    assert len(calls) == 1
    handle.remove()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "laiers.0",
            "record_activations: unknown module 'laiers.0'; did you mean 'layers.0'? the model has: layers, head, tied",
        ),
        ("layers.2", "record_activations: unknown module 'layers.2'; did you mean 'layers.1'? 'layers' has: 0, 1"),
        (
            "linear",
            "record_activations: unknown module 'linear'; did you mean 'layers.1.linear'? the model has: layers, head, tied",
        ),
        ("head.weight", "record_activations: unknown module 'head.weight'; did you mean 'head'? 'head' has: no submodules"),
        ("???", "record_activations: unknown module '???'; the model has: layers, head, tied"),
        ("layers", "record_activations: 'layers' is a container and never called; choose from 0, 1"),
    ],
)
def test_invalid_module_names_are_rejected(name, message):
    model = Model()
    with pytest.raises(UsageError) as caught, record_activations(model, ["head", name]):
        pass
    assert str(caught.value) == message
    assert hooks(model) == 0


def wrapped(model: Model) -> nn.Module:
    return torch.compile(model, backend="eager")


def in_place(model: Model) -> nn.Module:
    model.compile(backend="eager")
    return model


def part_wrapped(model: Model) -> nn.Module:
    model.layers[0] = torch.compile(model.layers[0], backend="eager")
    return model


def part_in_place(model: Model) -> nn.Module:
    model.layers[0].linear.compile(backend="eager")
    return model


@pytest.mark.parametrize(
    ("compiled", "module_name"),
    [(wrapped, "the model"), (in_place, "the model"), (part_wrapped, "'layers.0'"), (part_in_place, "'layers.0.linear'")],
)
def test_a_compiled_module_is_rejected_by_name(compiled, module_name):
    with pytest.raises(UsageError) as caught, record_activations(compiled(Model()), "layers.0.linear"):
        pass
    assert str(caught.value) == f"record_activations: {module_name} is compiled; load the run again without compiling"


def test_modules_next_to_a_compiled_module_are_recorded():
    model = part_in_place(Model())
    with record_activations(model, ["layers.0", "layers.1.linear"]) as recorded:
        model(torch.zeros(1, 3))
    assert [item.name for item in recorded] == ["layers.0", "layers.1.linear"]


# ---- attention weights

B, H, E = 2, 3, 4


def inputs(t: int, s: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return 2 * torch.randn(B, H, t, E), 2 * torch.randn(B, H, s, E), torch.randn(B, H, s, 5)


KEEP = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 0, 0, 0, 0]], dtype=torch.bool)
MASKS = {
    "none": None,
    "padding": KEEP[:, None, None, :],
    "per query": torch.rand(B, 1, 5, 6, generator=torch.Generator().manual_seed(1)) > 0.4,
    "a blind query": torch.ones(5, 6, dtype=torch.bool).tril(-1),
    "bias": torch.randn(H, 5, 6, generator=torch.Generator().manual_seed(1)),
    "bias and padding": torch.randn(H, 5, 6).masked_fill(~KEEP[:, None, None, :], float("-inf")),
}


def check(attend: nn.Module, inputs: tuple[object, ...], v: Tensor) -> Tensor:
    with record_activations(nn.ModuleDict({"attend": attend}), "attend") as recorded:
        attend(*inputs)
    weights = attention_weights(recorded[0])
    torch.testing.assert_close(weights @ v, recorded[0].output, atol=1e-6, rtol=1e-6)
    return weights


@pytest.mark.parametrize("scale", [None, 1.0])
@pytest.mark.parametrize("mask", MASKS)
def test_weights_times_values_are_the_fused_output(mask, scale):
    q, k, v = inputs(5, 6)
    weights = check(ScaledDotProductAttention(scale=scale).eval(), (q, k, v, MASKS[mask], False), v)
    assert weights.shape == (B, H, 5, 6)
    blind = int(mask == "a blind query")
    torch.testing.assert_close(weights[:, :, blind:].sum(-1), torch.ones(B, H, 5 - blind))
    assert not weights[:, :, :blind].any()


@pytest.mark.parametrize(("t", "s"), [(5, 5), (3, 6), (6, 3), (1, 1)])
def test_causal_weights_times_values_are_the_fused_output(t, s):
    q, k, v = inputs(t, s)
    weights = check(ScaledDotProductAttention().eval(), (q, k, v, None, True), v)
    assert not weights.triu(1).any()


def test_dropout_is_not_part_of_the_weights():
    q, k, v = inputs(5, 6)
    attend = ScaledDotProductAttention(dropout=0.5).train()
    assert torch.equal(attend.weights(q, k, v, None, False), attend.eval().weights(q, k, v, None, False))


def test_nan_is_not_hidden():
    q, k, v = inputs(5, 6)
    q[0, 0, 2] = torch.nan
    weights = ScaledDotProductAttention().weights(q, k, v, MASKS["padding"], False)
    assert weights[0, 0, 2, :5].isnan().all()
    assert weights.isnan().sum() == 5


def test_additive_weights_times_values_are_the_output():
    q, k, v = inputs(5, 6)
    weights = check(AdditiveAttention(E), (q[:, :1], k[:, :1], v[:, :1], MASKS["padding"], False), v[:, :1])
    assert weights.shape == (B, 1, 5, 6)


@pytest.mark.parametrize("kind", ["none", "rotary", "alibi", "relative", "window-3"])
@pytest.mark.parametrize("padded", [False, True])
def test_self_attention_weights_match_in_one_pass_and_in_steps(kind, padded):
    mixer = build_mixer("attention" if kind == "none" else f"attention-{kind}")
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    keep = torch.tensor([[True] * 5, [True] * 3 + [False] * 2]) if padded else None
    with record_activations(mixer, "attend") as recorded, torch.inference_mode():
        _, state = mixer(x, None, keep)
        mixer(x[:, :1], state)
    assert [attention_weights(call).shape for call in recorded] == [(2, 2, 5, 5), (2, 2, 1, 6)]
    for call in recorded:
        torch.testing.assert_close(attention_weights(call) @ call.inputs[2], call.output, atol=1e-6, rtol=1e-6)


def test_modules_without_attention_have_no_weights():
    model = Model()
    with record_activations(model, "layers.0") as recorded:
        model(torch.randn(1, 3))
    with pytest.raises(UsageError) as caught:
        attention_weights(recorded[0])
    assert str(caught.value) == "attention_weights: 'layers.0' has no attention weights; record its 'attend' module"
