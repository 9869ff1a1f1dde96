"""Measure the speed of several processes on one machine: N processes of one thread against one process of N threads.

The model is a GPT of 3 million parameters. Runs of both kinds alternate, and the results are the ratios of the medians. Tokens
per second need an idle machine. Tokens per CPU second, without the time of start-up, are comparable on a busy one; they do not
show how long processes wait for each other. Target: 0.8.

    python benchmarks/parallel.py --processes 2
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import tomli_w
from _common import verdict

TARGET = 0.8
DATA = Path(__file__).parents[1] / "examples" / "data" / "tales.txt"
ALONE = "one process"
STRATEGIES = (ALONE, "ddp", "fsdp")


class Speed(NamedTuple):
    """The speed of one run."""

    per_second: float  # tokens
    per_cpu_second: float  # tokens


def run_file(batch_tokens: int, steps: int, strategy: str) -> dict[str, Any]:
    model = {"arch": "gpt", "num_layers": 4, "hidden_size": 256, "num_heads": 4, "dropout": 0.0}
    train = {"optimizer": "adamw", "batch_tokens": batch_tokens, "max_steps": steps, "num_validations": 1, "device": "cpu"}
    return {
        "task": "lm",
        "recommend": False,
        "data": {"train": str(DATA), "context_length": 128},
        "tokenizer": {"type": "char"},
        "model": model,
        "train": {**train, "parallel": "auto" if strategy == ALONE else strategy},
    }


def train(values: dict[str, Any], processes: int, threads: int) -> tuple[dict[str, Any], float]:
    """Train a run. Returns the last line of timings.jsonl, and the CPU seconds of all its processes."""
    with tempfile.TemporaryDirectory() as directory:
        path, out = Path(directory) / "run.toml", Path(directory) / "run"
        path.write_text(tomli_w.dumps(values))
        words = [sys.executable, "-m", "weft", "train", str(path), "-q", "-o", str(out), "--threads", str(threads)]
        words += ["--processes", str(processes)] if processes > 1 else []
        environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, check=True, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        timing: dict[str, Any] = json.loads((out / "timings.jsonl").read_text().splitlines()[-1])
        return timing, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(strategy: str, processes: int, batch_tokens: int, steps: int) -> Speed:
    """The speed of a run; the CPU seconds of a run of one step are those of start-up."""
    count, threads = (1, processes) if strategy == ALONE else (processes, 1)
    _, start_up = train(run_file(batch_tokens, 1, strategy), count, threads)
    timing, seconds = train(run_file(batch_tokens, steps, strategy), count, threads)
    speed = Speed(timing["tokens_per_second"], batch_tokens * (steps - 1) / max(1e-9, seconds - start_up))
    group = timing.get("group")
    details = "" if group is None else f", {group['exchange_fraction']:.0%} of the time in exchanges"
    print(f"{strategy}: {speed.per_second:,.0f} tok/s, {speed.per_cpu_second:,.0f} tok per CPU second{details}", flush=True)
    return speed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    rounds = [
        {name: measure(name, options.processes, options.batch_tokens, options.steps) for name in STRATEGIES}
        for _ in range(options.repeats)
    ]
    medians = {name: [median(part[name][index] for part in rounds) for index in range(2)] for name in STRATEGIES}
    for name in STRATEGIES[1:]:
        wall, cpu = (ours / base for ours, base in zip(medians[name], medians[ALONE], strict=True))
        result = f" ({verdict(wall >= TARGET)})" if name == "ddp" else ""
        print(f"{name}: {wall:.2f} of the tokens per second of one process{result}, {cpu:.2f} per CPU second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
