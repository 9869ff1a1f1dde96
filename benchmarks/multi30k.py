"""Captions, Multi30k: the ladder from no attention to the Transformer, German to English, and the Transformer back.

One budget for the three models of the ladder, a joint BPE of 8,000 on raw text, sacrebleu of test_2016 on lower-cased text. The
bars: de-en, greedy, no attention 20.6, attention 34, Transformer 43 (published 20.6, 28.3, 36.5); en-de Transformer, beam 5,
41.0 (published 41.02). Nothing is chosen by the test sentences.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tomli_w

import weft
from weft.decode.predict_options import PredictionConfig

TRAIN: dict[str, Any] = {
    "max_steps": 6000,
    "batch_tokens": 4096,
    "lr": 1e-3,
    "adam_beta2": 0.98,
    "weight_decay": 0.0,
    "lr_schedule": "cosine",
    "warmup_ratio": 0.05,
    "label_smoothing": 0.1,
    "ema_decay": 0.998,
    "num_validations": 4,
    "compile": False,
}
JOINT: dict[str, Any] = {"share_embeddings": True, "tie_embeddings": True}
LSTM: dict[str, Any] = {"arch": "lstm-input-feeding", "hidden_size": 512, "dropout": 0.4, **JOINT}
TRANSFORMER: dict[str, Any] = {
    "arch": "transformer", "position_encoding": "rotary", "hidden_size": 256, "num_layers": 4, "num_heads": 4,
    "ffn_dim": 512, "dropout": 0.3, **JOINT,
}  # fmt: skip
MUON: dict[str, Any] = {"optimizer": "muon", "muon_lr": 0.01, "weight_decay": 0.1}
RUNS: dict[str, dict[str, Any]] = {
    "none": {"model": {**LSTM, "attention": "none", "input_feeding": False}, "languages": ("de", "en")},
    "attention": {"model": LSTM, "languages": ("de", "en")},
    "transformer": {"model": TRANSFORMER, "languages": ("de", "en")},
    "back": {"model": TRANSFORMER, "languages": ("en", "de")},
}
BARS = {"none": (1, 20.6), "attention": (1, 34.0), "transformer": (1, 43.0), "back": (5, 41.0)}  # beam, lower-cased BLEU


def values(name: str, data: Path, seed: int) -> dict[str, Any]:
    source, target = RUNS[name]["languages"]
    named = {"train": "train", "valid": "val", "test": "test_2016_flickr"}
    files = {split: [str((data / f"{stem}.{side}.gz").resolve()) for side in (source, target)] for split, stem in named.items()}
    return {
        "task": "seq2seq",
        "seed": seed,
        "data": files,
        "tokenizer": {"type": "bpe", "vocab_size": 8000},
        "model": RUNS[name]["model"],
        "train": {**TRAIN, **MUON},
    }


def train_one(name: str, chosen: argparse.Namespace) -> float:
    """Train in a process of its own; the seconds it took."""
    place = chosen.output_dir / name
    chosen.output_dir.mkdir(parents=True, exist_ok=True)
    file = chosen.output_dir / f"{name}.toml"
    file.write_text(tomli_w.dumps(values(name, chosen.data, chosen.seed)))
    command = [sys.executable, "-P", "-m", "weft", "train", str(file), "--output-dir", str(place), "--quiet"]
    for setting in chosen.set or []:
        command += ["--set", setting]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{place}: {done.stderr[-2000:]}")
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    shared = Path(__file__).resolve().parents[2] / "shared" / "data" / "multi30k"
    parser.add_argument("--data", type=Path, default=shared)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks/multi30k"))
    parser.add_argument("--only", action="append", choices=list(RUNS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="processes side by side")
    parser.add_argument("--test", action="store_true", help="score the test sentences too; nothing may be chosen by them")
    parser.add_argument("--set", action="append", help="change an option of every run")
    chosen = parser.parse_args()
    if not chosen.data.exists():
        parser.exit(0, f"skipped: {chosen.data} is missing; pass --data DIR\n")
    names = chosen.only or list(RUNS)
    with ThreadPoolExecutor(chosen.jobs) as pool:
        seconds = dict(zip(names, pool.map(lambda name: train_one(name, chosen), names), strict=True))
    for name in names:
        run, (beam, bar) = weft.load(chosen.output_dir / name), BARS[name]
        found = values(name, chosen.data, chosen.seed)["data"]
        for split in ("valid", *(("test",) if chosen.test else ())):
            scores = {score.name: score for score in run.evaluate(found[split], PredictionConfig(beam_size=beam)).scores}
            value = scores["bleu_lc"]
            verdict = "" if split == "valid" else f"  bar {bar}: {'met' if value.value >= bar else 'MISSED'}"
            print(
                f"{name:<12} {split:<5} beam {beam}  BLEU lower-cased {value.value:.2f} ({value.low:.2f} to {value.high:.2f})"
                f"  cased {scores['bleu'].value:.2f}  {seconds[name]:.0f} s{verdict}",
                flush=True,
            )


if __name__ == "__main__":
    main()
