"""One of several processes that train and evaluate the runs of a plan together: `python parallel_worker.py PLAN RANK SIZE PORT`.

The plan is a JSON file: a list of run files with output directories, and of run directories to evaluate. Starting a process costs
seconds, so one group of processes does all of it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch
from small_runs import SilentCallback

from weft.errors import TrainingInterrupted
from weft.parallel.group import Group
from weft.parallel.join import Place, join, leave
from weft.runs.job import JobInputs, train
from weft.runs.load import load
from weft.runs.shared_evaluation import share_evaluation

SECONDS = float(os.environ.get("GROUP_SECONDS", "60"))  # how long processes wait for each other


def on_lost(group: Group, rank: int) -> None:
    raise SystemExit(f"{group.name(rank)} is lost")


def evaluate(run_dir: Path, out: Path, group: Group) -> None:
    """Evaluate a run, and let the last process write its scores and statistics."""
    run = load(run_dir, device="cpu")
    share_evaluation(run, group)
    evaluation = run.evaluate()
    group.barrier()
    if group.rank == group.size - 1:
        statistics = {name: values.tolist() for name, values in evaluation.items.statistics.items()}
        scores = [score._asdict() for score in evaluation]
        out.write_text(json.dumps({"scores": scores, "statistics": statistics, "outputs": evaluation.predictions}))


def main() -> None:
    os.fsync = lambda descriptor: None  # type: ignore[assignment]  # as in the tests
    plan, rank, size, port = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    torch.set_default_dtype(getattr(torch, os.environ.get("DEFAULT_DTYPE", "float32")))  # of the weights
    place = Place(rank, size, rank, f"host{rank}", "127.0.0.1", port)
    group = join(place, device="cpu", on_lost=on_lost, wait=SECONDS, timeout=SECONDS)
    if group.heartbeats is not None:
        group.heartbeats.lost_after = SECONDS
    for job in json.loads(plan.read_text()):
        if "evaluate" in job:
            evaluate(Path(job["evaluate"]), Path(job["out"]), group)
            continue
        start, cpu = time.perf_counter(), time.process_time()
        callback = SilentCallback(stop_at=job.get("stop_at"))
        with suppress(TrainingInterrupted):
            train(job["values"], Path(job["out"]), base=plan.parent, callback=callback, inputs=JobInputs(group=group))
        if group.leads:
            print(f"{job['out']} {time.perf_counter() - start:.1f}s, {time.process_time() - cpu:.1f}s of the CPU", flush=True)
    leave(group)


if __name__ == "__main__":
    main()
