"""What looking costs: one pass that keeps one head's pattern, against one that keeps nothing.

    python benchmarks/explain_overhead.py

A Transformer language model of 6 layers of width 256, freshly made, reads a row of 256 tokens, as often without as with, one
after the other, on one thread. Printed are the medians, and their ratio, which must stay below 2; also that of all heads of all
layers, and that of a pass after an explanation against one before it, which must be 1: nothing stays behind in the model.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch

from weft.explain.attention import look, sites
from weft.explain.inputs import Reading, Side
from weft.explain.view import Piece
from weft.models.language import LanguageModel, language_model
from weft.models.tables import TEXTBOOK, LanguageTable

TOKENS, WORDS = 256, 8000


def made() -> LanguageModel:
    torch.manual_seed(0)
    table = LanguageTable(**{**TEXTBOOK, "layers": 6, "width": 256, "heads": 8})
    return language_model(table.filled(), words=WORDS, window=TOKENS, vocabulary="").eval()


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=100)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    model, tokens = made(), torch.randint(WORDS, (1, TOKENS))
    side = Side("text", "embedding", "embedding", tokens[0].tolist(), [Piece("", 0, 0)] * TOKENS)
    reading = Reading(model, [side], lambda at: model.head(model(tokens)[0][:, -1]), [Piece("", 0, 0)], None, str)
    every, device = sites(model), torch.device("cpu")

    @torch.no_grad()
    def plain() -> object:
        return model.head(model(tokens)[0][:, -1])

    alone, one, all_of_them = alternating(
        repeats, plain, lambda: look(reading, every[3:4], 5, device), lambda: look(reading, every, None, device)
    )
    before, after = alternating(repeats, plain, plain)
    print(f"a plain pass          {alone:8.2f} ms")
    print(f"with one head         {one:8.2f} ms   {one / alone:.2f} times")
    print(f"with all {8 * len(every)} heads     {all_of_them:8.2f} ms   {all_of_them / alone:.2f} times")
    print(f"two plain passes after it differ by a factor of {after / before:.3f}")


if __name__ == "__main__":
    main()
