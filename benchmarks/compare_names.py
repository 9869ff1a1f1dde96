"""Eight language models of names in one `weft compare`, killed halfway and resumed: the table must not change.

32,033 names, split as in names.py; two seeds per model; every network is trained on the same number of characters.
Targets: the killed and resumed comparison takes less than 15 minutes in total, its table equals that of an uninterrupted
comparison except for times and memory, and the report has less than 5 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from _common import SHARED_DATA, require_data, verdict
from names import write_splits

ARCHS = "ngram,conv,rnn,lstm,gru,transformer,gpt"
NUM_MODELS = 8  # ngram counts twice: --grid has two orders
RUN_FILE = """\
task = "lm"

[data]
train = "train.txt"
valid = "valid.txt"
test = "test.txt"
read_as = "lines"
context_length = 32

[tokenizer]
type = "char"

[model]
arch = "lstm"
hidden_size = 96

[train]
batch_tokens = 2048
num_validations = 5
"""
COMPARED = ("name", "seeds", "score", "scores", "p", "best", "num_parameters", "model_bytes")  # independent of time
MAX_MINUTES, MAX_REPORT_MB = 15.0, 5.0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = SHARED_DATA / "names-makemore" / "names.txt"
    parser.add_argument("--data", type=Path, default=names, help="the names, one per line")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks"), help="directory of the comparisons")
    parser.add_argument("--max-tokens", default="1M", help="number of characters that each network is trained on")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    require_data(parser, args.data, "--data FILE")
    return args


def compare_command(args: argparse.Namespace, run_file: Path, output_dir: Path) -> list[str]:
    models = ["compare", str(run_file), "--models", ARCHS, "--grid", "model.order=2,5", "--seeds", str(args.seeds)]
    budget = ["--max-tokens", args.max_tokens, "--jobs", str(args.jobs), "--threads", str(args.jobs)]
    return [sys.executable, "-P", "-m", "weft", *models, *budget, "--output-dir", str(output_dir)]


def num_finished(output_dir: Path) -> int:
    """How many runs are fitted, or trained to their last checkpoint."""
    count = 0
    for run in output_dir.glob("*-[0-9]"):
        states = sorted(run.glob("checkpoints/[0-9]*/train_state.json"))
        is_fitted = not (run / "checkpoints").exists() and (run / "model.safetensors").exists()
        count += is_fitted or bool(states and json.loads(states[-1].read_text())["done"])
    return count


def kill_halfway(command: list[str], output_dir: Path, num_runs: int) -> float:
    """Start the command and kill it when half of the runs are finished; returns the seconds until then."""
    start = time.monotonic()
    process = subprocess.Popen(command)
    while process.poll() is None and num_finished(output_dir) < num_runs // 2:
        time.sleep(0.5)
    if process.poll() is not None:
        raise SystemExit(f"the command exited with {process.returncode} before half of the runs were finished")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return time.monotonic() - start


def comparable_rows(output_dir: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((output_dir / "comparison.json").read_text())["rows"]
    return [{name: row[name] for name in COMPARED} for row in rows]


def main() -> None:
    args = parse_args()
    directory = args.output_dir / "compare-names"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    write_splits(args.data, directory)
    run_file = directory / "names.toml"
    run_file.write_text(RUN_FILE)
    num_runs = NUM_MODELS * args.seeds
    killed, uninterrupted = directory / "killed", directory / "uninterrupted"
    seconds = kill_halfway(compare_command(args, run_file, killed), killed, num_runs)
    print(f"killed after {seconds:.0f} s with {num_finished(killed)} of {num_runs} runs finished", flush=True)
    start = time.monotonic()
    subprocess.run(compare_command(args, run_file, killed), check=True)
    minutes = (seconds + time.monotonic() - start) / 60
    subprocess.run([*compare_command(args, run_file, uninterrupted), "--quiet"], check=True)
    is_equal = comparable_rows(killed) == comparable_rows(uninterrupted)
    report_mb = (killed / "report.html").stat().st_size / 1e6
    print(f"{'':<44} {'value':>12} {'target':>12}")
    print(
        f"{'minutes, killed halfway and resumed':<44} {minutes:>12.1f} {MAX_MINUTES:>12.1f} {verdict(minutes < MAX_MINUTES):>7}"
    )
    print(f"{'same table as the uninterrupted comparison':<44} {is_equal!s:>12} {True!s:>12} {verdict(is_equal):>7}")
    print(f"{'size of the report in MB':<44} {report_mb:>12.2f} {MAX_REPORT_MB:>12.1f} {verdict(report_mb < MAX_REPORT_MB):>7}")


if __name__ == "__main__":
    main()
