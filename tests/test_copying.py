"""The loss of the copy mechanism, with label smoothing, against float64 sums over the vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from toy_models import enlarge_weights
from toy_seq2seq import random_memory

from weft.nn.lm_head import LMHead
from weft.nn.pointer_generator import PointerGeneratorOutput

WORDS = 8
SOURCE = torch.tensor([[3, 4, 4, 2], [5, 2, 0, 0]])  # 4 is at two positions; the second row has two of padding
LENGTHS = (4, 2)
TARGETS = torch.tensor([[4, 3, 7], [5, 0, 2]])  # 7 and 0 can't be copied: 0 is padding there
CLOSE: dict[str, Any] = {"atol": 2e-6, "rtol": 2e-6}


def part_and_inputs(*, cap: float | None = None) -> tuple[PointerGeneratorOutput, Any, Tensor]:
    torch.manual_seed(0)
    part: PointerGeneratorOutput = enlarge_weights(
        PointerGeneratorOutput(LMHead(6, WORDS, logit_softcap=cap), 6, memory_size=5)
    )  # type: ignore[assignment]
    memory = random_memory(*LENGTHS, hidden_size=5, dtype=torch.float)
    return part, memory, torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(1))


def softmax(scores: np.ndarray) -> np.ndarray:
    raised = np.exp(scores - scores.max())
    return raised / raised.sum()


def mixed(part: PointerGeneratorOutput, memory: Any, x: Tensor, cap: float | None = None) -> np.ndarray:
    """P(v) of every word at every position, (2, 3, V), in float64: g P(v) + (1 - g) times the shares of v's places."""
    weights = {name: weight.detach().double().numpy() for name, weight in part.named_parameters()}
    values, found = memory.values.double().numpy(), np.zeros((2, 3, WORDS))
    for b, length in enumerate(LENGTHS):
        for t, y in enumerate(x[b].double().numpy()):
            gate = 1 / (1 + np.exp(-(weights["gate.weight"] @ y + weights["gate.bias"])[0]))
            scores = weights["head.weight"] @ y + weights["head.bias"]
            found[b, t] = gate * softmax(scores if cap is None else cap * np.tanh(scores / cap))
            shares = softmax(np.array([y @ (weights["to_k.weight"] @ values[b, s]) for s in range(length)]) / 6**0.5)
            for s in range(length):
                found[b, t, SOURCE[b, s]] += (1 - gate) * shares[s]
    return found


@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_smoothing_applies_to_the_mixture_of_copying_and_generating(smoothing, cap):
    part, memory, x = part_and_inputs(cap=cap)
    probabilities = mixed(part, memory, x, cap)
    np.testing.assert_allclose(probabilities.sum(-1), 1.0)
    right = np.take_along_axis(probabilities, TARGETS.numpy()[..., None], axis=2)[..., 0]
    expected = -(1 - smoothing) * np.log(right) - smoothing * np.log(probabilities).mean(-1)
    found = part.loss(x, TARGETS, part.init_state(memory, SOURCE), smoothing)
    np.testing.assert_allclose(found.detach().numpy(), expected, **CLOSE)
    with torch.no_grad():
        again = part.loss(x, TARGETS, part.init_state(memory, SOURCE), smoothing)
    torch.testing.assert_close(again, found.detach(), atol=1e-6, rtol=1e-6)


def test_the_smoothed_loss_equals_that_of_the_predicted_distribution():
    part, memory, x = part_and_inputs()
    seen = part.init_state(memory, SOURCE)
    log_probs = torch.stack([part(x[:, at], seen) for at in range(3)], dim=1)
    expected = 0.8 * -log_probs.gather(2, TARGETS[..., None])[..., 0] - 0.2 * log_probs.mean(-1)
    torch.testing.assert_close(part.loss(x, TARGETS, seen, 0.2), expected, atol=1e-5, rtol=1e-5)


def test_without_copying_the_loss_equals_the_plain_head():
    part, memory, x = part_and_inputs()
    with torch.no_grad():
        part.gate.weight.zero_()
        part.gate.bias.fill_(60.0)  # g = 1 in float32
    for smoothing in (0.0, 0.1, 0.4):
        found = part.loss(x, TARGETS, part.init_state(memory, SOURCE), smoothing)
        torch.testing.assert_close(found, part.head.loss(x, TARGETS, smoothing), atol=1e-6, rtol=1e-6)


def test_the_smoothed_loss_is_never_below_the_entropy_of_its_targets():
    """Cross-entropy is at least the entropy of the smoothed target. A word that can be copied is driven out of the
    vocabulary here, which must cost, not pay."""
    part, memory, x = part_and_inputs()
    smoothing, spread = 0.1, 0.1 / WORDS
    target = 1 - smoothing + spread
    entropy = -target * np.log(target) - (WORDS - 1) * spread * np.log(spread)
    lowest = []
    for bias in (0.0, -10.0, -100.0, -1000.0):
        with torch.no_grad():
            part.head.bias[5] = bias
        lowest.append(part.loss(x, TARGETS, part.init_state(memory, SOURCE), smoothing).min().item())
    assert min(lowest) >= entropy


def test_the_gradient_of_the_smoothed_loss_is_finite_and_equals_the_explicit_mixture():
    part, memory, x = part_and_inputs()
    x.requires_grad_()
    part.loss(x, TARGETS, part.init_state(memory, SOURCE), 0.1).sum().backward()
    found = {name: weight.grad.clone() for name, weight in part.named_parameters() if weight.grad is not None}
    at_x = x.grad.clone()
    part.zero_grad()
    x.grad = None
    gate = part.gate(x).sigmoid()
    scores = (x @ part.to_k(memory.values).transpose(1, 2) / 6**0.5).masked_fill(~memory.token_mask[:, None], -torch.inf)
    vocabulary = (x @ part.head.weight.T + part.head.bias).softmax(-1)
    copied = torch.zeros_like(vocabulary).scatter_add(2, SOURCE[:, None].expand(-1, 3, -1), scores.softmax(-1))
    log = (gate * vocabulary + (1 - gate) * copied).log()
    (-0.9 * log.gather(2, TARGETS[..., None]).sum() - 0.1 * log.mean(-1).sum()).backward()
    torch.testing.assert_close(at_x, x.grad, atol=1e-5, rtol=1e-4)
    for name, weight in part.named_parameters():
        torch.testing.assert_close(found[name], weight.grad, atol=1e-5, rtol=1e-4)


def test_a_copy_probability_of_zero_has_a_finite_gradient():
    part, memory, x = part_and_inputs()
    with torch.no_grad():
        part.to_k.weight.mul_(1e4)  # the pointer is certain: other positions have a share of exactly 0
    x.requires_grad_()
    part.loss(x, TARGETS, part.init_state(memory, SOURCE), 0.1).sum().backward()
    assert torch.isfinite(x.grad).all()
    assert all(torch.isfinite(weight.grad).all() for weight in part.parameters())
