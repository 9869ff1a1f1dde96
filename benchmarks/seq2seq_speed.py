"""Training and decoding speed of encoder-decoders, compared with Eole, JoeyNMT and Hugging Face transformers, on one thread.

    python benchmarks/seq2seq_speed.py --eole-python PYTHON --joey-python PYTHON --hf-python PYTHON [--rounds 3]

Each toolkit runs in its own Python environment; toolkits without the option are skipped. Multi30k English to German, joint BPE
of 8,000 tokens, the same tokens for all. Training: batches of 64 sentences; target tokens (with </s>, without padding) per CPU
second between steps 5 and 25. Decoding: 256 sentences of test_2016 in batches of 64, beam size 5, exactly 20 new tokens. All
toolkits take turns, each in its own process.

Targets: 1.3 times the speed of Eole or 2.0 times that of JoeyNMT in training, 2.0 times that of `generate` in decoding. With
--device cuda, only weft trains, and times are wall-clock times.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from _common import SHARED_DATA, require_data, verdict
from _toolkits import BATCH_SIZE, BEAM_SIZE, BUCKET_SIZE, NEW_TOKENS, NUM_SENTENCES, STEPS, VOCAB_SIZE, WARMUP_STEPS

import weft
from weft import lock
from weft.cli.memory import keep_freed_memory
from weft.cli.threads import set_threads
from weft.data.batch import FULL, crop_batch
from weft.data.batching import pad_lines, preview
from weft.data.corpus import Corpus
from weft.runs.config import RunConfig
from weft.runs.job import Job
from weft.runs.resolve import resolve
from weft.runs.run_dir import make_directory
from weft.tasks.prepare import prepare
from weft.tasks.seq2seq.batching import PairBatch
from weft.tasks.seq2seq.network import Seq2SeqBuilder
from weft.tasks.seq2seq.objective import EvalPairs
from weft.text.tokenizers import Tokenizer
from weft.training.loop import Loop
from weft.training.neural import NeuralTrainer

COMMON: dict[str, Any] = {"hidden_size": 256, "dropout": 0.1, "share_embeddings": True, "tie_embeddings": True}
LSTM = {"arch": "lstm-input-feeding", "attention": "additive", **COMMON}
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {"arch": "transformer", "num_heads": 4, "num_layers": 3, "ffn_dim": 1024, **COMMON},
    "lstm": {**LSTM, "input_feeding": True},
    "lstm-after": {**LSTM, "input_feeding": False, "attention_placement": "after"},
    "lstm-before": {**LSTM, "input_feeding": False, "attention_placement": "before"},
}
# target of weft's speed, relative to each toolkit
TARGETS = {"transformer": {"eole": 1.3, "joey": 2.0}, "lstm": {"eole": 1.3, "joey": 2.0}, "decode": {"hf": 2.0}}
WORKLOADS = (*MODELS, "decode")


class FixedSizeBatches:
    """Batches of BATCH_SIZE pairs of similar length, sorted BUCKET_SIZE at a time, as in Eole."""

    rows = BATCH_SIZE

    def __init__(self, source: Corpus, target: Corpus, *, seed: int) -> None:
        self.source, self.target = source, target
        self.lengths = np.stack([np.diff(corpus.line_starts()) for corpus in (source, target)], axis=1)
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(self.lengths))[: len(self.lengths) // BATCH_SIZE * BATCH_SIZE]
        for start in range(0, len(order), BUCKET_SIZE):
            bucket = order[start : start + BUCKET_SIZE]
            sources, targets = self.lengths[bucket].T
            # sorted by the target and, alternately ascending and descending, by the source, like weft's own batches
            bucket[:] = bucket[np.lexsort((np.where(targets % 2, sources, -sources), targets))]
        self.members = rng.permutation(order.reshape(-1, BATCH_SIZE))

    def batches(self, epoch: int) -> int:
        return len(self.members)

    def batch(self, epoch: int, index: int) -> PairBatch:
        return self._make_batch(self.members[index], self.members[index])

    def _make_batch(self, sources: np.ndarray, targets: np.ndarray) -> PairBatch:
        rows, token_mask = pad_lines(self.source, sources)
        return PairBatch(rows[:, 1:].contiguous(), token_mask[:, 1:].contiguous(), *pad_lines(self.target, targets))

    def resets_state(self, index: int) -> bool:
        return True

    def largest_batch(self, fraction: Fraction = FULL) -> PairBatch:
        return crop_batch(self._make_batch(*np.argsort(-self.lengths, axis=0)[:BATCH_SIZE].T), fraction)

    def describe(self, epoch: int, index: int) -> str:
        return preview("lines", np.sort(self.members[index]) + 1)


class FixedSizeBuilder(Seq2SeqBuilder):
    def batch_sampler(self, config: RunConfig, train: EvalPairs) -> FixedSizeBatches:
        return FixedSizeBatches(train.source, train.target, seed=config.seed)


class Clock:
    """A callback that records the time and the number of target tokens after each step."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now, self.marks = now, list[tuple[float, int]]()

    def on_step(self, loop: Loop, loss: float, seconds: float) -> None:
        self.marks.append((self.now(), loop.train_state.tokens))

    def result(self) -> dict[str, float]:
        (start, start_tokens), (end, end_tokens) = self.marks[WARMUP_STEPS - 1], self.marks[STEPS - 1]
        return {"count": end_tokens - start_tokens, "seconds": end - start}

    def on_note(self, text: str) -> None: ...

    def on_data(self, summary: str) -> None: ...

    def on_progress(self, phase: str, done: int, total: int) -> None: ...

    def on_validation(self, loop: Loop, scores: dict[str, float]) -> None: ...

    def on_fit(self, num_parameters: int, scores: dict[str, float]) -> None: ...

    def should_stop(self) -> bool:
        return False


