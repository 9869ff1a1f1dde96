"""Grapheme-to-phoneme conversion, SIGMORPHON 2020 task 1: five languages, 3,600 words each, recommended settings.

Word error rate (WER: 100 - exact match) and phone error rate (PER: token error rate), beam size 5. Targets for the mean WER
over the languages: task and data alone, which gives an LSTM with attention, 11.5 (published 13.64, the best of 36 settings per
language); Transformer 12.8 (published 14.93). Settings were chosen on dev; --test also evaluates on the test words.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from _common import SHARED_DATA, require_data, train_subprocess

import weft

SPLITS = {"train": "train", "valid": "dev", "test": "test"}
LANGUAGES = ("fre", "hun", "hin", "gre", "bul")
# the architecture alone; the LSTM is what weft recommends, so it is not named
FAMILIES: dict[str, dict[str, Any]] = {"lstm": {}, "transformer": {"model": {"arch": "transformer"}}}


class Member(NamedTuple):
    """A run of an ensemble."""

    family: str
    seed: int


Members = tuple[Member, ...]


def run_values(family: str, language: str, seed: int, data: Path) -> dict[str, Any]:
    files = {split: str((data / f"{language}_{name}.tsv").resolve()) for split, name in SPLITS.items()}
    return {"task": "seq2seq", "seed": seed, "data": files, **FAMILIES[family]}


def evaluate(job: tuple[Members, str, str, Path, Path]) -> dict[str, Any]:
    """Error rates of a run, or of an ensemble, on one split of one language."""
    members, language, split, output_dir, data = job
    paths = [output_dir / f"{family}-{language}-{seed}" for family, seed in members]
    scores = weft.ensemble(paths).evaluate([data / f"{language}_{split}.tsv"])
    wer, per = 100 - scores["exact_match"].value, scores["token_error_rate"].value
    return {"members": members, "language": language, "split": split, "wer": wer, "per": per}


def evaluate_all(jobs: list[tuple[Members, str, str, Path, Path]], num_workers: int) -> list[dict[str, Any]]:
    """Evaluate in parallel. Processes are spawned, because forked processes cannot use the GPU."""
    with get_context("spawn").Pool(num_workers) as pool:
        return pool.map(evaluate, jobs, chunksize=1)


def print_rates(rows: list[dict[str, Any]], title: str) -> None:
    """Print the mean rates of each language and of all languages, and the range over runs or ensembles."""
    cells = []
    for language in dict.fromkeys(row["language"] for row in rows):
        of_language = [row for row in rows if row["language"] == language]
        cells.append(f"{language} {mean(row['wer'] for row in of_language):.2f}/{mean(row['per'] for row in of_language):.2f}")
    groups = dict.fromkeys(row["members"] for row in rows)
    group_means = [mean(row["wer"] for row in rows if row["members"] == group) for group in groups]
    print(
        f"{title}, WER/PER: {'  '.join(cells)}  mean {mean(row['wer'] for row in rows):.2f}/"
        f"{mean(row['per'] for row in rows):.2f} (WER {min(group_means):.2f} to {max(group_means):.2f}, n = {len(group_means)})"
    )


def ensembles_by_name(families: list[str], seeds: int, *, ensembles: bool) -> dict[str, list[Members]]:
    """Single runs by family and, with `ensembles`, all seeds of a family, and five runs of alternating families."""
    runs = {family: [Member(family, seed) for seed in range(1, seeds + 1)] for family in families}
    by_name: dict[str, list[Members]] = {family: [(run,) for run in runs[family]] for family in families}
    if ensembles:
        by_name |= {f"{family} x {seeds}": [tuple(runs[family])] for family in families}
        alternating = [Member(family, seed) for seed in range(1, seeds + 1) for family in families]
        by_name["five of all families"] = [tuple(alternating[:5])]
    return by_name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED_DATA / "g2p-sigmorphon2020")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks/g2p"))
    parser.add_argument("--families", default="lstm,transformer")
    parser.add_argument("--languages", default=",".join(LANGUAGES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of parallel processes")
    parser.add_argument(
        "--ensembles", action="store_true", help="also evaluate ensembles: each family, and five of all families"
    )
    parser.add_argument("--test", action="store_true", help="evaluate on the test words as well; do not tune on them")
    parser.add_argument("--set", action="append", default=[], help="change an option of every run")
    args = parser.parse_args()
    require_data(parser, args.data)
    families, languages = args.families.split(","), args.languages.split(",")

    def train(run: tuple[str, str, int]) -> None:
        family, language, seed = run
        values = run_values(family, language, seed, args.data)
        train_subprocess(values, args.output_dir / f"{family}-{language}-{seed}", threads=1, overrides=args.set)

    runs = list(itertools.product(families, languages, range(1, args.seeds + 1)))
    start = time.perf_counter()
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(train, runs))
    print(f"{len(runs)} runs in {time.perf_counter() - start:.0f} s, {args.jobs} in parallel", flush=True)
    splits = ["dev", "test"] if args.test else ["dev"]
    groups = ensembles_by_name(families, args.seeds, ensembles=args.ensembles)
    jobs = [
        (members, language, split, args.output_dir, args.data)
        for ensembles in groups.values()
        for members in ensembles
        for language in languages
        for split in splits
    ]
    rows = evaluate_all(jobs, args.jobs)
    for split in splits:
        for name, ensembles in groups.items():
            print_rates([row for row in rows if row["split"] == split and row["members"] in ensembles], f"{split}, {name}")
    (args.output_dir / "scores.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
