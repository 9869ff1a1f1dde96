"""Data larger than memory: start-up time and peak memory of training on prepared tokens, and the speed of `weft prepare`.

    python benchmarks/large_corpus.py --gigabytes 1 20 --processes 1 4
    python benchmarks/large_corpus.py --prepare-megabytes 60

The tokens are sparse files: shards of zeros that take no space on disk, with a correct index. Each row is measured in processes
of their own. "start-up" is the time from the start of the process to the end of the first training step, "CPU" the CPU time of
it without imports, "peak" is VmHWM, and "anonymous" and "file" are the memory at the end that is not and is backed by files.
"draw" opens the same corpus in several processes at once, each of which draws batches of its own; "ranks" is one training with
`weft train --processes N`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from tokenizer_speed import make_text

SHARD_BYTES = 256 << 20
TEXT = "\n".join(f"line {number} of a small text" for number in range(2000)) + "\n"
STEPS = 8
DRAWN_BATCHES = 2000


def run_file(directory: Path, prepared: Path | None = None) -> dict[str, Any]:
    data = {"train": str(directory / "text.txt"), "valid": str(directory / "valid.txt"), "context_length": 256}
    return {
        "task": "lm",
        "recommend": False,
        "data": data if prepared is None else {**data, "prepared": str(prepared)},
        "tokenizer": {"type": "byte"},
        "model": {"arch": "gpt", "num_layers": 2, "hidden_size": 64, "num_heads": 2},
        "train": {"max_steps": STEPS, "batch_tokens": 4096, "device": "cpu"},
    }


def make_sparse(directory: Path, size: int) -> Path:
    """Prepared data whose training tokens are `size` bytes of zeros in sparse files."""
    from weft.data.prepared_index import INDEX, read_index, write_checked
    from weft.data.shards import shard_path, state_of
    from weft.data.verification import write_states

    prepared = directory / f"prepared-{size}"
    for name in ("text.txt", "valid.txt"):
        (directory / name).write_text(TEXT)
    (directory / "run.toml").write_text(tomli_w.dumps(run_file(directory)))
    command = ["prepare", str(directory / "run.toml"), "--output-dir", str(prepared), "--processes", "1", "--quiet"]
    subprocess.run([sys.executable, "-P", "-m", "weft", *command], check=True)
    zeros, checksum = bytes(1 << 20), 0
    for _ in range(SHARD_BYTES // len(zeros)):
        checksum = zlib.crc32(zeros, checksum)
    count = SHARD_BYTES // 2
    counts = np.array([[0, 0, 0, 0], [count, count, count, 1]], "<i8").tobytes()
    shards, states = [], dict[str, list[int]]()
    for number in range(size // SHARD_BYTES):
        base = shard_path(prepared / "train", number)
        tokens, totals = base.with_name(f"{base.name}.tokens"), base.with_name(f"{base.name}.counts")
        with tokens.open("wb") as file:
            file.truncate(SHARD_BYTES)
        totals.write_bytes(counts)
        states |= {f"train/{path.name}": state_of(path) for path in (tokens, totals)}
        shards.append(
            {
                **{"tokens": count, "characters": count, "bytes": count, "words": 1},
                "checksums": {"tokens": checksum, "counts": zlib.crc32(counts)},
                "sizes": {"tokens": SHARD_BYTES, "counts": len(counts)},
            }
        )
    index = read_index(prepared)
    index["corpora"]["train"] |= {"tokens": count * len(shards), "shards": shards}
    write_checked(prepared / INDEX, index)
    write_states(prepared, states)
    return prepared


def memory(pid: int | str = "self") -> dict[str, float]:
    """Megabytes of a process: peak, and anonymous and file-backed memory now."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {
        name: int(lines[key].split()[0]) / 1024
        for name, key in (("peak", "VmHWM"), ("anonymous", "RssAnon"), ("file", "RssFile"))
    }


def train_child(directory: Path, prepared: Path, start: float) -> None:
    """Train a few steps in this process, and print the time of the first one and the memory."""
    from weft.cli.display import Display
    from weft.cli.progress import TrainProgress
    from weft.cli.signals import Stop
    from weft.runs.job import train

    startup, imported = dict[str, float](), time.process_time()

    class Progress(TrainProgress):
        def on_step(self, loop: Any, loss: float, seconds: float) -> None:
            if not startup:
                startup.update(startup=time.time() - start, cpu=time.process_time() - imported)
            super().on_step(loop, loss, seconds)

    with tempfile.TemporaryDirectory() as output, Stop() as stop, Display(quiet=True) as display:
        train(run_file(directory, prepared), Path(output) / "run", base=directory, callback=Progress(display, stop))
    print(json.dumps({**startup, **memory()}))


def draw_child(directory: Path, prepared: Path, start: float) -> None:
    """Open the corpus and draw batches, and print the time of the first one and the memory."""
    from weft.data.batching import Windows
    from weft.runs.resolve import resolve
    from weft.tasks.prepared_data import open_prepared_corpus

    imported = time.process_time()
    corpus = open_prepared_corpus(resolve(run_file(directory, prepared), base=directory), "train")
    if corpus is None:
        raise SystemExit(f"{prepared}: no training data")
    sampler = Windows(corpus, context_length=256, stride=256, rows=16, seed=0)
    sampler.batch(0, 0)
    startup, total = {"startup": time.time() - start, "cpu": time.process_time() - imported}, 0
    for index in range(os.getpid() % 4, 4 * DRAWN_BATCHES, 4):
        total += int(sampler.rows_at(sampler.starts(0, index)).sum())
    print(json.dumps({**startup, "sum": total, **memory()}))


