"""One training of weft in a process of its own, for gpu_training.py: prints a line of JSON with its times.

python benchmarks/_gpu_worker.py '{"values": {...}, "run_dir": "...", "started": 0.0, ...}'
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

IMPORTS = time.time()

from weft.cli.collector import paused  # noqa: E402

with paused():  # as `weft train` does
    import torch
from _gpu_profile import PartTimes, StepProfiler  # noqa: E402

from weft.nn import lm_head, positions, stack  # noqa: E402
from weft.parallel.group import Group  # noqa: E402
from weft.runs.job import train  # noqa: E402
from weft.training import compilation, neural  # noqa: E402
from weft.training.cuda_graphs import GraphedReplica  # noqa: E402
from weft.training.data_parallel import Replica, Replicated, Sharded  # noqa: E402
from weft.training.loop import Loop  # noqa: E402
from weft.training.loss_module import LossModule  # noqa: E402
from weft.training.neural import NeuralTrainer  # noqa: E402
from weft.training.optimizers import Optimizers  # noqa: E402
from weft.training.run_log import RunLogWriter  # noqa: E402

SKIPPED = 30  # steps before the times of parts are counted
RESULT = "RESULT "  # before the line of JSON


class Recorder:
    """A callback that records when steps end, and stops at a validation loss."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.started, self.target = job["started"], job.get("target")
        self.profiler = StepProfiler(job["profile_at"]) if "profile_at" in job else None
        self.phases: dict[str, float] = {}  # when each phase of the start was over
        self.stop_at: int | None = job.get("stop_at")
        self.ends: list[float] = []
        self.losses: list[float] = []
        self.validations: list[tuple[int, float, float]] = []
        self.notes: list[str] = []
        self.reached: float | None = None

    def on_note(self, text: str) -> None:
        self.notes.append(text)

    def on_data(self, summary: str) -> None:
        self.on_note(summary)
        self.phases["data"] = time.time() - self.started

    def phase(self, name: str, function: Any) -> Any:
        """`function`, which notes when it is over."""

        def call(*parts: Any, **options: Any) -> Any:
            result = function(*parts, **options)
            self.phases[name] = time.time() - self.started
            return result

        return call

    def on_progress(self, phase: str, done: int, total: int) -> None:
        pass

    def on_fit(self, parameters: int, scores: dict[str, float]) -> None:
        pass

    def on_step(self, loop: Loop, loss: float, seconds: float) -> None:
        self.ends.append(time.time() - self.started)
        self.losses.append(loss)
        if self.profiler is not None:
            self.profiler.after_step(loop.train_state.step, loop.device_config.device)

    def on_validation(self, loop: Loop, scores: dict[str, float]) -> None:
        value = next(iter(scores.values()))
        self.validations.append((loop.train_state.step, value, time.time() - self.started))
        if self.target is not None and value <= self.target and self.reached is None:
            self.reached = time.time() - self.started

    def should_stop(self) -> bool:
        return self.reached is not None or (self.stop_at is not None and len(self.ends) >= self.stop_at)


def apply_variant(job: dict[str, Any]) -> None:
    """Override the decisions of weft.training.compilation, to compare them; and the plain step."""
    if job.get("unit"):
        compilation.MODEL_STEPS = 0 if job["unit"] == "model" else 10**9
        compilation.RECORDED_STEPS = 10**9 if job["unit"] == "nothing" else 0
    if job.get("unrecorded") or job.get("replica"):  # steps that exchange gradients cannot be recorded
        neural.can_record = lambda *parts, **options: False  # type: ignore[attr-defined]
    if not job.get("kernels", True):
        compilation.KERNEL_STEPS = 10**9
    if "muon" in job:
        compilation.MUON_PARAMETERS = 0 if job["muon"] else 10**18
    if job.get("attention") == "flash":
        compilation.KERNELS = [kernel for kernel in compilation.KERNELS if "CUDNN" not in kernel.name]
    if job.get("loss") == "plain":
        lm_head.MIN_FUSED_VOCABULARY = 10**9
    if job.get("rotations") == "computed":
        positions.MAX_TABLE = 0
    if job.get("sums") == "float":
        stack.in_half_precision = lambda x: x
    Loop.asynchronous_devices = () if job.get("plain") else ("cpu", "cuda")
    if job.get("replica"):
        trainer: Any = neural
        trainer.Replica = make_replica(job["replica"], job["port"])
    if job.get("stop_at"):  # no checkpoint; those of FSDP2 could not be written, since to weft this process is alone
        writer: Any = RunLogWriter
        writer.save, writer.reserve = (lambda log, loop: None), (lambda log, loop: None)


def make_replica(kind: str, port: int) -> Any:
    """A function that wraps a loss module for a group of one process."""
    import torch.distributed as dist

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu", 0)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    group = Group(process_group=dist.group.WORLD)

    def wrap(loss_module: LossModule) -> Replica:
        if kind == "ddp":
            return Replicated(loss_module, group, has_unused=False)
        return Sharded(loss_module, group, device)

    return wrap


def main() -> None:
    job = json.loads(sys.argv[1])
    apply_variant(job)
    recorder, parts = Recorder(job), PartTimes()
    patched: Any = (Replica, GraphedReplica, Optimizers, NeuralTrainer)
    for replica in patched[:2]:
        replica.accumulate = parts.timed("passes", replica.accumulate)
    patched[2].step = parts.timed("optimizers", patched[2].step)
    patched[3].loop = recorder.phase("loop", patched[3].loop)
    recorder.phases["imports"] = time.time() - recorder.started
    try:
        train(job["values"], Path(job["run_dir"]), base=Path(), callback=recorder)
    except Exception as error:
        if not recorder.should_stop():
            print(RESULT + json.dumps({"error": f"{type(error).__name__}: {error}", "ends": recorder.ends}))
            raise
    result = {
        "start": IMPORTS - recorder.started,
        "phases": recorder.phases,
        "parts": parts.medians(SKIPPED),
        "groups": {} if recorder.profiler is None else recorder.profiler.groups,
        "ends": recorder.ends,
        "losses": recorder.losses,
        "validations": recorder.validations,
        "reached": recorder.reached,
        "notes": recorder.notes,
        "peak_memory": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0,
        "graphs": _num_graphs(),
    }
    print(RESULT + json.dumps(result))


def _num_graphs() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


if __name__ == "__main__":
    main()
