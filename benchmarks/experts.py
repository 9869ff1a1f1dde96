"""A mixture of experts against dense models of characters of English Wikipedia.

    python benchmarks/experts.py                  # on a GPU
    python benchmarks/experts.py --tiny           # a check of this file on a CPU: two steps of small models

Models of one size, trained for the same number of steps:

    dense        feed-forward layers of 4 x hidden_size
    experts      8 experts of 2 x hidden_size, of which a token uses 2: as many active parameters as dense
    dense-total  feed-forward layers of 16 x hidden_size: as many parameters in total as experts
    dense-time   dense for as many more steps as experts take longer: the same training time

Targets: the validation loss of experts is lower than that of dense and of dense-time for each seed, and a step takes at most
1.6 times as long as that of dense. The time of a step is the median, without those in which torch compiles. The file first
checks that grouped matrix products on this device equal the plain computation.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch
from _common import SHARED_DATA, require_data, verdict

from weft import files
from weft.cli.display import Display
from weft.cli.progress import TrainProgress
from weft.cli.signals import Stop
from weft.cli.threads import set_threads
from weft.log import read_log
from weft.nn.experts import Experts, Router, every_expert, grouped_experts, num_active_parameters
from weft.runs.job import train
from weft.runs.load import load
from weft.text.reading import read_file_text
from weft.training.loop import Loop

MAX_SLOWDOWN = 1.6
SIZE: dict[str, Any] = {"num_layers": 6, "hidden_size": 512, "num_heads": 8}
TINY: dict[str, Any] = {"num_layers": 2, "hidden_size": 32, "num_heads": 2}
MODELS = ("dense", "experts", "dense-total", "dense-time")


class StepTimes(TrainProgress):
    """The progress display, which also records the seconds of each step."""

    def __init__(self, display: Display, stop: Stop) -> None:
        super().__init__(display, stop)
        self.seconds: list[float] = []

    def on_step(self, loop: Loop, loss: float, seconds: float) -> None:
        self.seconds.append(seconds)
        super().on_step(loop, loss, seconds)


def model_options(name: str, size: dict[str, Any]) -> dict[str, Any]:
    factor = {"experts": 2, "dense-total": 16}.get(name, 4)
    options = {"arch": "gpt", **size, "ffn_dim": factor * size["hidden_size"], "bias": False}
    return {**options, "num_experts": 8, "experts_per_token": 2} if name == "experts" else options


def run_values(name: str, seed: int, args: argparse.Namespace, *, max_steps: int) -> dict[str, Any]:
    data = {"train": str(args.data.resolve()), "valid": 0.02, "read_as": "windows", "context_length": args.context_length}
    training = {"max_steps": max_steps, "batch_tokens": args.batch_tokens, "num_validations": 10}
    return {
        "task": "lm",
        "recommend": False,
        "seed": seed,
        "data": data,
        "tokenizer": {"type": "char", "vocab_size": 256},
        "model": model_options(name, TINY if args.tiny else SIZE),
        "train": training,
    }


def train_model(name: str, seed: int, args: argparse.Namespace, *, max_steps: int) -> dict[str, Any]:
    """Train one model, or read the result of a finished run."""
    run_dir = args.output_dir / f"{name}-{seed}"
    result_file = run_dir.with_suffix(".json")
    if result_file.exists():
        result: dict[str, Any] = files.read_json(result_file)
        return result
    values = run_values(name, seed, args, max_steps=max_steps)
    with Stop() as stop, Display() as display:
        callback = StepTimes(display, stop)
        train(values, run_dir, base=args.output_dir, callback=callback, overwrite=run_dir.exists())
    run = load(run_dir, device="cpu")
    records = read_log(run_dir / "metrics.jsonl")
    result = {
        "loss": min(record["valid_loss"] for record in records if "valid_loss" in record),
        "steps": max_steps,
        "step_seconds": statistics.median(callback.seconds),
        "seconds": sum(callback.seconds),
        "parameters": run.num_parameters,
        "active_parameters": num_active_parameters(run.model),
    }
    files.write_json(result_file, result)
    return result


def check_grouped(device: torch.device) -> None:
    """Compare grouped matrix products with the plain computation on this device, with gradients and padding."""
    torch.manual_seed(0)
    for dtype, limit in ((torch.float32, 1e-4), (torch.bfloat16, 0.05)):
        router, experts = (
            Router(64, num_experts=8, experts_per_token=2),
            Experts(64, num_experts=8, ffn_dim=128, activation="gelu"),
        )
        router, experts = router.to(device), experts.to(device)
        x, mask = torch.randn(500, 64, device=device), torch.rand(500, device=device) < 0.8
        tokens = x.to(dtype).requires_grad_()
        routing = router(tokens)
        results = []
        for compute in (every_expert, grouped_experts):
            y = compute(experts, tokens, routing, mask)
            factors = torch.linspace(-1, 1, y.numel(), device=device).view(y.shape)
            weights = [tokens, *experts.parameters(), *router.parameters()]
            results.append([y.detach(), *torch.autograd.grad((y.float() * factors).sum(), weights, retain_graph=True)])
        errors = [
            float((actual - expected).float().norm() / expected.float().norm())
            for expected, actual in zip(*results, strict=True)
        ]
        result = verdict(max(errors) < limit)
        print(f"grouped products on {device}, {dtype}: largest relative error {max(errors):.2e}, {result}")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED_DATA / "words-enwiki" / "enwiki-start.txt.xz", help="text")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks/experts"), help="finished runs are kept")
    parser.add_argument("--only", action="append", choices=MODELS, help="train only this model; repeatable")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--max-steps", type=int, default=2000)
    parser.add_argument("--batch-tokens", type=int, default=65536)
    parser.add_argument("--context-length", type=int, default=256)
    parser.add_argument("--tiny", action="store_true", help="two steps of small models, to check this file")
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    set_threads(args.threads)
    require_data(parser, args.data, "--data FILE")
    args.output_dir.mkdir(parents=True, exist_ok=True)
    if args.tiny:
        args.seeds, args.max_steps, args.batch_tokens, args.context_length = args.seeds[:1], 2, 512, 32
        text = args.output_dir / "tiny.txt"
        files.write_text(text, read_file_text(args.data)[:100_000])
        args.data = text
    return args


def report(results: dict[tuple[str, int], dict[str, Any]], seeds: list[int]) -> list[str]:
    """The table, and the targets."""
    lines = [f"{'model':<12} {'seed':>4} {'parameters':>12} {'active':>12} {'steps':>6} {'ms/step':>8} {'valid loss':>10}"]
    for (name, seed), row in results.items():
        sizes = f"{row['parameters']:>12,} {row['active_parameters']:>12,} {row['steps']:>6}"
        lines.append(f"{name:<12} {seed:>4} {sizes} {1000 * row['step_seconds']:>8.1f} {row['loss']:>10.4f}")
    for other in ("dense", "dense-time", "dense-total"):
        pairs = [(results["experts", seed]["loss"], results[other, seed]["loss"]) for seed in seeds if (other, seed) in results]
        if pairs and ("experts", seeds[0]) in results:
            difference = statistics.mean(ours - theirs for ours, theirs in pairs)
            met = f" {verdict(all(ours < theirs for ours, theirs in pairs))}" if other != "dense-total" else ""
            lines.append(f"loss of experts minus that of {other}: {difference:+.4f} (mean of {len(pairs)} seeds){met}")
    times = {
        name: statistics.median(row["step_seconds"] for (model, _), row in results.items() if model == name)
        for name in {name for name, _ in results}
    }
    if {"dense", "experts"} <= times.keys():
        slowdown = times["experts"] / times["dense"]
        result = verdict(slowdown <= MAX_SLOWDOWN)
        lines.append(f"step of experts: {slowdown:.2f} times dense {result} (at most {MAX_SLOWDOWN})")
    return lines


def main() -> None:
    args = parse_args()
    check_grouped(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    results: dict[tuple[str, int], dict[str, Any]] = {}
    for seed in args.seeds:
        for name in args.only or MODELS:
            max_steps = args.max_steps
            if name == "dense-time":
                if not {("dense", seed), ("experts", seed)} <= results.keys():
                    raise SystemExit("--only dense-time needs --only dense and --only experts as well")
                max_steps = round(max_steps * results["experts", seed]["step_seconds"] / results["dense", seed]["step_seconds"])
            results[name, seed] = train_model(name, seed, args, max_steps=max(args.max_steps, max_steps))
    print("\n".join(report(results, args.seeds)))


if __name__ == "__main__":
    main()
