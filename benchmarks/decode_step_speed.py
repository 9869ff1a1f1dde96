"""CPU time of the plain decoding step relative to the fast one, for small language models, prompts of 1 and 200 tokens, and 1
and 32 rows.

    python benchmarks/decode_step_speed.py [--repeat 4]

Each engine generates 30 tokens per row greedily; the two paths take turns. "Ragged": prompts of different lengths. One thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

from weft.decode import engine
from weft.decode.engine import Engine, Request
from weft.decode.incremental import stepper
from weft.models.config import LanguageModelConfig
from weft.models.lm import LanguageModel, language_model

MODELS: dict[str, dict[str, Any]] = {
    "attention": {"layer_type": "attention", "num_heads": 4, "num_layers": 4, "position_encoding": "rotary", "qk_norm": True},
    "lstm": {"layer_type": "lstm", "num_layers": 2},
}
SHAPES = [(1, 1, False), (1, 200, False), (32, 1, False), (32, 200, False), (32, 200, True)]
NEW_TOKENS = 30
PATHS: dict[str, Any] = {"fast": stepper, "plain": lambda model: model.step}


def seconds(model: LanguageModel, path: str, shape: tuple[int, int, bool]) -> float:
    """CPU time of an engine."""
    num_rows, length, is_ragged = shape
    setattr(engine, "stepper", PATHS[path])  # noqa: B010 (a name that the module imports)
    start = time.process_time()
    rows = Engine(model)
    rows.admit([Request([3] * (length - row % 7 if is_ragged else length), NEW_TOKENS) for row in range(num_rows)])
    while rows.running:
        rows.step()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name, options in MODELS.items():
        torch.manual_seed(1)
        config = LanguageModelConfig(hidden_size=128, **options).with_defaults()
        model = language_model(config, vocab_size=500, context_length=256, vocabulary="").eval()
        for shape in SHAPES:
            ratios = []
            for _ in range(args.repeat):
                fast, plain = (seconds(model, path, shape) for path in ("fast", "plain"))
                ratios.append(plain / fast)
            label = f"{name}, {shape[0]} rows, prompts of {shape[1]}{', ragged' if shape[2] else ''}"
            print(f"{label}: {statistics.median(ratios):.2f} times ({min(ratios):.2f} to {max(ratios):.2f})", flush=True)


if __name__ == "__main__":
    main()
