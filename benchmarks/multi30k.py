"""Translation of image captions, Multi30k: no attention, attention and Transformer from German to English, and task and data
alone from English to German, which gives a Transformer.

Recommended settings; sacrebleu on lowercased text of test_2016. Targets: de-en, no attention 20.6 and attention 34, greedy
(published 20.6, 28.3), Transformer, beam size 5, 43.5; en-de, beam size 5, 41.5 (published 41.02). Nothing is tuned on the test
data.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _common import SHARED_DATA, require_data, train_subprocess, verdict

import weft

# the architecture alone; the Transformer is what weft recommends, so "back" does not name it
RUNS: dict[str, dict[str, Any]] = {
    "none": {
        "model": {"arch": "lstm-input-feeding", "attention": "none", "input_feeding": False},
        "languages": ("de", "en"),
    },
    "attention": {"model": {"arch": "lstm-input-feeding"}, "languages": ("de", "en")},
    "transformer": {"model": {"arch": "transformer"}, "languages": ("de", "en")},
    "back": {"model": {}, "languages": ("en", "de")},
}
BEAM_SIZE_AND_TARGET = {"none": (1, 20.6), "attention": (1, 34.0), "transformer": (5, 43.5), "back": (5, 41.5)}
STEMS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}


def data_files(name: str, data: Path) -> dict[str, list[str]]:
    """Source and target file of each split."""
    return {
        split: [str((data / f"{stem}.{language}.gz").resolve()) for language in RUNS[name]["languages"]]
        for split, stem in STEMS.items()
    }


def run_values(name: str, data: Path, seed: int) -> dict[str, Any]:
    return {
        "task": "seq2seq",
        "seed": seed,
        "data": data_files(name, data),
        "model": RUNS[name]["model"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED_DATA / "multi30k")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks/multi30k"))
    parser.add_argument("--only", action="append", choices=list(RUNS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="number of parallel processes")
    parser.add_argument("--test", action="store_true", help="evaluate on the test data as well; do not tune on it")
    parser.add_argument("--set", action="append", default=[], help="change an option of every run")
    args = parser.parse_args()
    require_data(parser, args.data)

    def train(name: str) -> float:
        return train_subprocess(run_values(name, args.data, args.seed), args.output_dir / name, overrides=args.set)

    names = args.only or list(RUNS)
    with ThreadPoolExecutor(args.jobs) as pool:
        seconds = dict(zip(names, pool.map(train, names), strict=True))
    for name in names:
        run, (beam_size, target) = weft.load(args.output_dir / name), BEAM_SIZE_AND_TARGET[name]
        for split in ("valid", "test") if args.test else ("valid",):
            evaluation = run.evaluate(data_files(name, args.data)[split], beam_size=beam_size)
            bleu = evaluation["bleu_lc"]
            result = f"  target {target}: {verdict(bleu.value >= target)}" if split == "test" else ""
            print(
                f"{name:<12} {split:<5} beam size {beam_size}  BLEU: lowercased {bleu.value:.2f} "
                f"[{bleu.low:.2f}, {bleu.high:.2f}]  cased {evaluation['bleu'].value:.2f}  {seconds[name]:.0f} s{result}",
                flush=True,
            )


if __name__ == "__main__":
    main()
