"""A worker of a comparison in its own process, whose training processes are small scripts that act like `weft train`.

    python shared_worker.py DIR LEASE_SECONDS NAME...    the worker
    python shared_worker.py train ... --output-dir DIR   the training of one run

The training has 25 steps, saves each of them, resumes after the last one, and writes every step to DIR/../../log with its
process. A name that starts with "bad" fails, one that starts with "oom" fails as if memory was short.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

STEPS, STEP_SECONDS = 25, 0.05
VALUES: dict[str, Any] = {"task": "lm", "data": {"train": "x.txt"}, "model": {"arch": "rnn"}, "train": {"max_steps": STEPS}}


def train() -> None:
    out = Path(sys.argv[sys.argv.index("--output-dir") + 1])
    name = out.name.partition(".run-")[0]
    log = out.parents[1] / "log"
    if name.startswith("bad"):
        sys.exit(6)
    if name.startswith("oom"):
        sys.exit(5)
    (out / "checkpoints").mkdir(parents=True, exist_ok=True)
    steps = [int(path.name) for path in (out / "checkpoints").iterdir()]
    for step in range(max(steps, default=0) + 1, STEPS + 1):
        time.sleep(STEP_SECONDS)
        (out / "checkpoints" / f"{step:06d}").mkdir()
        with log.open("a") as lines:
            lines.write(f"{name} {step} {os.getpid()}\n")
    (out / "model.safetensors").touch()
    (out / "done").touch()


class Callback:
    """Prints or records what a worker reports."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self.report, self.stopped = report, False

    def on_note(self, text: str) -> None:
        self.report(f"note {text}")

    def on_runs(self, states: Sequence[Any]) -> None:
        if running := [state.planned.output_dir.name for state in states if state.running]:
            self.report(f"running {' '.join(running)}")

    def on_run_end(self, outcome: Any) -> None:
        self.report(f"end {outcome.planned.output_dir.name} {outcome.code} {outcome.reason}".strip())

    def should_stop(self) -> bool:
        return self.stopped


def work(directory: Path, seconds: float, names: Sequence[str], callback: Callback) -> list[int]:
    """The exit codes of the runs, after all of them have ended."""
    from weft.comparison import cells as module
    from weft.comparison import worker as working
    from weft.comparison.plan import PlannedRun, Variant
    from weft.comparison.train import ThreadBudget

    def finished(out: Path, config: Any) -> bool:
        return (out / "done").exists()

    real, module.is_finished = module.is_finished, finished
    working.is_finished = finished
    try:
        cells = module.Cells(directory, module.this_worker(), seconds)
        budget = ThreadBudget(directory / "run-files", 1, 1, (sys.executable, __file__))
        plan = [PlannedRun(Variant(name, VALUES), 0, directory / f"{name}-0") for name in names]
        return [outcome.code for outcome in working.SharedTrainer(budget, callback, cells).train(plan)]
    finally:
        module.is_finished = working.is_finished = real


def main() -> None:
    from weft.errors import TrainingInterrupted

    callback = Callback(lambda text: print(text, flush=True))
    signal.signal(signal.SIGINT, lambda number, frame: setattr(callback, "stopped", True))
    try:
        print("all", *work(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:], callback), flush=True)
    except TrainingInterrupted:
        sys.exit(130)


if __name__ == "__main__":
    if sys.argv[1] == "train":
        import threading

        from weft.cli import child_process

        threading.Thread(target=child_process._wait_for_parent, daemon=True).start()
        train()
    else:
        main()
