"""Measure training with several processes on one machine: tokens per second, and bytes and time of exchanges.

    speed       N processes of one thread against one process of N threads, a GPT of 3 million parameters, and the same
                with FSDP2; runs of both kinds alternate, and the result is the ratio of the medians. Target: 0.8
    model       a model of the time of a step, compute + bytes / bandwidth + latency, fitted on two model sizes and checked on
                a third

Other work on the machine changes the speed, so all measurements of a ratio happen in one call.

    python benchmarks/parallel.py speed --processes 2
    python benchmarks/parallel.py model --processes 2
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from _common import verdict

TARGET = 0.8
MAX_ERROR = 0.2  # of the predicted time of a step
DATA = Path(__file__).parents[1] / "examples" / "data" / "tales.txt"
SIZES = {"small": (2, 128), "medium": (4, 256), "large": (4, 384)}  # layers, hidden size


def run_file(size: str, batch_tokens: int, steps: int, strategy: str) -> dict[str, Any]:
    layers, hidden_size = SIZES[size]
    return {
        "task": "lm",
        "recommend": False,
        "data": {"train": str(DATA), "valid": 0.02, "context_length": 128},
        "tokenizer": {"type": "char"},
        "model": {"arch": "gpt", "num_layers": layers, "hidden_size": hidden_size, "num_heads": 4, "dropout": 0.0},
        "train": {
            "optimizer": "adamw",
            "batch_tokens": batch_tokens,
            "max_steps": steps,
            "num_validations": 1,
            "device": "cpu",
            "parallel": strategy,
        },
    }


def train(values: dict[str, Any], processes: int, threads: int) -> dict[str, Any]:
    """Train a run and return the last line of timings.jsonl, with the time of a step."""
    import tomli_w

    with tempfile.TemporaryDirectory() as directory:
        path, out = Path(directory) / "run.toml", Path(directory) / "run"
        path.write_text(tomli_w.dumps(values))
        words = [sys.executable, "-m", "weft", "train", str(path), "-q", "-o", str(out), "--threads", str(threads)]
        words += ["--processes", str(processes)] if processes > 1 else []
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        subprocess.run(words, check=True, env=environment)
        timing: dict[str, Any] = json.loads((out / "timings.jsonl").read_text().splitlines()[-1])
        return timing


def speed(processes: int, batch_tokens: int, steps: int, repeats: int) -> bool:
    """The ratio of tokens per second: several processes against one process with as many threads."""
    rates: dict[str, list[float]] = {"one process": [], "ddp": [], "fsdp": []}
    for _ in range(repeats):
        for name, values in rates.items():
            strategy = "auto" if name == "one process" else name
            count, threads = (1, processes) if name == "one process" else (processes, 1)
            timing = train(run_file("medium", batch_tokens, steps, strategy), count, threads)
            values.append(timing["tokens_per_second"])
            group = timing.get("group", {})
            details = f", {group['exchange_fraction']:.0%} of the time in exchanges" if group else ""
            print(f"{name}: {values[-1]:,.0f} tok/s{details}", flush=True)
    base = median(rates["one process"])
    for name in ("ddp", "fsdp"):
        print(f"{name}: ratio {median(rates[name]) / base:.2f} (batches of {batch_tokens:,} tokens)")
    is_met = median(rates["ddp"]) / base >= TARGET
    print(f"target {TARGET} for ddp: {verdict(is_met)}")
    return is_met


def model(processes: int, batch_tokens: int, steps: int) -> bool:
    """The time of a step predicted from the bytes that it exchanges, for a model size that was not fitted."""
    measured = {}
    for size in SIZES:
        group = train(run_file(size, batch_tokens, steps, "ddp"), processes, 1)["group"]
        compute = max(group["compute_seconds"])
        measured[size] = (group["exchanged_bytes"], group["seconds_per_step"] - compute, compute, group["seconds_per_step"])
        print(f"{size}: {group['exchanged_bytes']:,} bytes, {measured[size][1] * 1e3:.1f} ms in exchanges", flush=True)
    (low_bytes, low_time, *_), (high_bytes, high_time, *_) = measured["small"], measured["large"]
    per_byte = max(1e-12, (high_time - low_time) / (high_bytes - low_bytes))
    latency = max(0.0, low_time - per_byte * low_bytes)
    count, _, compute, seconds = measured["medium"]
    predicted = compute + latency + per_byte * count
    print(f"bandwidth {1e-6 / per_byte:,.0f} MB/s, latency {latency * 1e3:.1f} ms per step")
    print(f"medium: predicted {predicted * 1e3:.1f} ms per step, measured {seconds * 1e3:.1f} ms")
    is_met = abs(predicted - seconds) <= MAX_ERROR * seconds
    print(f"target {MAX_ERROR:.0%}: {verdict(is_met)}")
    return is_met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("speed", "model"))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.what == "speed":
        return 0 if speed(options.processes, options.batch_tokens, options.steps, options.repeats) else 1
    return 0 if model(options.processes, options.batch_tokens, options.steps) else 1


if __name__ == "__main__":
    sys.exit(main())
