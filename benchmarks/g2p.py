"""Pronunciation, SIGMORPHON 2020 task 1: five languages, 3,600 words each, one recipe a family for all of them.

Word error rate (100 - exact match) and phone error rate (edit rate), beam 5. The bars, average over the languages: LSTM with
attention, mean of three seeds, 12.2 (published 13.64, the best of 36 settings for each language); Transformer 14.0 (published
14.93); an ensemble of five 11.2. Recipes are chosen on dev; --test scores the test words as well.
"""

from __future__ import annotations

import argparse
import itertools
import json
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

SPLITS = {"train": "train", "valid": "dev", "test": "test"}
LANGUAGES = ("fre", "hun", "hin", "gre", "bul")
TRAIN: dict[str, Any] = {
    "max_steps": 3500,
    "batch_tokens": 1400,
    "lr": 1e-3,
    "adam_beta2": 0.98,
    "lr_schedule": "cosine",
    "warmup_ratio": 0.08,
    "label_smoothing": 0.1,
    "ema_decay": 0.99,
    "num_validations": 1,
    "precision": "float32",
    "compile": False,
}
MUON: dict[str, Any] = {"optimizer": "muon", "muon_lr": 0.01, "weight_decay": 0.1}
FAMILIES: dict[str, dict[str, Any]] = {
    "lstm": {"model": {"arch": "lstm-input-feeding", "embedding_dim": 256, "encoder": {"hidden_size": 1024}}, "train": TRAIN},
    "transformer": {
        "model": {"arch": "transformer", "position_encoding": "rotary", "hidden_size": 256, "num_heads": 4, "dropout": 0.3},
        "train": {**TRAIN, "max_steps": 4000, **MUON},
    },
}


def values(family: str, language: str, seed: int, data: Path) -> dict[str, Any]:
    named = {name: str((data / f"{language}_{part}.tsv").resolve()) for name, part in SPLITS.items()}
    sides = {"source": {"type": "char"}, "target": {"type": "whitespace"}}
    return {"task": "seq2seq", "seed": seed, "data": named, "tokenizer": sides, **FAMILIES[family]}


def train_one(family: str, language: str, seed: int, chosen: argparse.Namespace) -> float:
    """Train in a process of its own; the seconds it took."""
    place = chosen.output_dir / f"{family}-{language}-{seed}"
    if (place / "model.safetensors").exists() and (place / "done").exists():
        return 0.0
    place.parent.mkdir(parents=True, exist_ok=True)
    file = place.with_suffix(".toml")
    file.write_text(tomli_w.dumps(values(family, language, seed, chosen.data)))
    command = [sys.executable, "-P", "-m", "weft", "train", str(file), "--output-dir", str(place), "--quiet", "--threads", "1"]
    for setting in chosen.set or []:
        command += ["--set", setting]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{place}: {done.stderr[-2000:]}")
    (place / "done").touch()
    return time.perf_counter() - began


def rates(paths: list[Path], data: Path) -> tuple[float, float]:
    """Word and phone error rate of a run, or of several as one."""
    scores = {score.name: score.value for score in weft.ensemble(paths).evaluate([data], PredictionConfig()).scores}
    return 100 - scores["exact_match"], scores["token_error_rate"]


Members = tuple[tuple[str, int], ...]  # family and seed of each run that predicts with the others


def score_one(job: tuple[Members, str, str, str, str]) -> dict[str, Any]:
    members, language, split, out, data = job
    paths = [Path(out) / f"{family}-{language}-{seed}" for family, seed in members]
    wer, per = rates(paths, Path(data) / f"{language}_{split}.tsv")
    return {"members": members, "language": language, "split": split, "wer": wer, "per": per}


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


def table(rows: list[dict[str, Any]], head: str) -> None:
    """Averages by language, over all of them, and how far single runs (or ensembles) lie apart."""
    cells = []
    for language in dict.fromkeys(row["language"] for row in rows):
        own = [row for row in rows if row["language"] == language]
        cells.append(f"{language} {mean([row['wer'] for row in own]):.2f}/{mean([row['per'] for row in own]):.2f}")
    groups = dict.fromkeys(row["members"] for row in rows)
    each = [mean([row["wer"] for row in rows if row["members"] == group]) for group in groups]
    print(
        f"{head}, WER/PER: {'  '.join(cells)}  average {mean([row['wer'] for row in rows]):.2f}/"
        f"{mean([row['per'] for row in rows]):.2f} (from {min(each):.2f} to {max(each):.2f}, n = {len(each)})"
    )


def groups_of(families: list[str], seeds: int, *, ensembles: bool) -> dict[str, list[Members]]:
    """Which runs are scored together: each alone; all of a family; five, as many of each family as the order allows."""
    groups: dict[str, list[Members]] = {
        family: [((family, seed),) for seed in range(1, seeds + 1)] for family in families
    }  # fmt: skip
    if ensembles:
        groups |= {f"{family} x {seeds}": [tuple((family, seed) for seed in range(1, seeds + 1))] for family in families}
        mixed = [(family, seed) for seed in range(1, seeds + 1) for family in families][:5]
        groups["five, families mixed"] = [tuple(mixed)]
    return groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    shared = Path(__file__).resolve().parents[2] / "shared" / "data" / "g2p-sigmorphon2020"
    parser.add_argument("--data", type=Path, default=shared)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks/g2p"))
    parser.add_argument("--families", default="lstm,transformer")
    parser.add_argument("--languages", default=",".join(LANGUAGES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes side by side")
    parser.add_argument("--ensembles", action="store_true", help="all seeds of a family as one, and five of all families")
    parser.add_argument("--test", action="store_true", help="score the test words too; nothing may be chosen by them")
    parser.add_argument("--set", action="append", help="change an option of every run")
    chosen = parser.parse_args()
    if not chosen.data.exists():
        parser.exit(0, f"skipped: {chosen.data} is missing; pass --data DIR\n")
    families, languages = chosen.families.split(","), chosen.languages.split(",")
    runs = list(itertools.product(families, languages, range(1, chosen.seeds + 1)))
    began = time.perf_counter()
    with ThreadPoolExecutor(chosen.jobs) as pool:
        list(pool.map(lambda run: train_one(*run, chosen), runs))
    print(f"{len(runs)} runs in {time.perf_counter() - began:.0f} s, {chosen.jobs} side by side", flush=True)
    splits = ["dev", *(["test"] if chosen.test else [])]
    groups = groups_of(families, chosen.seeds, ensembles=chosen.ensembles)
    jobs = [
        (members, language, split, str(chosen.output_dir), str(chosen.data))
        for named in groups.values()
        for members in named
        for language in languages
        for split in splits
    ]
    scored = score_all(jobs, chosen.jobs)
    for split in splits:
        for name, named in groups.items():
            table([row for row in scored if row["split"] == split and row["members"] in named], f"{split}, {name}")
    (chosen.output_dir / "scores.json").write_text(json.dumps(scored))


def score_all(jobs: list[Any], workers: int) -> list[Any]:
    """Each job in one of several processes, which are started anew: a GPU can't be shared with a forked one."""
    from multiprocessing import get_context

    with get_context("spawn").Pool(workers) as pool:
        return pool.map(score_one, jobs, chunksize=1)


if __name__ == "__main__":
    main()
