"""Training with torch.compile gives the same run with the same parameter names. Only tracing is tested, with torch's own
tracer."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from small_runs import SilentCallback, make_text, run_file, train_here
from test_loop import small_loop, small_model

from weft.data.batching import Batch
from weft.errors import TrainingInterrupted
from weft.nn import kernels
from weft.tensors import read_tensors
from weft.training import compilation
from weft.training.loop import Loop
from weft.training.loss_module import LossModule


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own, where it leaves a graph
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


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own, where it leaves a graph
@pytest.mark.parametrize(("unit", "num_graphs"), [("layer", 2), ("model", 1)])
def test_each_part_is_compiled_once(tmp_path, graphs, monkeypatch, unit, num_graphs):
    """Over the end of an epoch, whose last batch has fewer rows, and over validations. The layers, here three, share one graph of
    attention and the feed-forward layer; the other graph is that of the loss."""
    monkeypatch.setattr(compilation, "MODEL_STEPS", 10_000 if unit == "layer" else 0)
    text = make_text(tmp_path / "text.txt")
    options = {"model__dropout": 0.0, "model__num_layers": 3, "train__max_epochs": 2, "train__num_validations": 2}
    options |= {"train__batch_tokens": 512}
    plain, compiled, rows = SilentCallback(), SilentCallback(), set()
    train_here(run_file(text, "gpt", **options), tmp_path / "plain", plain)
    forward = LossModule.forward

    def count_rows(self: LossModule, batch: Batch, carry: object, counts: bool = True) -> object:
        rows.add(tuple(batch.tokens.shape))
        return forward(self, batch, carry, counts)

    if unit == "layer":  # not compiled itself
        monkeypatch.setattr(LossModule, "forward", count_rows)
    train_here(run_file(text, "gpt", **options, train__compile=True), tmp_path / "run", compiled)
    assert len(graphs) == num_graphs
    assert compiled.losses == pytest.approx(plain.losses, abs=1e-4) and len(plain.losses) > 4
    assert dict(compiled.scores) == pytest.approx(dict(plain.scores), abs=1e-4)
    # no key-value cache: every output is used
    outputs = [next(node for node in graph.graph.nodes if node.op == "output").args[0] for graph in graphs]
    assert all(len(each) <= 3 for each in outputs)
    assert max(rows, default=(32, 17)) == (32, 17) and len(rows) <= 3  # the memory check reads two and three rows


@pytest.mark.parametrize(
    ("options", "train", "unit"),
    [
        ({}, {}, "layer"),
        ({}, {"max_steps": compilation.MODEL_STEPS}, "model"),  # long enough to make up for it
        ({}, {"stream": True}, "model"),  # its states are read
        ({"num_experts": 2}, {}, "model"),  # experts record their load
        ({}, {"activation_checkpointing": True}, "model"),
    ],
)
def test_what_is_compiled_as_one(options, train, unit):
    loop = small_loop(small_model("attention", num_heads=2, **options), **{"max_steps": 9, **train})
    assert compilation.plan(loop, has_equal_shapes=True, is_recorded=False)[:3] == (unit, False, True)
    assert compilation.plan(loop, has_equal_shapes=False, is_recorded=False)[:3] == ("model", False, False)


def test_short_recorded_trainings_of_small_models_are_not_compiled(monkeypatch):
    def plan(max_steps, *, is_recorded=True):
        loop = small_loop(small_model("attention", num_heads=2), max_steps=max_steps)
        return compilation.plan(loop, has_equal_shapes=True, is_recorded=is_recorded)

    limit = compilation.RECORDED_STEPS
    assert plan(limit - 1).unit == "nothing" and plan(limit).unit == "layer"
    # kernels take the place of the compiler, unless the training is over before they have paid for their own compilation
    assert plan(limit - 1).kernels and plan(compilation.KERNEL_STEPS).kernels
    assert not plan(compilation.KERNEL_STEPS - 1).kernels
    assert not plan(limit).kernels and not plan(limit - 1, is_recorded=False).kernels
    monkeypatch.setattr(compilation, "RECORDED_PARAMETERS", 1)
    assert plan(9).unit == "layer"


@pytest.mark.parametrize(
    ("capability", "has_equal_shapes", "is_chosen"), [(9, True, True), (8, True, False), (9, False, False)]
)
def test_cudnn_computes_the_attention_of_equal_shapes_on_new_gpus(monkeypatch, capability, has_equal_shapes, is_chosen):
    loop = small_loop(small_model("attention", num_heads=2), max_steps=1)
    chosen = compilation.Compilation("nothing", muon=False, has_equal_shapes=has_equal_shapes)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (capability, 0))
    entered = []
    monkeypatch.setattr(compilation, "attention_kernels", lambda: nullcontext(entered.append(1)))
    for device, expected in (("cpu", []), ("cuda", [1] * is_chosen)):
        loop.device_config = loop.device_config._replace(device=torch.device(device))
        compilation.compile_training(loop, chosen)
        with loop.kernels():
            assert entered == expected


@pytest.mark.parametrize("has_triton", [True, False])
def test_the_forward_pass_of_recorded_steps_uses_kernels_if_there_is_triton(monkeypatch, has_triton):
    loop = small_loop(small_model("attention", num_heads=2), max_steps=1)
    loop.device_config = loop.device_config._replace(device=torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(compilation.fused_cross_entropy, "kernels", lambda: compilation if has_triton else None)
    used = []
    for uses_kernels in (True, False):
        chosen = compilation.Compilation("nothing", muon=False, has_equal_shapes=True, kernels=uses_kernels)
        compilation.compile_training(loop, chosen)
        with loop.kernels():
            used.append(kernels._records.get())
    assert used == [has_triton, False]
    assert not kernels._records.get()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own, where it leaves a graph
def test_large_models_compile_muon(tmp_path, graphs, monkeypatch):
    """On a GPU; here its steps are deferred as they are there."""
    monkeypatch.setattr(compilation, "MUON_PARAMETERS", 1)
    monkeypatch.setattr(Loop, "asynchronous_devices", ("cpu",))
    text = make_text(tmp_path / "text.txt")
    options = {"model__dropout": 0.0, "train__max_steps": 5, "train__num_validations": 1, "train__optimizer": "muon"}
    plain, compiled = SilentCallback(), SilentCallback()
    train_here(run_file(text, "gpt", **options), tmp_path / "plain", plain)
    train_here(run_file(text, "gpt", **options, train__compile=True), tmp_path / "run", compiled)
    assert compiled.losses == pytest.approx(plain.losses, abs=1e-4)
    assert len(graphs) == 2 + 4  # attention has two shapes of matrices, and so has the feed-forward layer


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


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own, where it leaves a graph
@pytest.mark.parametrize("hooked", [False, True])
def test_several_models_in_one_process_stay_compiled(graphs, hooked):
    """More of them than torch compiles a function for, by default. With hooks, as of FSDP2, each sublayer is compiled alone."""
    calls: list[int] = []
    for number in range(1, 10):
        torch.manual_seed(0)
        model = small_model("attention", num_heads=2, skip_connection="residual", ffn_dim=4 * number)
        loop = small_loop(model, max_steps=1)
        if hooked:
            model.stack.layers[0].register_forward_pre_hook(lambda layer, inputs: calls.append(1))
        total, _, _ = loop.summed_gradients(loop.next_batch())
        expected = [weight.grad.clone() for weight in loop.optimizers.weights]
        loop.optimizers.zero_grad()
        calls.clear()
        compilation.compile_training(loop, compilation.Compilation("layer", muon=False, has_equal_shapes=True))
        compiled, _, _ = loop.summed_gradients(loop.next_batch())
        assert compiled.item() == pytest.approx(total.item())
        for gradient, weight in zip(expected, loop.optimizers.weights, strict=True):
            torch.testing.assert_close(weight.grad, gradient)
        assert len(calls) == hooked
    # with hooks, all models share attention; the loss is the same function of the same shapes
    assert len(graphs) == (1 + 9 + 1 if hooked else 9 + 1)


def test_attention_prefers_cudnn_only_in_the_forward_pass_of_training():
    """It plans each new shape for 15 ms, and texts that are generated have another shape at each token."""
    enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        order = torch._C._get_sdp_priority_order()
        with compilation.attention_kernels():
            assert torch.backends.cuda.cudnn_sdp_enabled() and torch.backends.cuda.flash_sdp_enabled()
            assert torch._C._get_sdp_priority_order()[0] == int(torch.nn.attention.SDPBackend.CUDNN_ATTENTION)
            q = torch.randn(2, 2, 4, 8)
            assert torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).shape == q.shape
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert torch._C._get_sdp_priority_order()[:3] == order[:3]  # torch does not restore the order of the others
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled)
