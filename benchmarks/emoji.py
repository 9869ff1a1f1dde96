"""Captions of emoji: 8,517 images of 40 x 40 pixels in three designs, recommended settings.

The test images show a figure in a skin tone that the training data has in four others only. Exact match, word F1 and CIDEr-D,
beam size 5. Targets on the test images: exact match at least 80, word F1 at least 95; the caption of the nearest training image
has 0.0 and 86.8. Settings are chosen on the validation images; --test also evaluates on the test images.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

from _common import SHARED_DATA, require_data, train_subprocess, verdict

import weft

METRICS = ("exact_match", "word_f1", "cider_d")
TARGETS = {"exact_match": 80.0, "word_f1": 95.0}


def run_values(arch: str, seed: int, data: Path) -> dict[str, Any]:
    """The data alone; an architecture that is not recommended is named."""
    files = {split: str((data / f"emoji.{split}.tsv").resolve()) for split in ("train", "valid")}
    root = str((data / "emoji-40.zip").resolve())
    model = {} if arch == "recommended" else {"model": {"arch": arch}}
    return {"task": "captioning", "seed": seed, "data": {**files, "root": root}, **model}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED_DATA / "images-emoji")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks/emoji"))
    parser.add_argument("--archs", default="recommended", help="architectures, separated by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel processes")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of each process")
    parser.add_argument("--test", action="store_true", help="evaluate on the test images as well; do not tune on them")
    parser.add_argument("--set", action="append", default=[], help="change an option of every run")
    args = parser.parse_args()
    require_data(parser, args.data)
    runs = [(arch, seed) for arch in args.archs.split(",") for seed in range(1, args.seeds + 1)]

    def train(run: tuple[str, int]) -> None:
        arch, seed = run
        values = run_values(arch, seed, args.data)
        train_subprocess(values, args.output_dir / f"{arch}-{seed}", threads=args.threads, overrides=args.set)

    start = time.perf_counter()
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(train, runs))
    print(f"{len(runs)} runs in {time.perf_counter() - start:.0f} s, {args.jobs} in parallel", flush=True)
    rows = []
    for split in ["valid", "test-new"] if args.test else ["valid"]:
        for arch in args.archs.split(","):
            scores = []
            for seed in range(1, args.seeds + 1):
                evaluation = weft.load(args.output_dir / f"{arch}-{seed}").evaluate([args.data / f"emoji.{split}.tsv"])
                scores.append({name: evaluation[name].value for name in METRICS})
                rows.append({"arch": arch, "seed": seed, "split": split, **scores[-1]})
            means = {name: mean(score[name] for score in scores) for name in METRICS}
            cells = [f"{name} {value:.1f}" for name, value in means.items()]
            if split != "valid":
                cells += [f"{name} >= {target:g} {verdict(means[name] >= target)}" for name, target in TARGETS.items()]
            print(f"{split}, {arch}: {'  '.join(cells)} (n = {len(scores)})", flush=True)
    (args.output_dir / "scores.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
