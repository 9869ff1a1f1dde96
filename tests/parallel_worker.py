"""One of several processes that train the runs of a plan together: `python parallel_worker.py PLAN RANK SIZE PORT`.

The plan is a JSON file: a list of run files with output directories. Starting a process costs seconds, so one group of processes
trains all of them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from small_runs import SilentCallback

from weft.errors import TrainingInterrupted
from weft.parallel.group import Group
from weft.parallel.join import Place, join, leave
from weft.runs.job import JobInputs, train
from weft.training.loop import Loop


def on_lost(group: Group, rank: int) -> None:
    raise SystemExit(f"{group.name(rank)} is lost")


def main() -> None:
    os.fsync = lambda descriptor: None  # type: ignore[assignment]  # as in the tests
    plan, rank, size, port = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    place = Place(rank, size, rank, f"host{rank}", "127.0.0.1", port)
    group = join(place, device="cpu", on_lost=on_lost, wait=60, timeout=60)
    for job in json.loads(plan.read_text()):
        start, cpu = time.perf_counter(), time.process_time()
        callback = SilentCallback(stop_at=job.get("stop_at"))
        Loop.asynchronous_devices = ("cpu",) if job.get("defers") else ()  # reads the numbers of a step later, as on a GPU
        with suppress(TrainingInterrupted):
            train(job["values"], Path(job["out"]), base=plan.parent, callback=callback, inputs=JobInputs(group=group))
        if group.leads:
            print(f"{job['out']} {time.perf_counter() - start:.1f}s, {time.process_time() - cpu:.1f}s of the CPU", flush=True)
    leave(group)


if __name__ == "__main__":
    main()
