"""Tiny Shakespeare, character by character, at nanoGPT's sizes and budgets.

CPU size: 4 layers, 4 heads, width 128, windows of 64, 2,000 batches of 12 (1.536 million tokens). Whole validation split (the
last tenth) at stride 64; nanoGPT reaches 1.8982 so measured. Bars: transformer 1.90, gpt 1.60.
GPU size (--only gpu, needs a GPU): 6 layers, 6 heads, width 384, windows of 256. Bar: nanoGPT's best, 1.4697.
"""

from __future__ import annotations

from typing import Any

from _measured import HEAD, arguments, row, trained

SMALL: dict[str, Any] = {"layers": 4, "heads": 4, "width": 128}
BUDGET: dict[str, Any] = {"steps": 2000, "batch_tokens": 768, "validations": 4}
RUNS: dict[str, tuple[dict[str, Any], int, float]] = {
    "transformer": ({"model": {"kind": "transformer", **SMALL}, "train": {**BUDGET, "lr": 2e-3, "warmup": 0.05}}, 64, 1.90),
    "gpt": ({"model": {"kind": "gpt", **SMALL}, "train": {**BUDGET, "weight_decay": 0.0}}, 64, 1.60),
    "gpu": (
        {
            "model": {"kind": "gpt", "layers": 6, "heads": 6, "width": 384, "dropout": 0.35},
            "train": {"steps": 1500, "batch_tokens": 16384, "weight_decay": 0.3, "validations": 15, "device": "cuda"},
        },
        256,
        1.4697,
    ),
}


def main() -> None:
    options = arguments(__doc__ or "", "tinyshakespeare/input.txt")
    folder = options.out / "shakespeare"
    folder.mkdir(parents=True, exist_ok=True)
    lines = [HEAD]
    for name in options.only or ("transformer", "gpt"):
        recipe, window, bar = RUNS[name]
        data = {"train": str(options.data.resolve()), "valid": 0.1, "window": window}
        run, seconds = trained({"task": "lm", "data": data, **recipe}, folder / name, folder)
        scores = {score.name: score for score in run.evaluate(context=f"stride:{window}").scores}
        lines.append(row(name, run, scores["nats_per_token"].value, bar, seconds))
        lines.append(f"  {scores['nats_per_token'].signature}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
