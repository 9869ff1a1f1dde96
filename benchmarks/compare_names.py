"""Eight models on names in one command, killed half-way and resumed: the same table as one that was left alone.

32,033 names, split as in names.py; two seeds each; every network reads the same number of characters with one thread.
The bars: the command that is killed takes under 15 minutes in all, and the two tables are the same but for times and memory.
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

from names import split

KINDS = "ngram,window,rnn,lstm,gru,transformer,gpt"
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
SAME = ("name", "seeds", "score", "scores", "p", "best", "parameters", "bytes")  # what no clock decides
MINUTES = 15.0


def arguments() -> argparse.Namespace:
    shared = Path(__file__).resolve().parents[2] / "shared" / "data" / "names-makemore" / "names.txt"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=shared, help="the names, one per line")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks"), help="where the comparisons go")
    parser.add_argument("--max-tokens", default="1M", help="characters that each network reads")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    if not chosen.data.exists():
        parser.exit(0, f"skipped: {chosen.data} is missing; pass --data FILE\n")
    return chosen


def command(options: argparse.Namespace, run_file: Path, out: Path) -> list[str]:
    words = [sys.executable, "-P", "-m", "weft", "compare", str(run_file), "--models", KINDS, "--grid", "model.order=2,5"]
    sizes = ["--seeds", str(options.seeds), "--max-tokens", options.max_tokens, "--jobs", str(options.jobs)]
    return [*words, *sizes, "--threads", str(options.jobs), "--output-dir", str(out)]


def finished(out: Path) -> int:
    """Runs that have come to their end, as their newest checkpoint, or what was counted, says."""
    done = 0
    for run in out.glob("*-[0-9]"):
        cursors = sorted(run.glob("checkpoints/[0-9]*/train_state.json"))
        counted = not (run / "checkpoints").exists() and (run / "model.safetensors").exists()
        done += counted or bool(cursors and json.loads(cursors[-1].read_text())["done"])
    return done


def kill_half_way(words: list[str], out: Path, runs: int) -> float:
    """Start the command, kill it when half of its runs are done; the seconds that it had."""
    began = time.monotonic()
    process = subprocess.Popen(words)
    while process.poll() is None and finished(out) < runs // 2:
        time.sleep(0.5)
    if process.poll() is not None:
        raise SystemExit(f"the command ended with {process.returncode} before half of it was done")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return time.monotonic() - began


def table(out: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((out / "comparison.json").read_text())["rows"]
    return [{name: row[name] for name in SAME} for row in rows]


def main() -> None:
    options = arguments()
    directory = options.output_dir / "compare-names"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    split(options.data, directory)
    run_file = directory / "names.toml"
    run_file.write_text(RUN_FILE)
    runs = 8 * options.seeds
    killed, alone = directory / "killed", directory / "alone"
    seconds = kill_half_way(command(options, run_file, killed), killed, runs)
    print(f"killed after {seconds:.0f} s with {finished(killed)} of {runs} runs done", flush=True)
    began = time.monotonic()
    subprocess.run(command(options, run_file, killed), check=True)
    seconds += time.monotonic() - began
    subprocess.run([*command(options, run_file, alone), "--quiet"], check=True)
    same = table(killed) == table(alone)
    print(f"{'what':<44} {'value':>12} {'bar':>12}")
    verdict = "met" if seconds < 60 * MINUTES else "MISSED"
    print(f"{'minutes, killed half-way and resumed':<44} {seconds / 60:>12.1f} {MINUTES:>12.1f} {verdict:>7}")
    print(f"{'the same table as without being killed':<44} {same!s:>12} {True!s:>12} {'met' if same else 'MISSED':>7}")
    size = (killed / "report.html").stat().st_size / 2**20
    print(f"{'size of the report in MB':<44} {size:>12.2f} {5.0:>12.1f} {'met' if size < 5 else 'MISSED':>7}")


if __name__ == "__main__":
    main()
