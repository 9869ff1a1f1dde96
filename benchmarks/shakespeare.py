"""Tiny Shakespeare, character by character, at nanoGPT's sizes and budgets.

CPU size: 4 layers, 4 heads, width 128, windows of 64, 2,000 batches of 12 (1.536 million tokens). Whole validation split (the
last tenth) at stride 64; nanoGPT reaches 1.8982 so measured. Bars: transformer 1.90, gpt 1.60.
GPU size (--only gpu, needs a GPU): 6 layers, 6 heads, width 384, windows of 256. Bar: nanoGPT's best, 1.4697.
"""

from __future__ import annotations

from typing import Any

from _measured import HEAD, arguments, row, trained

SMALL: dict[str, Any] = {"num_layers": 4, "num_heads": 4, "hidden_size": 128}
BUDGET: dict[str, Any] = {"max_steps": 2000, "batch_tokens": 768, "num_validations": 4}
RUNS: dict[str, tuple[dict[str, Any], int, float]] = {
    "transformer": (
        {"model": {"arch": "transformer", **SMALL}, "train": {**BUDGET, "lr": 2e-3, "warmup_ratio": 0.05}},
        64,
        1.90,
    ),
    "gpt": ({"model": {"arch": "gpt", **SMALL}, "train": {**BUDGET, "weight_decay": 0.0}}, 64, 1.60),
    "gpu": (
        {
            "model": {"arch": "gpt", "num_layers": 6, "num_heads": 6, "hidden_size": 384, "dropout": 0.35},
            "train": {"max_steps": 1500, "batch_tokens": 16384, "weight_decay": 0.3, "num_validations": 15, "device": "cuda"},
        },
        256,
        1.4697,
    ),
}


def main() -> None:
    options = arguments(__doc__ or "", "tinyshakespeare/input.txt")
    directory = options.output_dir / "shakespeare"
    directory.mkdir(parents=True, exist_ok=True)
    lines = [HEAD]
    for name in options.only or ("transformer", "gpt"):
        recipe, window, bar = RUNS[name]
        data = {"train": str(options.data.resolve()), "valid": 0.1, "context_length": window}
        run, seconds = trained({"task": "lm", "data": data, **recipe}, directory / name, directory)
        scores = {score.name: score for score in run.evaluate(context=f"stride:{window}").scores}
        lines.append(row(name, run, scores["loss"].value, bar, seconds))
        lines.append(f"  {scores['loss'].signature}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
