"""Speech recognition, AN4: 948 recordings of 74 speakers to train on, 130 of ten other speakers to test.

Recommended settings: task and data alone give a bidirectional LSTM with CTC. Word error rate, beam search, without and with a
language model of the training transcripts (an n-gram model of characters; its weight is chosen on dev). Dev are the recordings
of every ninth speaker. Targets, mean of 3 seeds: 10 without and 7.4 with a language model (PocketSphinx 14.0, ESPnet2 7.4).
--directions compares encoders that read in one and in both directions, of the same size, with `weft compare`; --minutes trains
for that long instead. Settings were chosen on dev; --test also evaluates on the test recordings. --all W trains on all 948
recordings once settings are chosen: the last weights are kept, and the language model, also of all transcripts, has weight W.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

import tomli_w
from _common import SHARED_DATA, require_data, train_subprocess

import weft

LM_WEIGHTS = (0.2, 0.4, 0.6, 0.8)
DEV_SPEAKERS = 9  # every ninth speaker
BEAM_SIZE = 10


def write_manifests(data: Path, output_dir: Path) -> None:
    """The training recordings, divided by speaker, and the transcripts of the training part."""
    rows = [line.split("\t") for line in (data / "an4.train.tsv").read_text(encoding="utf-8").split("\n") if line]
    speakers = sorted({speaker for _, _, speaker in rows})
    dev = set(speakers[::DEV_SPEAKERS])
    output_dir.mkdir(parents=True, exist_ok=True)
    for name, is_dev in (("train", False), ("dev", True)):
        chosen = [row for row in rows if (row[2] in dev) == is_dev]
        (output_dir / f"{name}.tsv").write_text("".join("\t".join(row) + "\n" for row in chosen), encoding="utf-8")
        (output_dir / f"{name}.txt").write_text("".join(text + "\n" for _, text, _ in chosen), encoding="utf-8")
    (output_dir / "all.txt").write_text("".join(text + "\n" for _, text, _ in rows), encoding="utf-8")


def run_values(data: Path, output_dir: Path, seed: int, *, trains_on_all: bool = False) -> dict[str, Any]:
    files = {"train": data / "an4.train.tsv", "test": data / "an4.test.tsv"}
    if not trains_on_all:
        files |= {"train": output_dir / "train.tsv", "valid": output_dir / "dev.tsv"}
    table: dict[str, Any] = {split: str(path.resolve()) for split, path in files.items()}
    return {"task": "asr", "seed": seed, "data": {**table, "root": str(data.resolve()), "speaker_column": 3}}


def train_lm(run_dir: Path, output_dir: Path, texts: str) -> Path:
    """An n-gram model of transcripts, with the tokenizer of a recognizer."""
    values = {
        "task": "lm",
        "data": {"train": str((output_dir / texts).resolve()), "read_as": "lines"},
        "tokenizer": {"file": str((run_dir / "tokenizer.json").resolve())},
        "model": {"arch": "ngram", "order": 10},
    }
    train_subprocess(values, output_dir / "lm")
    return output_dir / "lm"


def wer(run: Any, data: Path | None = None) -> float:
    return float(run.evaluate(data, beam_size=BEAM_SIZE)["wer"].value)


def compare_directions(args: argparse.Namespace) -> None:
    """`weft compare` of unidirectional and bidirectional encoders."""
    run_file = args.output_dir / "directions.toml"
    run_file.write_text(tomli_w.dumps(run_values(args.data, args.output_dir, 1)))
    command = [sys.executable, "-P", "-m", "weft", "compare", str(run_file), "--seeds", str(args.seeds)]
    command += ["--grid", "model.encoder.bidirectional=true,false", "--output-dir", str(args.output_dir / "directions")]
    for override in args.set:
        command += ["--set", override]
    raise SystemExit(subprocess.run(command).returncode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED_DATA / "speech-an4")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks/an4"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=min(3, os.cpu_count() or 1), help="number of parallel processes")
    parser.add_argument("--minutes", type=float, help="train for this long")
    parser.add_argument("--directions", action="store_true", help="compare unidirectional and bidirectional encoders")
    parser.add_argument("--all", type=float, metavar="W", help="train on all recordings and evaluate on test, LM weight W")
    parser.add_argument("--test", action="store_true", help="evaluate on the test data as well; do not tune on it")
    parser.add_argument("--set", action="append", default=[], help="change an option of every run")
    args = parser.parse_args()
    require_data(parser, args.data)
    write_manifests(args.data, args.output_dir)
    if args.directions:
        compare_directions(args)
    overrides = [*args.set, *([] if args.minutes is None else [f"train.max_minutes={args.minutes}"])]

    def train(seed: int) -> float:
        values = run_values(args.data, args.output_dir, seed, trains_on_all=args.all is not None)
        return train_subprocess(values, args.output_dir / f"seed-{seed}", overrides=overrides)

    seeds = range(1, args.seeds + 1)
    with ThreadPoolExecutor(args.jobs) as pool:
        seconds = list(pool.map(train, seeds))
    run_dirs = [args.output_dir / f"seed-{seed}" for seed in seeds]
    lm, weight = train_lm(run_dirs[0], args.output_dir, "train.txt" if args.all is None else "all.txt"), args.all
    if weight is None:
        dev = args.output_dir / "dev.tsv"
        by_weight = {
            weight: [wer(weft.ensemble([run], lm=lm, lm_weight=weight), dev) for run in run_dirs] for weight in LM_WEIGHTS
        }
        weight = min(by_weight, key=lambda each: mean(by_weight[each]))
        alone = [wer(weft.load(run), dev) for run in run_dirs]
        means = {each: round(mean(values), 2) for each, values in by_weight.items()}
        print(f"dev   no LM {mean(alone):.2f} {alone}  LM {means}  {seconds}")
    if args.test or args.all is not None:
        alone = [wer(weft.load(run)) for run in run_dirs]
        fused = [wer(weft.ensemble([run], lm=lm, lm_weight=weight)) for run in run_dirs]
        print(f"test  no LM {mean(alone):.2f} {alone}  LM (weight {weight}) {mean(fused):.2f} {fused}")


if __name__ == "__main__":
    main()
