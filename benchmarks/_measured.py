"""What the quality benchmarks share: train a run file's values, evaluate, and say whether a bar was met."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from weft.cli.display import Display
from weft.cli.progress import TrainProgress
from weft.cli.signals import Stop
from weft.cli.threads import set_threads
from weft.runs.job import train
from weft.runs.load import load
from weft.runs.run import AnyRun


def arguments(text: str, default: str) -> argparse.Namespace:
    """--data FILE, --output-dir FOLDER, --only NAME, --threads N."""
    shared = Path(__file__).resolve().parents[2] / "shared" / "data" / default
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--data", type=Path, default=shared, help="the text to train on")
    parser.add_argument(
        "--output-dir", type=Path, default=Path("runs/benchmarks"), help="where the runs go; finished ones are kept"
    )
    parser.add_argument("--only", action="append", help="this model alone; repeatable")
    parser.add_argument("--threads", type=int, default=None)
    chosen = parser.parse_args()
    set_threads(chosen.threads)
    if not chosen.data.exists():
        parser.exit(0, f"skipped: {chosen.data} is missing; pass --data FILE\n")
    return chosen


def trained(values: dict[str, Any], out: Path, base: Path) -> tuple[AnyRun, float]:
    """The run, and the seconds that this process spent on it."""
    began = time.perf_counter()
    with Stop() as stop, Display() as display:
        train(values, out, base=base, callback=TrainProgress(display, stop))
    return load(out), time.perf_counter() - began


def row(name: str, run: AnyRun, value: float, bar: float, seconds: float) -> str:
    verdict = "met" if round(value, 4) <= bar else "MISSED"
    return f"{name:<24} {run.num_parameters:>12,} {value:>9.4f} {bar:>8.4f} {verdict:>7} {seconds:>8.0f} s"


HEAD = f"{'model':<24} {'parameters':>12} {'nats':>9} {'bar':>8} {'':>7} {'wall':>10}"
