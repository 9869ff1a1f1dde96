"""Dates in fourteen languages, "15 novembre 2026" to 2026-11-15: the model of examples/dates.toml, two minutes on two cores.

Target: exact match of 99% on 2,000 days. No day is in both the training and the test data; languages and formats are. The data
is from examples/make_dates.py, which requires Babel; 20,000 days are for training.
"""

from __future__ import annotations

import argparse
import runpy
import time
from pathlib import Path

from _common import train_here, verdict

from weft.cli.threads import set_threads
from weft.config import override, read_toml

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SPLIT_SIZES = {"train": 20000, "valid": 500, "test": 2000}
TARGET = 99.0


def write_data(directory: Path) -> None:
    """Write train.tsv, valid.tsv and test.tsv. No day occurs twice."""
    pairs = runpy.run_path(str(EXAMPLES / "make_dates.py"))["pairs"](sum(SPLIT_SIZES.values()))
    start = 0
    for split, size in SPLIT_SIZES.items():
        rows = "".join(f"{source}\t{target}\n" for source, target in pairs[start : start + size])
        (directory / f"{split}.tsv").write_text(f"source\ttarget\n{rows}")
        start += size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks/dates"), help="a finished run is kept")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--set", action="append", default=[], metavar="A.B=VALUE", help="change an option of the run file")
    args = parser.parse_args()
    set_threads(args.threads)
    args.output_dir.mkdir(parents=True, exist_ok=True)
    write_data(args.output_dir)
    files = [f"data.{split}={split}.tsv" for split in SPLIT_SIZES]
    values = override(read_toml(EXAMPLES / "dates.toml"), [*files, *args.set])
    cpu_start = time.process_time()
    run, seconds = train_here(values, args.output_dir / "run", args.output_dir)
    cpu_seconds = time.process_time() - cpu_start
    score = run.evaluate()["exact_match"]
    print(f"exact match {score.value:.2f}% [{score.low:.2f}, {score.high:.2f}] on {SPLIT_SIZES['test']:,} days", end="")
    print(f", target {TARGET:g}: {verdict(score.value >= TARGET)}")
    print(f"trained in {seconds:.0f} s, {cpu_seconds:.0f} CPU seconds; {score.signature}")


if __name__ == "__main__":
    main()
