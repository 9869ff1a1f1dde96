"""The loss in chunks equals the plain functions, and never holds the logits of all positions."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from toy_seq2seq import seq2seq_model

from weft.allocations import LiveMemory
from weft.models.config import LanguageModelConfig
from weft.models.lm import language_model
from weft.nn import chunked_cross_entropy as chunked
from weft.nn import lm_head, pointer_generator
from weft.nn.chunked_cross_entropy import Options, chunked_cross_entropy
from weft.nn.lm_head import LMHead

POSITIONS, DIM, VOCAB_SIZE = 37, 12, 50


def inputs(scale: float = 1.0) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((POSITIONS, DIM), (VOCAB_SIZE, DIM), (VOCAB_SIZE,))
    parts = [torch.randn(*shape, generator=generator).mul_(scale if len(shape) > 1 else 1.0) for shape in shapes]
    return [part.requires_grad_() for part in parts], torch.randint(0, VOCAB_SIZE, (POSITIONS,), generator=generator)


def gradients(loss: Tensor, parameters: list[Tensor]) -> list[Tensor]:
    """Gradients of a sum in which every position has another weight, and some have none, as padding."""
    weights = torch.linspace(-1, 2, POSITIONS) * (torch.arange(POSITIONS) % 3 > 0)
    return list(torch.autograd.grad((loss.flatten() * weights.to(loss.dtype)).sum(), parameters))


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("logit_softcap", [0.0, 3.0])
@pytest.mark.parametrize("chunk_logits", [1, 4 * VOCAB_SIZE, 1 << 22])
def test_loss_and_gradients_equal_the_plain_functions(monkeypatch, label_smoothing, logit_softcap, chunk_logits):
    monkeypatch.setattr(chunked, "CHUNK_LOGITS", chunk_logits)
    for scale in (1.0, 100.0):  # logits that overflow without their maximum
        parameters, labels = inputs(scale)
        loss = chunked_cross_entropy(*parameters, labels, Options(label_smoothing, logit_softcap))
        exact = [part.detach().double().requires_grad_() for part in parameters]
        logits = F.linear(*exact)
        logits = logit_softcap * torch.tanh(logits / logit_softcap) if logit_softcap else logits
        plain = F.cross_entropy(logits, labels, reduction="none", label_smoothing=label_smoothing)
        torch.testing.assert_close(loss.double(), plain, rtol=1e-5, atol=1e-4 * scale)
        for actual, expected in zip(gradients(loss, parameters), gradients(plain, exact), strict=True):
            torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=2e-4 * scale)


def test_products_are_in_the_type_of_autocast_and_gradients_in_that_of_the_weights(monkeypatch):
    monkeypatch.setattr(lm_head, "is_large", lambda *_: True)
    torch.manual_seed(1)
    head, x = LMHead(DIM, VOCAB_SIZE), torch.randn(1, POSITIONS, DIM, requires_grad=True)
    targets = torch.randint(0, VOCAB_SIZE, (1, POSITIONS))
    parameters = [x, *head.parameters()]
    with torch.autocast("cpu", torch.bfloat16):
        loss = head.loss(x, targets, 0.1)
        plain = F.cross_entropy(head.logits(x[0]), targets[0], reduction="none", label_smoothing=0.1)
    torch.testing.assert_close(loss[0], plain)  # the same products, rounded alike
    for actual, expected in zip(gradients(loss, parameters), gradients(plain, parameters), strict=True):
        assert actual.dtype == torch.float32
        torch.testing.assert_close(actual, expected, atol=0.05, rtol=0.05)


def test_it_is_for_many_logits_on_a_gpu(monkeypatch):
    weight = torch.empty(50_304, 1, device="meta")
    assert not lm_head.is_large(1 << 20, weight)  # not on a GPU

    class OnGPU:
        is_cuda, device = True, torch.device("cuda")

        def __len__(self) -> int:
            return 50_304

    for gigabytes, expected in ((40, True), (140, False)):
        properties = SimpleNamespace(total_memory=gigabytes << 30)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, properties=properties: properties)
        assert lm_head.is_large(32 * 1024, OnGPU()) == expected
        assert not lm_head.is_large(1024, OnGPU())


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_a_compiled_loss_is_one_graph_and_equals_the_plain_one(monkeypatch, label_smoothing):
    head, x = LMHead(DIM, VOCAB_SIZE, logit_softcap=3.0), torch.randn(1, POSITIONS, DIM, requires_grad=True)
    targets = torch.randint(0, VOCAB_SIZE, (1, POSITIONS))
    parameters = [x, *head.parameters()]
    expected = head.loss(x, targets, label_smoothing)
    monkeypatch.setattr(chunked, "CHUNK_LOGITS", 4 * VOCAB_SIZE)
    monkeypatch.setattr(lm_head, "is_large", lambda *_: True)
    compiled = torch.compile(head.loss, backend="aot_eager", fullgraph=True)
    loss = compiled(x, targets, label_smoothing)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients(loss, parameters), gradients(expected, parameters))


def test_the_operators_are_defined_when_they_are_needed():
    code = "import sys, weft.models.lm; print('weft.nn.chunked_cross_entropy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# ---- memory


def peak_bytes(function) -> int:
    with LiveMemory() as memory:
        function()
    return max(memory.trace)


@pytest.fixture
def in_chunks(monkeypatch):
    monkeypatch.setattr(chunked, "CHUNK_LOGITS", 1 << 13)
    monkeypatch.setattr(pointer_generator, "MAX_TRAINING_LOGITS", 1 << 14)
    for module in (lm_head, pointer_generator):
        monkeypatch.setattr(module, "is_large", lambda *_: True)


def test_training_a_language_model_never_holds_all_logits(in_chunks):
    vocab_size, rows, length = 4096, 4, 32
    config = LanguageModelConfig(layer_type="mingru", hidden_size=8, num_layers=1, logit_softcap=15.0).with_defaults()
    model = language_model(config, vocab_size=vocab_size, context_length=length, vocabulary="")
    tokens = torch.randint(0, vocab_size, (rows, length + 1))
    peak = peak_bytes(lambda: model.loss(tokens[:, :-1], tokens[:, 1:])[0].sum().backward())
    gradient_bytes = 2 * 4 * vocab_size * 9
    assert peak < gradient_bytes * 2 + 4 * (1 << 13) * 6 < 4 * rows * length * vocab_size


@pytest.mark.parametrize("copy_mechanism", [False, True])
def test_training_an_encoder_decoder_never_holds_all_logits(in_chunks, monkeypatch, copy_mechanism):
    rows, length, vocab_size = 4, 64, 1024
    options = {"layer_type": "gru", "attention": "dot", "copy_mechanism": copy_mechanism}
    model = seq2seq_model(vocab_size=vocab_size, hidden_size=8, **options)
    tokens = torch.randint(4, vocab_size, (rows, length + 1))
    source = tokens[:, :6]

    def train() -> None:
        model.zero_grad()
        state = model.encode(source, torch.ones_like(source, dtype=torch.bool))
        model.loss(tokens[:, :-1], tokens[:, 1:], state, 0.1)[0].sum().backward()

    peak, gradient = peak_bytes(train), model.decoder.embedder.embedding.weight.grad
    with monkeypatch.context() as patch:
        for module in (lm_head, pointer_generator):
            patch.setattr(module, "is_large", lambda *_: False)
        plain_peak = peak_bytes(train)
    torch.testing.assert_close(gradient, model.decoder.embedder.embedding.weight.grad)
    assert peak < 4 * rows * length * vocab_size < plain_peak
