"""Training and decoding speed of encoder-decoders beside Eole, JoeyNMT and Hugging Face transformers, on one thread.

    python benchmarks/seq2seq_speed.py --eole-python PYTHON --joey-python PYTHON --hf-python PYTHON [--rounds 3]

Each peer runs in an environment of its own, whose Python is named; one that is not named is left out. Multi30k English to
German, joint BPE of 8,000 tokens, the same tokens for all. Training: batches of 64 sentences, target tokens (</s> counted,
padding not) per second of the processor between update 5 and 25. Decoding: 256 sentences of test_2016, 64 at once, beam 5,
exactly 20 tokens forced. Everybody takes a turn in every round, in a process of its own.

The bars: 1.0 of Eole or 2.0 of JoeyNMT in training, 1.2 of `generate` in decoding. With --device cuda weft trains alone, and
seconds are those of the clock.
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
from pathlib import Path
from typing import Any

import numpy as np
from _peers import BEAM, BEFORE, BUCKET, LENGTH, ROWS, SENTENCES, UPDATES, WORDS

import weft
from weft import files
from weft.cli.threads import set_threads
from weft.data.batching import pad_lines, preview
from weft.data.corpus import Corpus
from weft.decode.predict_options import PredictionConfig
from weft.runs.job import Job
from weft.runs.resolve import resolve
from weft.runs.run_dir import make_directory
from weft.tasks.prepare import prepare as prepare_run
from weft.tasks.seq2seq.batching import PairBatch
from weft.tasks.seq2seq.network import Seq2SeqBuilder
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
# the peers of each work, and how many times as fast as each weft is to be
RIVALS = {"transformer": {"eole": 1.0, "joey": 2.0}, "lstm": {"eole": 1.0, "joey": 2.0}, "decode": {"hf": 1.2}}
WORKS = (*MODELS, "decode")


class LikeRows:
    """ROWS pairs a batch, sorted BUCKET at a time: weft's own order of pairs, with the settings that Eole gets."""

    rows = ROWS

    def __init__(self, source: Corpus, target: Corpus, *, seed: int) -> None:
        self.source, self.target = source, target
        self.lengths = np.stack([np.diff(side.line_starts()) for side in (source, target)], axis=1)
        random = np.random.default_rng(seed)
        order = random.permutation(len(self.lengths))[: len(self.lengths) // ROWS * ROWS]
        for low in range(0, len(order), BUCKET):
            part = order[low : low + BUCKET]
            sources, targets = self.lengths[part].T
            # where the target gets longer, the source goes on at about the length that it had
            part[:] = part[np.lexsort((np.where(targets % 2, sources, -sources), targets))]
        self.plan = random.permutation(order.reshape(-1, ROWS))

    def batches(self, epoch: int) -> int:
        return len(self.plan)

    def batch(self, epoch: int, index: int) -> PairBatch:
        return self._made(self.plan[index], self.plan[index])

    def _made(self, sources: np.ndarray, targets: np.ndarray) -> PairBatch:
        rows, keep = pad_lines(self.source, sources)
        return PairBatch(rows[:, 1:].contiguous(), keep[:, 1:].contiguous(), *pad_lines(self.target, targets))

    def anew(self, index: int) -> bool:
        return True

    def largest(self) -> PairBatch:
        return self._made(*np.argsort(-self.lengths, axis=0)[:ROWS].T)

    def describe(self, epoch: int, index: int) -> str:
        return preview("lines", np.sort(self.plan[index]) + 1)


class InRows(Seq2SeqBuilder):
    """Translation as ever, in batches of ROWS."""

    def batch_sampler(self, job: Job) -> LikeRows:
        return LikeRows(job.corpora["train.source"], job.corpora["train.target"], seed=job.config.seed)


class Clock:
    """A watcher that notes the time and the tokens after each update."""

    def __init__(self, now: Any) -> None:
        self.now, self.marks = now, list[tuple[float, int]]()

    def on_step(self, loop: Loop, loss: float, seconds: float) -> None:
        self.marks.append((self.now(), loop.train_state.tokens))

    def found(self) -> dict[str, float]:
        (began, before), (ended, after) = self.marks[BEFORE - 1], self.marks[UPDATES - 1]
        return {"count": after - before, "seconds": ended - began}

    def on_note(self, text: str) -> None: ...

    def on_progress(self, name: str, done: int, total: int) -> None: ...

    def on_validation(self, loop: Loop, scores: dict[str, float]) -> None: ...

    def counted(self, parameters: int, scores: dict[str, float]) -> None: ...

    def should_stop(self) -> bool:
        return False


# ---- weft's turn, in a process of its own


def job_of(work: str, chosen: argparse.Namespace, out: Path, clock: Clock) -> Job:
    """A run as `weft train` makes one, up to the first update."""
    names = [str((chosen.data / f"train.{language}.gz").resolve()) for language in ("en", "de")]
    tokenizer = chosen.work_dir / "tokenizer.json"
    values = {
        "task": "seq2seq",
        "seed": chosen.seed,
        "data": {"train": names},
        "tokenizer": {"file": str(tokenizer)} if tokenizer.exists() else {"type": "bpe", "vocab_size": WORDS},
        "model": MODELS[work],
        # no average of the weights: the peers make none
        "train": {"max_steps": UPDATES, "ema_decay": 0.0, "num_validations": 1, "device": chosen.device},
    }
    settings, directory = resolve(values, base=Path()), make_directory(out)
    directory.begin(settings, "", fresh=True)
    made, corpora = prepare_run(settings.spec, settings, directory, clock)
    return Job(settings, directory, made, corpora, clock)


def train(work: str, chosen: argparse.Namespace) -> dict[str, float]:
    out = chosen.work_dir / f"weft-{work}"
    clock = Clock(time.process_time if chosen.device == "cpu" else time.perf_counter)
    out.mkdir(exist_ok=True)
    with files.Lock(out):
        NeuralTrainer(InRows()).train(job_of(work, chosen, out, clock))
    return clock.found()


def decode(chosen: argparse.Namespace) -> dict[str, float]:
    if not (chosen.work_dir / "weft-transformer" / "model.safetensors").exists():
        train("transformer", chosen)
    run = weft.load(chosen.work_dir / "weft-transformer", device=chosen.device)
    lines = lines_of(chosen.data / "test_2016_flickr.en.gz")[:SENTENCES]
    options = PredictionConfig(beam_size=BEAM, min_new_tokens=LENGTH, max_new_tokens=LENGTH)
    run.predict(lines[:ROWS], options)
    began = time.process_time()
    found = run.predict(lines, options)
    seconds = time.process_time() - began
    if {len(best.tokens) for best in found} != {LENGTH}:
        raise SystemExit(f"weft: not {LENGTH} tokens a sentence")
    return {"count": len(lines), "seconds": seconds}


# ---- everybody's turns


def lines_of(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().split("\n")[:-1]


def prepare(chosen: argparse.Namespace) -> None:
    """weft's tokenizer, and the texts as its numbers."""
    out = chosen.work_dir / "prepared"
    job_of("transformer", chosen, out, Clock(time.process_time))
    tokenizer = Tokenizer.load(out / "tokenizer.json")
    tokenizer.save(chosen.work_dir / "tokenizer.json")
    for split, name in (("train", "train"), ("test", "test_2016_flickr")):
        for side, language in (("source", "en"), ("target", "de")):
            rows = tokenizer.encode_batch(lines_of(chosen.data / f"{name}.{language}.gz"))
            text = "".join(f"{' '.join(map(str, ids.tolist()))}\n" for ids in rows)
            (chosen.work_dir / f"{split}.{side}").write_text(text)


def turn(who: str, work: str, chosen: argparse.Namespace, seed: int) -> float:
    """Tokens or sentences per second, measured in a process of its own."""
    here = Path(__file__)
    if who == "weft":
        command = [sys.executable, str(here), "--one", work, "--seed", str(seed), "--device", chosen.device]
        command += ["--data", str(chosen.data), "--work-dir", str(chosen.work_dir)]
    else:
        python = getattr(chosen, f"{who}_python")
        command = [str(python), str(here.with_name("_peers.py")), who, work, str(chosen.work_dir), str(seed)]
    alone = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **alone})
    if done.returncode:
        raise SystemExit(f"{who}, {work}: {done.stderr[-2000:]}")
    found = json.loads(done.stdout.strip().split("\n")[-1])
    return float(found["count"] / found["seconds"])


