"""Shared by the benchmarks: options, training in this process or in another one, and rows of the result table."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from weft.cli.display import Display
from weft.cli.progress import TrainProgress
from weft.cli.signals import Stop
from weft.cli.threads import set_threads
from weft.runs.job import train
from weft.runs.load import load
from weft.runs.run import AnyRun

SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
TABLE_HEAD = f"{'model':<24} {'parameters':>12} {'loss':>9} {'target':>8} {'':>7} {'time':>10}"


def require_data(parser: argparse.ArgumentParser, path: Path, option: str = "--data DIR") -> None:
    """Exit with a message, but without an error, if the data is missing."""
    if not path.exists():
        parser.exit(0, f"skipped: {path} is missing; pass {option}\n")


def parse_args(description: str, data: str) -> argparse.Namespace:
    """The options --data, --output-dir, --only and --threads; `data` is the default file, relative to the shared data."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED_DATA / data, help="training text")
    parser.add_argument(
        "--output-dir", type=Path, default=Path("runs/benchmarks"), help="directory of the runs; finished runs are kept"
    )
    parser.add_argument("--only", action="append", help="train only this model; repeatable")
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    set_threads(args.threads)
    require_data(parser, args.data, "--data FILE")
    return args


def train_here(values: dict[str, Any], run_dir: Path, base: Path) -> tuple[AnyRun, float]:
    """Train in this process; paths in `values` are relative to `base`. Returns the run and the seconds of training."""
    start = time.perf_counter()
    with Stop() as stop, Display() as display:
        train(values, run_dir, base=base, callback=TrainProgress(display, stop))
    return load(run_dir), time.perf_counter() - start


def train_command(values: dict[str, Any], run_dir: Path, *, threads: int | None, overrides: Sequence[str] = ()) -> list[str]:
    """Write the run file next to the run directory; returns the command that trains it."""
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    run_file = run_dir.with_name(f"{run_dir.name}.toml")
    run_file.write_text(tomli_w.dumps(values))
    command = [sys.executable, "-P", "-m", "weft", "train", str(run_file), "--output-dir", str(run_dir), "--quiet"]
    if threads is not None:
        command += ["--threads", str(threads)]
    for override in overrides:
        command += ["--set", override]
    return command


def train_subprocess(
    values: dict[str, Any], run_dir: Path, *, threads: int | None = None, overrides: Sequence[str] = ()
) -> float:
    """Train in another process; returns the seconds. A finished run is kept."""
    start = time.perf_counter()
    command = train_command(values, run_dir, threads=threads, overrides=overrides)
    completed = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if completed.returncode:
        raise SystemExit(f"{run_dir}: {completed.stderr[-2000:]}")
    return time.perf_counter() - start


def verdict(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


def table_row(name: str, run: AnyRun, loss: float, target: float, seconds: float) -> str:
    result = verdict(round(loss, 4) <= target)
    return f"{name:<24} {run.num_parameters:>12,} {loss:>9.4f} {target:>8.4f} {result:>7} {seconds:>8.0f} s"
