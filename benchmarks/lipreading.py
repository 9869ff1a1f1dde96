"""Lip reading, speaker 1 of GRID: 700 clips of 75 frames, 96 x 48 pixels, 3-D convolutions and CTC, recommended settings.

Word error rate (WER), beam size 5, on 255 clips. Target: at most 15. Settings are chosen on the 45 validation clips; --test
also evaluates on the test clips.
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

TARGET = 15.0
METRICS = ("wer", "exact_match")


def run_values(arch: str, seed: int, data: Path) -> dict[str, Any]:
    files = {split: str((data / f"grid-s1.{split}.tsv").resolve()) for split in ("train", "valid")}
    return {"task": "captioning", "seed": seed, "data": {**files, "channels": 1}, "model": {"arch": arch}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED_DATA / "video-grid")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks/lipreading"))
    parser.add_argument("--archs", default="lipnet", help="architectures, separated by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel processes")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of each process")
    parser.add_argument("--test", action="store_true", help="evaluate on the test clips as well; do not tune on them")
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
    for split in ["valid", "test"] if args.test else ["valid"]:
        for arch in args.archs.split(","):
            scores = []
            for seed in range(1, args.seeds + 1):
                evaluation = weft.load(args.output_dir / f"{arch}-{seed}").evaluate([args.data / f"grid-s1.{split}.tsv"])
                scores.append({name: evaluation[name].value for name in METRICS})
                rows.append({"arch": arch, "seed": seed, "split": split, **scores[-1]})
            wer = mean(score["wer"] for score in scores)
            result = f"  <= {TARGET:g} {verdict(wer <= TARGET)}" if split == "test" else ""
            print(f"{split}, {arch}: WER {wer:.2f}{result} (n = {len(scores)})", flush=True)
    (args.output_dir / "scores.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
