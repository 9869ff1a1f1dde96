"""Character-level language models of Tiny Shakespeare, with the model sizes and budgets of nanoGPT.

CPU size: 4 layers, 4 heads, hidden size 128, context length 64, 2,000 batches of 12 rows (1.536 million tokens). The loss is
that of the whole validation split (the last tenth) with stride 64, where nanoGPT reaches 1.8982. Targets: transformer 1.90,
gpt 1.58. Recurrent networks (--only lstm, gru, mingru or minlstm): 2 layers of hidden size 128, 1,000 batches. GPU size
(--only gpu, needs a GPU): 6 layers, 6 heads, hidden size 384, context length 256. Target: nanoGPT's best loss, 1.4697.
"""

from __future__ import annotations

from typing import Any

from _common import TABLE_HEAD, parse_args, table_row, train_here

SMALL: dict[str, Any] = {"num_layers": 4, "num_heads": 4, "hidden_size": 128}
BUDGET: dict[str, Any] = {"max_steps": 2000, "batch_tokens": 768, "num_validations": 4}
# model and training options, context length, target
RUNS: dict[str, tuple[dict[str, Any], int, float]] = {
    "transformer": (
        {"model": {"arch": "transformer", **SMALL}, "train": {**BUDGET, "lr": 2e-3, "warmup_ratio": 0.05}},
        64,
        1.90,
    ),
    "gpt": ({"model": {"arch": "gpt", **SMALL}, "train": BUDGET}, 64, 1.58),
    **{
        arch: (
            {
                "model": {"arch": arch, "num_layers": 2, "hidden_size": 128, "dropout": 0.0},
                "train": {**BUDGET, "max_steps": 1000},
            },
            64,
            1.90,
        )
        for arch in ("lstm", "gru", "mingru", "minlstm")
    },
    "gpu": (
        {
            "model": {"arch": "gpt", "num_layers": 6, "num_heads": 6, "hidden_size": 384},
            "train": {"max_steps": 1500, "batch_tokens": 16384, "device": "cuda"},
        },
        256,
        1.4697,
    ),
}


def main() -> None:
    args = parse_args(__doc__ or "", "tinyshakespeare/input.txt")
    directory = args.output_dir / "shakespeare"
    directory.mkdir(parents=True, exist_ok=True)
    table = [TABLE_HEAD]
    for name in args.only or ("transformer", "gpt"):
        recipe, context_length, target = RUNS[name]
        data = {"train": str(args.data.resolve()), "valid": 0.1, "context_length": context_length}
        run, seconds = train_here({"task": "lm", "data": data, **recipe}, directory / name, directory)
        score = run.evaluate(context=f"stride:{context_length}")["loss"]
        table += [table_row(name, run, score.value, target, seconds), f"  {score.signature}"]
    print("\n".join(table))


if __name__ == "__main__":
    main()
