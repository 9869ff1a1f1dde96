"""One of several processes that measure exchanges and training steps: `_cost_worker.py PLAN RANK SIZE ADDRESS INTERFACE`.

The plan is a JSON file with a list of measurements, which all processes make together. Before measurement I, the first process
waits for the file go-I beside the plan, so that the network can be changed; then every process writes result-I-RANK.json.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from weft.parallel.group import ALONE, Group
from weft.parallel.join import Place, join, leave
from weft.runs.job import JobInputs, train
from weft.training.data_parallel import sharded_together
from weft.training.loop import Loop
from weft.training.muon import Muon

PORT, POLL_SECONDS = 29600, 0.05
WARMUP = 3  # first repetitions and steps, which are not counted


class Recorder:
    """A callback that records the duration of every step, and the bytes that the host has sent so far."""

    def __init__(self, device: str) -> None:
        self.device, self.times, self.sent = device, list[float](), list[int]()
        self.layout: dict[str, Any] = {}

    def on_note(self, text: str) -> None: ...

    def on_data(self, summary: str) -> None: ...

    def on_progress(self, name: str, done: int, total: int) -> None: ...

    def on_step(self, loop: Loop, loss: float, seconds: float) -> None:
        self.layout = self.layout or layout(loop)
        self.times.append(time.perf_counter())  # not `seconds`: a step ends with an exchange after this call
        self.sent.append(sent_bytes(self.device))

    def on_fit(self, num_parameters: int, metrics: Mapping[str, float]) -> None: ...

    def on_validation(self, loop: Loop, scores: dict[str, float]) -> None: ...

    def should_stop(self) -> bool:
        return False

    def result(self) -> dict[str, Any]:
        sent = median(after - before for before, after in pairwise(self.sent[WARMUP - 1 :]))  # a checkpoint gathers weights
        seconds = [after - before for before, after in pairwise(self.times[WARMUP - 1 :])]
        return {"seconds": sorted(seconds), "sent": sent, "layout": self.layout}


def layout(loop: Loop) -> dict[str, Any]:
    """The shapes of the trained weights, as `_step_cost.Layout` has them."""
    model = loop.loss_module.model
    layers = [[weight for layer in layers for weight in layer.parameters()] for layers in sharded_together(model)]
    inside = {id(weight) for layer in layers for weight in layer}
    outside = [list(weight.shape) for weight in model.parameters() if id(weight) not in inside]
    muon = [optimizer for optimizer in loop.optimizers.optimizers if isinstance(optimizer, Muon)]
    counts = Counter(tuple(weight.shape) for optimizer in muon for group in optimizer.groups for weight in group.weights)
    shapes = [[list(weight.shape) for weight in layer] for layer in layers]
    return {"outside": outside, "layers": shapes, "muon": [(count, shape) for shape, count in counts.items()]}


def sent_bytes(device: str) -> int:
    """The bytes that the host has sent to its network, as the kernel counts them."""
    lines = Path("/proc/self/net/dev").read_text().split("\n")
    counters = next((line.split(":")[1].split() for line in lines if line.strip().startswith(device + ":")), None)
    return 0 if counters is None else int(counters[8])


def exchange(kind: str, num_bytes: int, group: Group) -> Callable[[], object]:
    """An exchange of a tensor of this size: the whole one for gathering and scattering, that of a process for all_to_all."""
    whole = torch.zeros(max(group.size, num_bytes // 4 // group.size * group.size))
    part, process_group = torch.zeros(len(whole) // group.size), group.process_group
    return {
        "all_reduce": lambda: dist.all_reduce(whole, group=process_group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group=process_group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=process_group),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(whole), whole, group=process_group),
    }[kind]


def measure_exchange(job: dict[str, Any], group: Group, device: str) -> dict[str, Any]:
    call, seconds, sent = exchange(job["exchange"], job["bytes"], group), [], 0
    for repeat in range(WARMUP + job["repeats"]):
        if repeat == WARMUP:
            group.barrier()
            sent = sent_bytes(device)
        group.barrier()
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return {"seconds": sorted(seconds[WARMUP:]), "sent": (sent_bytes(device) - sent) / job["repeats"]}


def measure_training(job: dict[str, Any], group: Group, device: str) -> dict[str, Any]:
    """The duration of training steps of the group, or of every process alone with a batch of its own."""
    recorder = Recorder(device)
    out, inputs = Path(job["out"]), JobInputs(group=group)
    if job["alone"]:
        out, inputs = out.with_name(f"{out.name}-{group.rank}"), JobInputs(group=ALONE)
    train(job["values"], out, base=out.parent, callback=recorder, inputs=inputs)
    return recorder.result()


def main() -> None:
    plan, address, device = Path(sys.argv[1]), sys.argv[4], sys.argv[5]
    rank, size = int(sys.argv[2]), int(sys.argv[3])
    os.environ["GLOO_SOCKET_IFNAME"] = device
    torch.set_num_threads(1)
    place = Place(rank, size, 0, f"host{rank}", address, PORT)
    group = join(place, device="cpu", on_lost=lambda group, rank: os._exit(7))
    for number, job in enumerate(json.loads(plan.read_text())):
        while group.leads and not (plan.parent / f"go-{number}").exists():
            time.sleep(POLL_SECONDS)
        group.barrier()
        measure = measure_exchange if "exchange" in job else measure_training
        result = measure(job, group, device)
        group.barrier()
        temporary = plan.parent / f"part-{number}-{rank}"
        temporary.write_text(json.dumps(result))
        temporary.rename(plan.parent / f"result-{number}-{rank}.json")
    leave(group)


if __name__ == "__main__":
    main()
