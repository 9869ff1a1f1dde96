"""Measure the speed of several processes that translate: N processes of one thread against one process of N threads.

A small Transformer, hardly trained, translates the test sentences of Multi30k with a beam of 5, once with `weft predict` and a
limit on the length of outputs, and once with `weft evaluate`. Runs of both kinds alternate; the results are the ratios of the
medians. The time of start-up, that of one line, is subtracted. Seconds need an idle machine; CPU seconds are comparable on a
busy one, but do not show how long processes wait for each other.

    python benchmarks/parallel_predict.py --processes 2
"""

from __future__ import annotations

import argparse
import gzip
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import tomli_w
from _common import SHARED_DATA, require_data

MODEL = {"arch": "transformer", "num_layers": 2, "hidden_size": 128, "num_heads": 4}


class Cost(NamedTuple):
    """What a command takes."""

    seconds: float
    cpu_seconds: float


def weft(words: Sequence[str], directory: Path) -> tuple[Cost, bytes]:
    """Run a command. Returns its cost and its output."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "weft", *words, "-q"]
    output = subprocess.run(command, cwd=directory, env=environment, check=True, stdout=subprocess.PIPE).stdout
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime), output


def prepare(data: Path, directory: Path, lines: int, steps: int) -> None:
    """Train the model, and write the sentences to translate."""
    files = {
        split: [str((data / f"{stem}.{language}.gz").resolve()) for language in ("de", "en")]
        for split, stem in {"train": "train", "valid": "val"}.items()
    }
    values = {
        "task": "seq2seq",
        "recommend": False,
        "data": files,
        "tokenizer": {"type": "bpe", "vocab_size": 4000},
        "model": MODEL,
        "train": {"max_steps": steps, "batch_tokens": 2048, "num_validations": 1, "device": "cpu"},
    }
    (directory / "run.toml").write_text(tomli_w.dumps(values))
    weft(["train", "run.toml", "-o", "run"], directory)
    texts = {
        language: gzip.decompress((data / f"test_2016_flickr.{language}.gz").read_bytes()).decode().split("\n")[:lines]
        for language in ("de", "en")
    }
    for name, count in (("all", lines), ("one", 1)):
        for language, rows in texts.items():
            (directory / f"{name}.{language}").write_text("\n".join(rows[:count]) + "\n")


def command(kind: str, name: str, processes: int, threads: int) -> list[str]:
    """A command on the files `name`."""
    many = ["--processes", str(processes)] if processes > 1 else []
    if kind == "predict":
        words = ["predict", "run", "--input", f"{name}.de", "--max-new-tokens", "24"]
    else:
        words = ["evaluate", "run", "--data", f"{name}.de", "--data", f"{name}.en"]
    return [*words, "--beam-size", "5", "--device", "cpu", "--threads", str(threads), *many]


def measure(kind: str, directory: Path, processes: int, repeats: int) -> None:
    """Print the ratio of the speeds."""
    costs: dict[int, list[Cost]] = {1: [], processes: []}
    outputs: dict[int, bytes] = {}
    for _ in range(repeats):
        for count, found in costs.items():
            threads = processes // count
            start_up, _ = weft(command(kind, "one", count, threads), directory)
            cost, outputs[count] = weft(command(kind, "all", count, threads), directory)
            found.append(Cost(cost.seconds - start_up.seconds, cost.cpu_seconds - start_up.cpu_seconds))
    one, many = ([median(part) for part in zip(*found, strict=True)] for found in costs.values())
    lines = zip(*(output.splitlines() for output in outputs.values()), strict=True)
    other = sum(ours != theirs for ours, theirs in lines)
    print(f"{kind}: one process of {processes} threads {one[0]:.1f} s, {one[1]:.1f} CPU s; ", end="")
    print(f"{processes} processes of one thread {many[0]:.1f} s, {many[1]:.1f} CPU s; ", end="")
    print(
        f"speed {one[0] / many[0]:.2f}, per CPU second {one[1] / many[1]:.2f}; {other} lines of the output differ", flush=True
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED_DATA / "multi30k", help="directory of Multi30k")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--lines", type=int, default=1000, help="sentences to translate")
    parser.add_argument("--steps", type=int, default=100, help="training steps of the model")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kind", action="append", choices=("predict", "evaluate"))
    args = parser.parse_args()
    require_data(parser, args.data)
    with tempfile.TemporaryDirectory() as name:
        prepare(args.data, Path(name), args.lines, args.steps)
        for kind in args.kind or ("predict", "evaluate"):
            measure(kind, Path(name), args.processes, args.repeats)
    return 0


if __name__ == "__main__":
    sys.exit(main())
