"""The cost of explanations: forward passes that record attention weights, and training steps after an explanation.

    python benchmarks/explain_overhead.py

A randomly initialized Transformer language model (6 layers, hidden size 256) reads 256 tokens on one thread: without
recording, with one head, and with all heads of all layers. Printed are median times. Target: one head costs less than twice a
plain pass.

Then three copies of the model take training steps (forward, backward, clip, AdamW) on the same row: two that were never
explained, and one whose heads were all explained before. They take turns, in another order in each round. Printed are median
CPU times, and median and quartiles of the ratio to the first copy in the same round. Target: the ratio of the explained model
is as close to 1 as that of the second copy, which shows the precision of the measurement.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import torch
from torch import Tensor

from weft.explain.attention import read_attention, sites
from weft.explain.explanation import TokenSpan
from weft.explain.inputs import InputSide, ModelInput
from weft.models.config import TRANSFORMER, LanguageModelConfig
from weft.models.lm import LanguageModel, language_model

NUM_TOKENS, VOCAB_SIZE, NUM_HEADS = 256, 8000, 8
WARMUP_CALLS, WARMUP_ROUNDS = 3, 2


def make_model() -> LanguageModel:
    torch.manual_seed(0)
    config = LanguageModelConfig(**{**TRANSFORMER, "num_layers": 6, "hidden_size": 256, "num_heads": NUM_HEADS})
    return language_model(config.with_defaults(), vocab_size=VOCAB_SIZE, context_length=NUM_TOKENS, vocabulary="").eval()


def median_milliseconds(repeats: int, *calls: Callable[[], object]) -> list[float]:
    """Median wall-clock time of each call. Calls take turns, so that other load affects all of them."""
    times: list[list[float]] = [[] for _ in calls]
    for i in range(repeats + WARMUP_CALLS):
        for call_times, call in zip(times, calls, strict=True):
            start = time.perf_counter()
            call()
            if i >= WARMUP_CALLS:
                call_times.append(1000 * (time.perf_counter() - start))
    return [median(call_times) for call_times in times]


def training_step(model: LanguageModel, rows: Tensor) -> Callable[[], object]:
    """A training step as in `weft train`."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        losses, _ = model.loss(rows[:, :-1], rows[:, 1:])
        torch.autograd.backward(losses.mean())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def cpu_milliseconds(rounds: int, steps: Sequence[Callable[[], object]]) -> np.ndarray:
    """CPU times (rounds, steps). The order changes in each round, because the first step may find cold caches."""
    times = np.zeros((rounds + WARMUP_ROUNDS, len(steps)))
    for i in range(rounds + WARMUP_ROUNDS):
        for j in np.roll(np.arange(len(steps)), i).tolist():
            start = time.process_time()
            steps[j]()
            times[i, j] = 1000 * (time.process_time() - start)
    return times[WARMUP_ROUNDS:]


def count_hooks(model: torch.nn.Module) -> int:
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) + len(module._backward_hooks) for module in model.modules()
    )


def measure_explanations(model: LanguageModel, tokens: Tensor, repeats: int) -> None:
    """Print the time of forward passes without and with recorded attention weights."""
    spans = [TokenSpan("", 0, 0)] * NUM_TOKENS
    side = InputSide("text", "embedding", "embedding", tokens[0].tolist(), spans)

    @torch.no_grad()
    def forward(_: Tensor | None = None) -> Tensor:
        logits: Tensor = model.head(model(tokens)[0][:, -1])
        return logits

    model_input = ModelInput(model, [side], forward, spans[:1], None, str)
    layers, device = sites(model), torch.device("cpu")
    plain, one_head, all_heads = median_milliseconds(
        repeats,
        forward,
        lambda: read_attention(model_input, layers[3:4], 5, device),
        lambda: read_attention(model_input, layers, None, device),
    )
    print(f"plain forward pass    {plain:8.2f} ms")
    print(f"with one head         {one_head:8.2f} ms   {one_head / plain:.2f} times")
    print(f"with all {NUM_HEADS * len(layers)} heads     {all_heads:8.2f} ms   {all_heads / plain:.2f} times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=100, help="number of forward passes")
    parser.add_argument("--rounds", type=int, default=100, help="number of training steps")
    args = parser.parse_args()
    torch.set_num_threads(1)
    first, second, explained = make_model(), make_model(), make_model()
    measure_explanations(explained, torch.randint(VOCAB_SIZE, (1, NUM_TOKENS)), args.repeats)
    rows = torch.randint(VOCAB_SIZE, (1, NUM_TOKENS // 2 + 1))
    times = cpu_milliseconds(args.rounds, [training_step(model, rows) for model in (first, second, explained)])
    print(f"hooks in the explained model: {count_hooks(explained)}")
    for j, name in enumerate(("first copy", "second copy", "explained copy")):
        low, middle, high = np.quantile(times[:, j] / times[:, 0], (0.25, 0.5, 0.75))
        print(f"step, {name:<18}{np.median(times[:, j]):8.1f} ms   {middle:.3f} times ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
