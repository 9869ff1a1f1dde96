"""Dates in fourteen languages, "15 novembre 2026" to 2026-11-15: the model of examples/dates.toml, two minutes on two cores.

The bar: 99% of 2,000 days exactly right, none of which was trained on, in languages and formats that were. The days are made
by examples/make_dates.py, which needs the package Babel; 20,000 are trained on.
"""

from __future__ import annotations

import argparse
import runpy
import time
from pathlib import Path

from _measured import trained

from weft.cli.threads import set_threads
from weft.config import override, read_toml

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PARTS = {"train": 20000, "valid": 500, "test": 2000}
BAR = 99.0


def write_data(out: Path) -> None:
    """No day comes twice: those of one part are in no other."""
    pairs = runpy.run_path(str(EXAMPLES / "make_dates.py"))["pairs"](sum(PARTS.values()))
    low = 0
    for name, number in PARTS.items():
        rows = "".join(f"{source}\t{target}\n" for source, target in pairs[low : low + number])
        (out / f"{name}.tsv").write_text(f"source\ttarget\n{rows}")
        low += number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks/dates"), help="a finished run there is kept")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--set", action="append", default=[], metavar="A.B=VALUE", help="change an option of the run file")
    chosen = parser.parse_args()
    set_threads(chosen.threads)
    chosen.output_dir.mkdir(parents=True, exist_ok=True)
    write_data(chosen.output_dir)
    files = [f"data.{name}={name}.tsv" for name in PARTS]
    values = override(read_toml(EXAMPLES / "dates.toml"), [*files, *chosen.set])
    began = time.process_time()
    run, seconds = trained(values, chosen.output_dir / "run", chosen.output_dir)
    spent = time.process_time() - began
    score = next(score for score in run.evaluate().scores if score.name == "exact_match")
    print(f"exact match {score.value:.2f} % ({score.low:.2f} to {score.high:.2f}) of {PARTS['test']:,} days", end="")
    print(f", bar {BAR:g}: {'met' if score.value >= BAR else 'MISSED'}")
    print(f"trained in {seconds:.0f} s, {spent:.0f} CPU seconds; {score.signature}")


if __name__ == "__main__":
    main()
