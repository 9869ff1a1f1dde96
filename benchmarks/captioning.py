"""Captions of emoji and lip reading, recommended settings.

emoji: 8,517 images of 40 x 40 pixels in three designs. The test images show a figure in a skin tone that the training data has
in four others only. Targets: exact match at least 80, word F1 at least 95 (caption of the nearest training image: 0.0, 86.8).
grid: speaker 1 of GRID, 700 clips of 75 frames, 96 x 48 pixels, 3-D convolutions and CTC. Target: word error rate at most 15.
Beam size 5. Settings are chosen on the validation data; --test also evaluates on the test data.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from _common import SHARED_DATA, require_data, train_subprocess, verdict

import weft


class Dataset(NamedTuple):
    """Manifests NAME.SPLIT.tsv in a directory, and the targets of the mean scores on the test data."""

    directory: str
    name: str
    test: str  # split
    options: dict[str, Any]  # besides the manifests; `root` is relative to the directory
    metrics: tuple[str, ...]
    targets: dict[str, float]  # negative: at most


DATASETS = {
    "emoji": Dataset(
        "images-emoji",
        "emoji",
        "test-new",
        {"data": {"root": "emoji-40.zip"}},
        ("exact_match", "word_f1", "cider_d"),
        {"exact_match": 80.0, "word_f1": 95.0},
    ),
    # without an architecture, clips get a decoder with attention; the texts of these are spoken in order
    "grid": Dataset(
        "video-grid",
        "grid-s1",
        "test",
        {"data": {"channels": 1}, "model": {"arch": "lipnet"}},
        ("wer", "exact_match"),
        {"wer": -15.0},
    ),
}


def run_values(dataset: Dataset, data: Path, seed: int) -> dict[str, Any]:
    files = {split: str((data / f"{dataset.name}.{split}.tsv").resolve()) for split in ("train", "valid")}
    table = {**dataset.options["data"], **files}
    if "root" in table:
        table["root"] = str((data / table["root"]).resolve())
    return {"task": "captioning", "seed": seed, **dataset.options, "data": table}


def evaluate(dataset: Dataset, data: Path, runs: list[Path], split: str) -> list[dict[str, Any]]:
    """Print the mean scores of the runs on a split; returns the scores of each."""
    rows: list[dict[str, Any]] = []
    for run in runs:
        evaluation = weft.load(run).evaluate([data / f"{dataset.name}.{split}.tsv"])
        rows.append({"run": run.name, "split": split, **{name: evaluation[name].value for name in dataset.metrics}})
    means = {name: mean(row[name] for row in rows) for name in dataset.metrics}
    cells = [f"{name} {value:.1f}" for name, value in means.items()]
    targets = dataset.targets if split == dataset.test else {}
    for name, target in targets.items():
        is_reached = means[name] <= -target if target < 0 else means[name] >= target
        cells.append(f"target of {name} {abs(target):g}: {verdict(is_reached)}")
    print(f"{split}, {dataset.name}: {'  '.join(cells)} (n = {len(rows)})", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED_DATA, help="directory of images-emoji and video-grid")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks/captioning"))
    parser.add_argument("--only", action="append", choices=list(DATASETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel processes")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of each process")
    parser.add_argument("--test", action="store_true", help="evaluate on the test data as well; do not tune on it")
    parser.add_argument("--set", action="append", default=[], help="change an option of every run")
    args = parser.parse_args()
    names, seeds = args.only or list(DATASETS), range(1, args.seeds + 1)
    for name in names:
        require_data(parser, args.data / DATASETS[name].directory)

    def train(run: tuple[str, int]) -> None:
        name, seed = run
        values = run_values(DATASETS[name], args.data / DATASETS[name].directory, seed)
        train_subprocess(values, args.output_dir / f"{name}-{seed}", threads=args.threads, overrides=args.set)

    start = time.perf_counter()
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(train, itertools.product(names, seeds)))
    print(f"{len(names) * len(seeds)} runs in {time.perf_counter() - start:.0f} s, {args.jobs} in parallel", flush=True)
    rows: list[dict[str, Any]] = []
    for name in names:
        dataset, runs = DATASETS[name], [args.output_dir / f"{name}-{seed}" for seed in seeds]
        for split in ["valid", dataset.test] if args.test else ["valid"]:
            rows += evaluate(dataset, args.data / dataset.directory, runs, split)
    (args.output_dir / "scores.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