def report(work: str, rates: dict[str, list[float]]) -> None:
    """A line for each of them: median and range; of a peer also the ratio, and whether it is what was aimed at."""
    ours = rates["weft"]
    for who, values in rates.items():
        middle = statistics.median(values)
        line = f"{work:<11} {who:<4} {middle:>7.1f}  ({min(values):.1f} to {max(values):.1f}, n = {len(values)})"
        if who != "weft":
            ratios = [one / other for one, other in zip(ours, values, strict=True)]
            ratio, bar = statistics.median(ours) / middle, RIVALS[work][who]
            line += f"  weft is {ratio:.2f} times as fast (rounds {min(ratios):.2f} to {max(ratios):.2f});"
            line += f" bar {bar}: {'met' if ratio >= bar else 'MISSED'}"
        print(line, flush=True)


def compare(chosen: argparse.Namespace) -> None:
    prepare(chosen)
    works = [work for work in WORKS if not chosen.only or work in chosen.only]
    if chosen.device != "cpu":
        works = [work for work in works if work in MODELS]
    for work in works:
        rivals = [who for who in RIVALS.get(work, {}) if getattr(chosen, f"{who}_python") and chosen.device == "cpu"]
        rates: dict[str, list[float]] = {who: [] for who in ("weft", *rivals)}
        for seed in range(1, chosen.rounds + 1):
            for who, values in rates.items():
                values.append(turn(who, work, chosen, seed))
        report(work, rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data" / "multi30k")
    for who in ("eole", "joey", "hf"):
        parser.add_argument(f"--{who}-python", type=Path, help="the Python of an environment that has it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=WORKS, help="this work alone; repeatable")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--work-dir", type=Path, help="working directory (default: a temporary one)")
    parser.add_argument("--one", choices=WORKS, help=argparse.SUPPRESS)  # a turn
    parser.add_argument("--seed", type=int, default=1, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if not chosen.data.exists():
        parser.exit(0, f"skipped: {chosen.data} is missing; pass --data DIR\n")
    if chosen.one:
        set_threads(1)
        print(json.dumps(decode(chosen) if chosen.one == "decode" else train(chosen.one, chosen)))
        return
    with tempfile.TemporaryDirectory() as directory:
        chosen.work_dir = chosen.work_dir or Path(directory)
        chosen.work_dir.mkdir(parents=True, exist_ok=True)
        compare(chosen)


if __name__ == "__main__":
    main()
