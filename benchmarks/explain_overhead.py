"""What looking costs: one pass that keeps one head's pattern, against one that keeps nothing; and training after a look.

    python benchmarks/explain_overhead.py

A Transformer language model of 6 layers of width 256, freshly made, reads a row of 256 tokens, as often without as with, one
after the other, on one thread. Printed are the medians, and their ratio, which must stay below 2; also that of all heads of all
layers.

Then three copies of the model take training steps (forward, backward, clip, AdamW) on the same row: two that nobody ever
looked into, and one whose every head was explained just before. They take turns, each round in another order. Printed are the
medians, of processor time, for which other programs count less, and the ratios within a round, by median and quartiles: that of
the one that was explained must be no further from 1 than that of the second copy that was not, which is what this machine can
measure.
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

TOKENS, WORDS = 256, 8000


def made() -> LanguageModel:
    torch.manual_seed(0)
    table = LanguageModelConfig(**{**TRANSFORMER, "num_layers": 6, "hidden_size": 256, "num_heads": 8})
    return language_model(table.with_defaults(), vocab_size=WORDS, context_length=TOKENS, vocabulary="").eval()


def alternating(repeats: int, *calls: Callable[[], object]) -> list[float]:
    """Milliseconds of each, the median; they take turns, so that a busy machine is busy for all."""
    taken: list[list[float]] = [[] for _ in calls]
    for number in range(repeats + 3):
        for place, call in zip(taken, calls, strict=True):
            began = time.perf_counter()
            call()
            if number >= 3:
                place.append(1000 * (time.perf_counter() - began))
    return [median(place) for place in taken]


def training(model: LanguageModel, rows: Tensor) -> Callable[[], object]:
    """A training step of the model, as `weft train` takes it."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> object:
        optimizer.zero_grad()
        nats, _ = model.loss(rows[:, :-1], rows[:, 1:])
        nats.mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return optimizer.step()

    return step


def in_turns(rounds: int, steps: Sequence[Callable[[], object]]) -> np.ndarray:
    """Milliseconds of the processor (rounds, steps), each round in another order: what comes first may find the caches cold."""
    taken = np.zeros((rounds + 2, len(steps)))
    for number in range(rounds + 2):
        for at in np.roll(np.arange(len(steps)), number):
            began = time.process_time()
            steps[at]()
            taken[number, at] = 1000 * (time.process_time() - began)
    return taken[2:]


def hooks(model: torch.nn.Module) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) + len(part._backward_hooks) for part in model.modules())


def looking(model: LanguageModel, tokens: Tensor, repeats: int) -> None:
    side = InputSide("text", "embedding", "embedding", tokens[0].tolist(), [TokenSpan("", 0, 0)] * TOKENS)
    reading = ModelInput(model, [side], lambda at: model.head(model(tokens)[0][:, -1]), [TokenSpan("", 0, 0)], None, str)
    every, device = sites(model), torch.device("cpu")

    @torch.no_grad()
    def plain() -> object:
        return model.head(model(tokens)[0][:, -1])

    alone, one, all_of_them = alternating(
        repeats,
        plain,
        lambda: read_attention(reading, every[3:4], 5, device),
        lambda: read_attention(reading, every, None, device),
    )
    print(f"a plain pass          {alone:8.2f} ms")
    print(f"with one head         {one:8.2f} ms   {one / alone:.2f} times")
    print(f"with all {8 * len(every)} heads     {all_of_them:8.2f} ms   {all_of_them / alone:.2f} times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=100, help="of training steps")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    first, second, explained = made(), made(), made()
    looking(explained, torch.randint(WORDS, (1, TOKENS)), chosen.repeats)
    rows = torch.randint(WORDS, (1, TOKENS // 2 + 1))
    taken = in_turns(chosen.rounds, [training(model, rows) for model in (first, second, explained)])
    print(f"hooks left in the model that was explained: {hooks(explained)}")
    for at, name in enumerate(("never explained", "another one", "after an explain")):
        low, middle, high = np.quantile(taken[:, at] / taken[:, 0], (0.25, 0.5, 0.75))
        print(f"step, {name:<18}{np.median(taken[:, at]):8.1f} ms   {middle:.3f} times ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