CHILDREN = {"train": train_child, "draw": draw_child}


def measure(kind: str, directory: Path, prepared: Path, processes: int) -> list[dict[str, Any]]:
    """Run `processes` children at once; returns what each printed."""
    command = [sys.executable, __file__, "--child", kind, str(directory), str(prepared), str(time.time())]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    outputs = [child.communicate()[0] for child in children]
    return [json.loads(output.strip().rpartition("\n")[2]) for output in outputs]


def descendants(root: int) -> set[int]:
    """The processes that a process has started, and itself."""
    parents = dict[int, int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    found, new = set[int](), {root}
    while new:
        found |= new
        new = {child for child, parent in parents.items() if parent in new} - found
    return found


def measure_ranks(directory: Path, prepared: Path, processes: int) -> list[dict[str, Any]]:
    """Train with several processes; returns the time until the first step was logged, and the memory of each process."""
    output, run_path = Path(tempfile.mkdtemp(dir=directory)), directory / "ranks.toml"
    run_path.write_text(tomli_w.dumps(run_file(directory, prepared)))
    start = time.time()
    command = [sys.executable, "-P", "-m", "weft", "train", str(run_path), "--processes", str(processes)]
    training = subprocess.Popen([*command, "--output-dir", str(output / "run"), "--quiet"])
    rows, startup, log = dict[int, dict[str, float]](), 0.0, output / "run" / "metrics.jsonl"
    while training.poll() is None:
        if not startup and log.exists() and log.stat().st_size:
            startup = time.time() - start
        for pid in descendants(training.pid):
            with suppress(OSError, KeyError):
                rows[pid] = memory(pid)
        time.sleep(0.1)
    if training.returncode:
        raise SystemExit(f"{command}: exit code {training.returncode}")
    ranks = sorted(rows.values(), key=lambda row: row["peak"])[-processes:]
    return [{"startup": startup, **row} for row in ranks]


def compare_sizes(directory: Path, sizes: list[float], processes: list[int]) -> None:
    print(f"{'tokens':>8} {'work':>6} {'processes':>9} {'start-up':>9} {'CPU':>6} {'peak':>9} {'anonymous':>10} {'file':>8}")
    for size in sizes:
        prepared = make_sparse(directory, int(size * 4) * SHARD_BYTES)
        for kind in (*CHILDREN, "ranks"):
            for number in processes if kind != "ranks" else [number for number in processes if number > 1]:
                is_group = kind == "ranks"
                rows = (measure_ranks if is_group else partial(measure, kind))(directory, prepared, number)
                worst = {name: max(row[name] for row in rows) for name in rows[0]}
                cpu = f"{worst['cpu']:.1f}s" if "cpu" in worst else "-"  # that of imports is not known for ranks
                print(
                    f"{size:>6g}GB {kind:>6} {number:>9} {worst['startup']:>8.1f}s {cpu:>6}"
                    f" {worst['peak']:>6.0f} MB {worst['anonymous']:>7.0f} MB {worst['file']:>5.0f} MB"
                )


def compare_processes(directory: Path, seed_text: Path, megabytes: int) -> None:
    """The speed of `weft prepare` with one and two processes."""
    text = directory / "text.txt"
    make_text(seed_text, text, megabytes * 1_000_000)
    (directory / "valid.txt").write_text(TEXT)
    values = {**run_file(directory), "tokenizer": {"type": "bpe", "vocab_size": 8000}}
    (directory / "run.toml").write_text(tomli_w.dumps(values))
    base = [sys.executable, "-P", "-m", "weft", "prepare", str(directory / "run.toml"), "--quiet", "--json"]
    base += ["--shard-size", str(max(1, megabytes // 20))]
    trained = directory / "tokenizer"
    subprocess.run([*base, "--output-dir", str(trained), "--processes", "2"], check=True, stdout=subprocess.DEVNULL)
    values["tokenizer"] = {"file": str(trained / "tokenizer.json")}  # training it would be part of the time
    (directory / "run.toml").write_text(tomli_w.dumps(values))
    seconds = dict[int, float]()
    for number in (1, 2):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        output = directory / f"processes-{number}"
        result = subprocess.run(
            [*base, "--output-dir", str(output), "--processes", str(number)], check=True, stdout=subprocess.PIPE
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        content = json.loads(result.stdout)
        tokens, seconds[number] = content["corpora"]["train"]["tokens"], content["seconds"]
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(
            f"{number} processes: {tokens:,} tokens, {tokens / seconds[number]:,.0f} tokens per second,"
            f" {seconds[number]:.1f} s, CPU {cpu:.1f} s, largest process {after.ru_maxrss / 1024:.0f} MB"
        )
    print(f"ratio of the speeds: {seconds[1] / seconds[2]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, nargs="*", default=[1, 20])
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--prepare-megabytes", type=int, default=0, help="only measure weft prepare on this much text")
    parser.add_argument("--text", type=Path, help="words of the text for --prepare-megabytes")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        kind, directory, prepared, start = args.child
        CHILDREN[kind](Path(directory), Path(prepared), float(start))
        return
    with tempfile.TemporaryDirectory() as directory:
        if args.prepare_megabytes:
            seed = args.text or Path(directory) / "seed.txt"
            if args.text is None:
                seed.write_text(TEXT)
            compare_processes(Path(directory), seed, args.prepare_megabytes)
        else:
            compare_sizes(Path(directory), args.gigabytes, args.processes)


if __name__ == "__main__":
    main()