# ---- weft, in its own process


def make_job(model: str, args: argparse.Namespace, run_dir: Path, clock: Clock) -> Job:
    """A run as `weft train` prepares it, before the first step."""
    files = [str((args.data / f"train.{language}.gz").resolve()) for language in ("en", "de")]
    tokenizer = args.work_dir / "tokenizer.json"
    values = {
        "task": "seq2seq",
        "seed": args.seed,
        "data": {"train": files},
        "tokenizer": {"file": str(tokenizer)} if tokenizer.exists() else {"type": "bpe", "vocab_size": VOCAB_SIZE},
        "model": MODELS[model],
        # without EMA of the weights, like the other toolkits
        "train": {"max_steps": STEPS, "ema_decay": 0.0, "num_validations": 1, "device": args.device},
    }
    config, directory = resolve(values, base=Path()), make_directory(run_dir)
    directory.begin(config, "", overwrite=True)
    vocabulary, corpora = prepare(config.spec, config, directory, clock)
    return Job(config, directory, vocabulary, corpora, clock)


def train(model: str, args: argparse.Namespace) -> dict[str, float]:
    run_dir = args.work_dir / f"weft-{model}"
    clock = Clock(time.process_time if args.device == "cpu" else time.perf_counter)
    run_dir.mkdir(exist_ok=True)
    with lock.Lock(run_dir):
        NeuralTrainer(FixedSizeBuilder()).train(make_job(model, args, run_dir, clock))
    return clock.result()


def decode(args: argparse.Namespace) -> dict[str, float]:
    if not (args.work_dir / "weft-transformer" / "model.safetensors").exists():
        train("transformer", args)
    run = weft.load(args.work_dir / "weft-transformer", device=args.device)
    lines = read_lines(args.data / "test_2016_flickr.en.gz")[:NUM_SENTENCES]
    options: dict[str, Any] = {"beam_size": BEAM_SIZE, "min_new_tokens": NEW_TOKENS, "max_new_tokens": NEW_TOKENS}
    run.predict(lines[:BATCH_SIZE], **options)
    start = time.process_time()
    predictions = run.predict(lines, **options)
    seconds = time.process_time() - start
    if {len(prediction.token_ids) for prediction in predictions} != {NEW_TOKENS}:
        raise SystemExit(f"weft: expected {NEW_TOKENS} new tokens per sentence")
    return {"count": len(lines), "seconds": seconds}


# ---- all toolkits


