"""Half the heads of a translating Transformer taken away: what that costs, and how much faster what is left is.

    python benchmarks/prune.py [--rounds 7]

Dates in fourteen languages (examples/make_dates.py, which needs the package Babel), a Transformer of 3 + 3 layers with 8 heads
of 16 each, on one thread. Trained in about a minute; then `weft prune --remove 50%` on the validation data. Decoding: 512 lines
of the test data, beam 4. Training: batches of 2048 tokens, forwards and backwards. The two runs take turns in every round, in
this process; seconds are those of the processor, and the median counts. The bar: both faster than before.
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
from _measured import trained
from dates import write_data

import weft
from weft.cli.threads import set_threads
from weft.explain.eval_loss import eval_batches
from weft.explain.heads import all_heads, attention_layers
from weft.explain.inputs import network
from weft.explain.pruning import prune, view, write_pruned_run
from weft.runs.resolve import resolve
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
LINES, BEAM = 512, 4


class Silent:
    def note(self, text: str) -> None: ...

    def working(self, name: str, done: int, total: int) -> None: ...


def pruned(directory: Path, out: Path) -> None:
    """The run without half its heads, and the loss on the way."""
    run: Any = weft.load(directory, device="cpu")
    layers, measured = attention_layers(run), {"measure": "masking", "data": "validation data"}
    model = network(run)
    if model is None:
        raise SystemExit("no network")
    with tempfile.TemporaryDirectory() as place:
        parts = eval_batches(run, None, Path(place), max_tokens=10_000)
        began = time.perf_counter()
        found = prune(model, layers, parts, num_removed=len(all_heads(layers)) // 2)
    print("\n".join(view(run, found, measured).lines))
    print(f"measured in {time.perf_counter() - began:.0f} s\n")
    if not out.exists():
        write_pruned_run(run, out, found, measured)


def decoding(run: Any, lines: list[str]) -> Callable[[], object]:
    return lambda: run.predict(lines, beam=BEAM)


def training(run: Any, place: Path) -> Callable[[], object]:
    """Some batches, forwards and backwards."""
    directory = RunDir(place)
    settings = resolve({**RUN, "tokenizer": {"file": str(run.directory.tokenizer.absolute())}}, base=place)
    _, corpora = prepare(settings.spec, settings, directory, Silent())  # type: ignore[arg-type]
    order = Pairs(corpora["train.source"], corpora["train.target"], batch_tokens=2048, seed=0)
    task = Seq2SeqObjective(valid=None, tokenizer=run.vocabulary.target, device=torch.device("cpu"))
    model = run.model

    def steps() -> None:
        model.train()
        for index in range(8):
            loss = task.loss(model, order.batch(0, index), None)
            torch.autograd.backward(loss.total / loss.count)
            model.zero_grad()
        model.eval()

    return steps


def faster(what: str, work: dict[str, Callable[[], object]], rounds: int) -> bool:
    """Whether the second is, by the median over rounds of turns."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds + 1):
        for name, do in work.items():
            began = time.process_time()
            do()
            seconds[name].append(time.process_time() - began)
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}  # the first warms up
    for name, times in seconds.items():
        print(f"{what:<10} {name:<8} {medians[name]:.2f} s of the processor  ({', '.join(f'{one:.2f}' for one in times[1:])})")
    ratio = medians["whole"] / medians["pruned"]
    print(f"{what:<10} {ratio:.2f} times as fast: {'met' if ratio > 1 else 'MISSED'}")
    return ratio > 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks/prune"), help="finished runs there are kept")
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    set_threads(1)
    place: Path = chosen.output_dir
    place.mkdir(parents=True, exist_ok=True)
    write_data(place)
    _, seconds = trained(RUN, place / "whole", place)
    print(f"trained in {seconds:.0f} s")
    pruned(place / "whole", place / "pruned")
    runs: dict[str, Any] = {name: weft.load(place / name, device="cpu") for name in ("whole", "pruned")}
    for name, run in runs.items():
        found = {score.name: score.value for score in run.evaluate().scores}
        count, size = sum(weight.numel() for weight in run.model.parameters()), run.directory.weights.stat().st_size
        print(f"{name:<8} {count:>9,} parameters  {size:>9,} bytes  exact match {found['exact_match']:.2f} %", end="")
        print(f"  perplexity {found['perplexity']:.4f}")
    lines = [line.split("\t")[0] for line in (place / "test.tsv").read_text().splitlines()[1 : LINES + 1]]
    faster("decoding", {name: decoding(run, lines) for name, run in runs.items()}, chosen.rounds)
    faster("training", {name: training(run, place) for name, run in runs.items()}, chosen.rounds)


if __name__ == "__main__":
    main()
