"""Pruning half of the attention heads of a seq2seq Transformer: loss, size, and speed of decoding and training.

    python benchmarks/prune.py [--rounds 7]

Data: dates in fourteen languages (examples/make_dates.py, which requires Babel). Model: 3 + 3 layers with 8 heads of 16
dimensions each. Trained in about a minute on one thread, then pruned like `weft prune --remove 50%`. Decoding: 512 lines of
the test data, beam size 4. Training: forward and backward passes on 8 batches of 2,048 tokens. Both runs take turns in this
process; times are median CPU seconds. Target: the pruned run is faster in both.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _common import train_here, verdict
from dates import write_data

import weft
from weft.cli.threads import set_threads
from weft.explain.eval_loss import eval_batches
from weft.explain.heads import all_heads, attention_layers
from weft.explain.pruning import prune, view, write_pruned_run
from weft.runs.callback import CallbackAdapter
from weft.runs.resolve import resolve
from weft.runs.run import AnyRun
from weft.runs.run_dir import RunDir
from weft.tasks.prepare import prepare
from weft.tasks.seq2seq.batching import Pairs
from weft.tasks.seq2seq.objective import Seq2SeqObjective

RUN: dict[str, Any] = {
    "task": "seq2seq",
    "data": {"train": "train.tsv", "valid": "valid.tsv", "test": "test.tsv"},
    "tokenizer": {"type": "char"},
    "model": {"arch": "transformer", "hidden_size": 128, "num_layers": 3, "num_heads": 8, "ffn_dim": 256},
    "train": {"max_steps": 600, "batch_tokens": 2048, "lr": 2e-3, "num_validations": 2, "device": "cpu"},
}
NUM_LINES, BEAM_SIZE, NUM_BATCHES = 512, 4, 8


def prune_half(run: AnyRun, output_dir: Path) -> None:
    """Prune half of the heads, print the importance of the heads and the loss, and write the pruned run."""
    if run.network is None:
        raise SystemExit(f"{run.path}: not a neural network")
    layers, setup = attention_layers(run), {"measure": "masking", "data": "validation data"}
    with tempfile.TemporaryDirectory() as work_dir:
        batches = eval_batches(run, None, Path(work_dir), max_tokens=10_000)
        start = time.perf_counter()
        pruning = prune(run.network, layers, batches, num_removed=len(all_heads(layers)) // 2)
    print("\n".join(view(run, pruning, setup).lines))
    print(f"measured in {time.perf_counter() - start:.0f} s\n")
    if not output_dir.exists():
        write_pruned_run(run, output_dir, pruning, setup)


def decoding(run: AnyRun, lines: list[str]) -> Callable[[], object]:
    return lambda: run.predict(lines, beam_size=BEAM_SIZE)


def training(run: AnyRun, directory: Path) -> Callable[[], object]:
    """Forward and backward passes on a few batches."""
    config = resolve({**RUN, "tokenizer": {"file": str(run.directory.tokenizer.absolute())}}, base=directory)
    corpora = prepare(config.spec, config, RunDir(directory), CallbackAdapter(weft.TrainCallback())).columns
    sampler = Pairs(corpora["train.source"], corpora["train.target"], batch_tokens=2048, seed=0)
    objective = Seq2SeqObjective(valid=None, tokenizer=run.vocabulary.target, device=torch.device("cpu"))
    model = run.model

    def train_batches() -> None:
        model.train()
        for i in range(NUM_BATCHES):
            loss = objective.loss(model, sampler.batch(0, i), None)
            torch.autograd.backward(loss.total / loss.count)
            model.zero_grad()
        model.eval()

    return train_batches


def compare_speed(name: str, calls: dict[str, Callable[[], object]], rounds: int) -> None:
    """Print the median CPU seconds of the two runs, "whole" and "pruned", which take turns."""
    seconds: dict[str, list[float]] = {run: [] for run in calls}
    for _ in range(rounds + 1):
        for run, call in calls.items():
            start = time.process_time()
            call()
            seconds[run].append(time.process_time() - start)
    medians = {run: statistics.median(times[1:]) for run, times in seconds.items()}  # the first round warms up
    for run, times in seconds.items():
        print(f"{name:<10} {run:<8} {medians[run]:.2f} CPU s  ({', '.join(f'{value:.2f}' for value in times[1:])})")
    ratio = medians["whole"] / medians["pruned"]
    print(f"{name:<10} {ratio:.2f} times as fast: {verdict(ratio > 1)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks/prune"), help="finished runs are kept")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    set_threads(1)
    directory: Path = args.output_dir
    directory.mkdir(parents=True, exist_ok=True)
    write_data(directory)
    whole, seconds = train_here(RUN, directory / "whole", directory)
    print(f"trained in {seconds:.0f} s")
    prune_half(whole, directory / "pruned")
    runs: dict[str, AnyRun] = {name: weft.load(directory / name, device="cpu") for name in ("whole", "pruned")}
    for name, run in runs.items():
        scores, model_bytes = run.evaluate(), run.directory.weights.stat().st_size
        print(f"{name:<8} {run.num_parameters:>9,} parameters  {model_bytes:>9,} bytes", end="")
        print(f"  exact match {scores['exact_match'].value:.2f}%  perplexity {scores['perplexity'].value:.4f}")
    lines = [line.split("\t")[0] for line in (directory / "test.tsv").read_text().splitlines()[1 : NUM_LINES + 1]]
    compare_speed("decoding", {name: decoding(run, lines) for name, run in runs.items()}, args.rounds)
    compare_speed("training", {name: training(run, directory) for name, run in runs.items()}, args.rounds)


if __name__ == "__main__":
    main()
