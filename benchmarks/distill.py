"""Distillation of ensembles of pronunciation models, SIGMORPHON 2020 task 1: single runs, their ensemble, and its students.

Weights are selected on a tenth of the training words, and all scores are on dev, which selects nothing. WER is 100 - exact
match, PER the token error rate, loss in nats per token. Settings are those that are recommended, unless --set changes them.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from _common import SHARED_DATA, require_data, train_subprocess

import weft

METRICS = {"WER": "exact_match", "PER": "token_error_rate", "loss": "loss"}


class Setting(NamedTuple):
    """The options of a student."""

    weight: float
    temperature: float


def run_values(language: str, seed: int, data: Path) -> dict[str, Any]:
    files = {"train": str((data / f"{language}_train.tsv").resolve()), "valid": 0.1}
    return {"task": "seq2seq", "seed": seed, "data": {**files, "test": str((data / f"{language}_dev.tsv").resolve())}}


def student_values(language: str, seed: int, data: Path, teachers: list[Path], setting: Setting) -> dict[str, Any]:
    sides = {side: {"file": str((teachers[0] / f"tokenizer.{side}.json").resolve())} for side in ("source", "target")}
    train = {
        "distill_from": [str(path.resolve()) for path in teachers],
        "distill_weight": setting.weight,
        "distill_temperature": setting.temperature,
    }
    return {**run_values(language, seed, data), "tokenizer": sides, "train": train}


def evaluate(paths: tuple[Path, ...]) -> dict[str, float]:
    """The scores of a run, or of an ensemble, on dev."""
    scores = weft.ensemble(paths).evaluate()
    values = {name: scores[metric].value for name, metric in METRICS.items()}
    return {**values, "WER": 100 - values["WER"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED_DATA / "g2p-sigmorphon2020")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks/distill"))
    parser.add_argument("--languages", default="bul")
    parser.add_argument("--teachers", type=int, default=3)
    parser.add_argument("--students", type=int, default=3, help="seeds per setting, and of single runs to compare with")
    parser.add_argument("--settings", default="0.5:1,0.9:1,1:1,0.9:2", help="weight:temperature of the students")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of parallel processes")
    parser.add_argument("--set", action="append", default=[], help="change an option of every run")
    args = parser.parse_args()
    require_data(parser, args.data)
    languages, settings = (
        args.languages.split(","),
        [Setting(*map(float, item.split(":"))) for item in args.settings.split(",")],
    )
    seeds = range(args.teachers + 1, args.teachers + args.students + 1)

    def path(language: str, name: str, seed: int) -> Path:
        return Path(args.output_dir) / f"{language}-{name}-{seed}"

    def teachers(language: str) -> list[Path]:
        return [path(language, "single", seed) for seed in range(1, args.teachers + 1)]

    def train(job: tuple[str, int, Setting | None]) -> None:
        language, seed, setting = job
        if setting is None:
            values, name = run_values(language, seed, args.data), "single"
        else:
            values, name = (
                student_values(language, seed, args.data, teachers(language), setting),
                f"{setting.weight}-{setting.temperature}",
            )
        train_subprocess(values, path(language, name, seed), threads=1, overrides=args.set)

    singles = [(language, seed, None) for language in languages for seed in range(1, max(seeds) + 1)]
    students = [(language, seed, setting) for language in languages for seed in seeds for setting in settings]
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(train, singles))
        list(pool.map(train, students))
    groups: dict[str, list[tuple[Path, ...]]] = {
        f"single, {len(seeds)} seeds": [(path(language, "single", seed),) for language in languages for seed in seeds],
        f"ensemble of {args.teachers}": [tuple(teachers(language)) for language in languages],
    }
    for setting in settings:
        name = f"{setting.weight}-{setting.temperature}"
        groups[f"student, w = {setting.weight:g}, T = {setting.temperature:g}"] = [
            (path(language, name, seed),) for language in languages for seed in seeds
        ]
    with get_context("spawn").Pool(args.jobs) as pool_of_processes:  # forked processes cannot use the GPU
        results = {name: pool_of_processes.map(evaluate, members) for name, members in groups.items()}
    for name, rows in results.items():
        cells = (f"{metric} {mean(row[metric] for row in rows):.3f}" for metric in METRICS)
        spread = f"WER {min(row['WER'] for row in rows):.2f} to {max(row['WER'] for row in rows):.2f}"
        print(f"{name:<26} {'  '.join(cells)}  ({spread}, n = {len(rows)})", flush=True)
    (args.output_dir / "scores.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