def read_lines(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().split("\n")[:-1]


def write_tokens(args: argparse.Namespace) -> None:
    """Train weft's tokenizer, and write the token IDs of all texts."""
    run_dir = args.work_dir / "prepared"
    make_job("transformer", args, run_dir, Clock(time.process_time))
    tokenizer = Tokenizer.load(run_dir / "tokenizer.json")
    tokenizer.save(args.work_dir / "tokenizer.json")
    for split, stem in (("train", "train"), ("test", "test_2016_flickr")):
        for side, language in (("source", "en"), ("target", "de")):
            rows = tokenizer.encode_batch(read_lines(args.data / f"{stem}.{language}.gz"))
            text = "".join(f"{' '.join(map(str, token_ids.tolist()))}\n" for token_ids in rows)
            (args.work_dir / f"{split}.{side}").write_text(text)


def measure(toolkit: str, workload: str, args: argparse.Namespace, seed: int) -> float:
    """Tokens or sentences per second, measured in a separate process."""
    script = Path(__file__)
    if toolkit == "weft":
        command = [sys.executable, str(script), "--one", workload, "--seed", str(seed), "--device", args.device]
        command += ["--data", str(args.data), "--work-dir", str(args.work_dir)]
    else:
        python = getattr(args, f"{toolkit}_python")
        command = [str(python), str(script.with_name("_toolkits.py")), toolkit, workload, str(args.work_dir), str(seed)]
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    completed = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **one_thread})
    if completed.returncode:
        raise SystemExit(f"{toolkit}, {workload}: {completed.stderr[-2000:]}")
    result = json.loads(completed.stdout.strip().split("\n")[-1])
    return float(result["count"] / result["seconds"])


def report(workload: str, rates: dict[str, list[float]]) -> None:
    """Print median and range of each toolkit, and weft's speed relative to it."""
    weft_rates = rates["weft"]
    for toolkit, values in rates.items():
        median = statistics.median(values)
        line = f"{workload:<11} {toolkit:<4} {median:>7.1f}  ({min(values):.1f} to {max(values):.1f}, n = {len(values)})"
        if toolkit != "weft":
            ratios = [weft_rate / rate for weft_rate, rate in zip(weft_rates, values, strict=True)]
            ratio, target = statistics.median(weft_rates) / median, TARGETS[workload][toolkit]
            line += f"  weft is {ratio:.2f} times as fast (rounds {min(ratios):.2f} to {max(ratios):.2f});"
            line += f" target {target}: {verdict(ratio >= target)}"
        print(line, flush=True)


def compare(args: argparse.Namespace) -> None:
    write_tokens(args)
    workloads = [workload for workload in WORKLOADS if not args.only or workload in args.only]
    if args.device != "cpu":
        workloads = [workload for workload in workloads if workload in MODELS]
    for workload in workloads:
        toolkits = ["weft"]
        if args.device == "cpu":
            toolkits += [toolkit for toolkit in TARGETS.get(workload, {}) if getattr(args, f"{toolkit}_python")]
        rates: dict[str, list[float]] = {toolkit: [] for toolkit in toolkits}
        for seed in range(1, args.rounds + 1):
            for toolkit, values in rates.items():
                values.append(measure(toolkit, workload, args, seed))
        report(workload, rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED_DATA / "multi30k")
    for toolkit in ("eole", "joey", "hf"):
        parser.add_argument(f"--{toolkit}-python", type=Path, help=f"Python of an environment with {toolkit}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=WORKLOADS, help="measure only this workload; repeatable")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--work-dir", type=Path, help="working directory (default: a temporary one)")
    parser.add_argument("--one", choices=WORKLOADS, help=argparse.SUPPRESS)  # measure weft once, in this process
    parser.add_argument("--seed", type=int, default=1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    require_data(parser, args.data)
    if args.one:
        set_threads(1)
        keep_freed_memory()  # as the commands `weft train` and `weft predict`
        print(json.dumps(decode(args) if args.one == "decode" else train(args.one, args)))
        return
    with tempfile.TemporaryDirectory() as directory:
        args.work_dir = args.work_dir or Path(directory)
        args.work_dir.mkdir(parents=True, exist_ok=True)
        compare(args)


if __name__ == "__main__":
    main()
