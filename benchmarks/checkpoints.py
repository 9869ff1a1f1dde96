"""The pause of training by a checkpoint: a Transformer with the sizes of GPT-2 small (124M parameters) and AdamW, whose
checkpoint has 1.5 GB and whose best weights have another 0.5 GB.

Target: training stops for at most 0.3 s. The pause is the time that the thread that trains spends on a checkpoint and the best
weights: the check that all weights are finite, and waiting for copies; of several processes, in the one that takes longest. The
extra time is that between the two steps around a checkpoint, less the median time between steps while nothing is written: on a
CPU, the thread that hashes and writes takes a core, so steps are slower meanwhile.

As in `weft train`, the processes divide the CPUs among their threads, and threads do not spin while they wait: a process whose
threads spin keeps the others from the CPUs. Variables of the environment, such as OMP_NUM_THREADS, take precedence.

    python benchmarks/checkpoints.py                  # CPU, or a GPU if there is one
    python benchmarks/checkpoints.py --foreground     # for comparison: training waits until everything is written
    python benchmarks/checkpoints.py --processes 2    # each process writes a part; --parallel ddp or fsdp
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from _common import verdict
from torch import nn

from weft.cli.threads import cpus
from weft.data.batching import Windows
from weft.data.corpus import Corpus
from weft.models.config import LanguageModelConfig
from weft.models.lm import language_model
from weft.parallel.group import Group
from weft.parallel.join import Place, join, leave
from weft.runs.run_dir import RunDir
from weft.tasks.lm.contexts import Context
from weft.tasks.lm.objective import LanguageModelObjective
from weft.training.config import TrainConfig
from weft.training.data_parallel import Replica, Replicated, Sharded
from weft.training.follower_log import FollowerLog
from weft.training.loop import DeviceConfig, Loop
from weft.training.loss_module import LossModule
from weft.training.optimizers import build_optimizers
from weft.training.run_log import RunLogWriter

VOCAB_SIZE, TARGET_SECONDS = 50_257, 0.3


class StepTimes:
    """A callback that records when each step ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step(self, loop: Loop, loss: float, seconds: float) -> None:
        if loop.device_config.device.type == "cuda":
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())

    def on_validation(self, loop: Loop, scores: dict[str, float]) -> None:
        pass

    def on_progress(self, phase: str, done: int, total: int) -> None:
        pass

    def should_stop(self) -> bool:
        return False


class Pauses:
    """Adds up how long the thread that trains is kept from it by each checkpoint, by step."""

    def __init__(self) -> None:
        self.paused: dict[int, float] = {}

    def count_checks(self, loop: Loop) -> None:
        """Count the time of the check that all weights are finite."""
        check = loop._check_finite

        def timed() -> None:
            with self.pause(loop):
                check()

        loop._check_finite = timed  # type: ignore[method-assign]

    def count_copies(self, loop: Loop) -> None:
        """Count the time that the next step waits for copies."""
        loop.copies = [TimedCopy(self, loop, copies=loop.copies)]

    @contextmanager
    def pause(self, loop: Loop) -> Iterator[None]:
        """Count the time in the block as a pause by the checkpoint of the latest step."""
        start, step = time.perf_counter(), loop.train_state.step
        yield
        self.paused[step] = self.paused.get(step, 0.0) + time.perf_counter() - start

    def of_all(self, group: Group) -> dict[int, float]:
        """The longest pause of any process: the next step waits for all of them."""
        steps = sorted(self.paused)
        by_rank = group.gather([self.paused[step] for step in steps])
        return {step: max(seconds) for step, *seconds in zip(steps, *by_rank, strict=True)}


class TimedFollowerLog(FollowerLog):
    """The log of another process than the first, with its pauses."""

    def __init__(self, path: Path, pauses: Pauses) -> None:
        super().__init__(path)
        self.pauses = pauses

    def save(self, loop: Loop) -> None:
        with self.pauses.pause(loop):
            super().save(loop)
        self.pauses.count_copies(loop)


class TimedRunLog(RunLogWriter):
    """Records when each checkpoint was complete, by step."""

    def __init__(self, run_dir: RunDir, pauses: Pauses) -> None:
        super().__init__(run_dir, "")
        self.written: dict[int, float] = {}
        self.pauses = pauses

    def save(self, loop: Loop) -> None:
        step, write = loop.train_state.step, self.timings.write

        def note(record: Any) -> None:  # the last thing that is written
            write(record)
            self.written[step] = time.perf_counter()

        self.timings.write = note  # type: ignore[method-assign]
        with self.pauses.pause(loop):
            super().save(loop)
        self.timings.write = write  # type: ignore[method-assign]
        self.pauses.count_copies(loop)

    def keep_best(self, loop: Loop, model: nn.Module) -> None:
        with self.pauses.pause(loop):
            super().keep_best(loop, model)


class TimedCopy(NamedTuple):
    """Waits for copies, and counts the time."""

    pauses: Pauses
    loop: Loop
    copies: list[Any]

    def wait(self) -> None:
        with self.pauses.pause(self.loop):
            for copy in self.copies:
                copy.wait()


def make_loop(args: argparse.Namespace, device: torch.device, group: Group) -> Loop:
    torch.manual_seed(0)
    options: dict[str, Any] = {"layer_type": "attention", "hidden_size": args.hidden_size, "num_layers": args.layers}
    options |= {"num_heads": 12, "tie_embeddings": True, "position_encoding": "learned"}
    sizes = LanguageModelConfig(**options).with_defaults()
    model = language_model(sizes, vocab_size=VOCAB_SIZE, context_length=args.context, vocabulary="").to(device)
    tokens = np.random.default_rng(0).integers(3, VOCAB_SIZE, args.rows * args.context * 50, dtype=np.uint16)
    corpus = Corpus("train", tokens, None, np.array([[0] * 4, [len(tokens)] * 4], dtype=np.int64), "")
    sampler = Windows(corpus, context_length=args.context, stride=args.context, rows=args.rows, seed=0)
    # what is learned does not matter; without norms, these layers diverge at 1e-3
    options = {"optimizer": "adamw", "lr": 1e-5, "max_steps": args.steps, "num_validations": args.checkpoints}
    config = TrainConfig(**options, batch_tokens=args.rows * args.context).with_defaults()
    objective: Any = LanguageModelObjective(
        carry_state=False, valid=None, context=Context("carry", args.context), device=device
    )
    loss_module = LossModule(objective, model)
    replica = Replica(loss_module)
    if group.size > 1 and args.parallel == "fsdp":
        replica = Sharded(loss_module, group, device)
    optimizers = build_optimizers(model, model.muon_parameters(), config, group)
    if group.size > 1 and args.parallel == "ddp":
        replica = Replicated(loss_module, group, has_unused=False)
    precision = torch.bfloat16 if device.type == "cuda" else torch.float32
    loop = Loop(
        loss_module,
        optimizers,
        sampler,
        config=config,
        seed=0,
        device_config=DeviceConfig(device, precision, group),
        replica=replica,
    )
    loop.copies_state = not args.foreground
    return loop


def measure(args: argparse.Namespace, directory: Path, group: Group) -> None:
    device = torch.device(args.device)
    if device.type == "cuda":
        device = torch.device("cuda", group.local_rank)
        torch.cuda.set_device(device)
    loop, times = make_loop(args, device, group), StepTimes()
    (directory / "resolved.toml").write_text("")
    pauses = Pauses()
    run_log = TimedRunLog(RunDir(directory), pauses) if group.leads else TimedFollowerLog(directory, pauses)
    pauses.count_checks(loop)
    loop.run(run_log, times)
    run_log.close()
    paused = pauses.of_all(group)
    if isinstance(run_log, TimedRunLog):
        report(args, loop, times, run_log, paused)


def report(args: argparse.Namespace, loop: Loop, times: StepTimes, run_log: TimedRunLog, paused: Mapping[int, float]) -> None:
    parameters, device = sum(weight.numel() for weight in loop.loss_module.parameters()), loop.device_config.device
    saves = [step for step in run_log.written if 2 < step < args.steps]
    intervals = {step: times.ends[step] - times.ends[step - 1] for step in range(2, args.steps)}  # after step `step`
    writing = [(times.ends[step - 1], run_log.written[step]) for step in saves]
    quiet = [
        interval
        for step, interval in intervals.items()
        if not any(a <= times.ends[step] and times.ends[step - 1] < b for a, b in writing)
    ]
    usual = statistics.median(quiet)
    pauses = [paused[step] for step in saves]
    processes = f"{loop.group.size} process{'' if loop.group.size == 1 else f'es ({args.parallel})'}"
    threads = f"{torch.get_num_threads()} thread{'' if torch.get_num_threads() == 1 else 's'}"
    print(f"{parameters / 1e6:.1f}M parameters on {device.type}, {processes} of {threads}, {usual:.3f} s per step")
    print(f"{'step':>6} {'pause':>9} {'extra time':>12} {'written after':>14}")
    for step, pause, (start, end) in zip(saves, pauses, writing, strict=True):
        print(f"{step:6} {pause:7.3f} s {intervals[step] - usual:10.3f} s {end - start:12.2f} s")
    print(f"largest pause {max(pauses):.3f} s, target {TARGET_SECONDS} s: {verdict(max(pauses) <= TARGET_SECONDS)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: a GPU if there is one")
    parser.add_argument("--steps", type=int, help="default: 24, on a GPU 240, so that a checkpoint is written before the next")
    parser.add_argument("--checkpoints", type=int, default=3, help="the last one is at the end of training")
    parser.add_argument("--rows", type=int, help="default: 1, on a GPU 16")
    parser.add_argument("--context", type=int, help="default: 64, on a GPU 1024")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden-size", type=int, default=768)
    parser.add_argument("--foreground", action="store_true", help="training waits until a checkpoint is written")
    parser.add_argument("--dir", type=Path, help="where to write; default: a temporary directory")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--parallel", choices=("ddp", "fsdp"), default="ddp")
    parser.add_argument("--rank", type=int, help="set by the program itself, for each process")
    parser.add_argument("--port", type=int, help="set by the program itself")
    args = parser.parse_args()
    args.device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    defaults = {"steps": 240, "rows": 16, "context": 1024} if args.device == "cuda" else {"steps": 24, "rows": 1, "context": 64}
    for name, value in defaults.items():
        setattr(args, name, getattr(args, name) or value)
    if args.rank is None:
        start_processes(args)
    elif args.processes == 1:
        measure(args, args.dir, Group())
    else:
        place = Place(args.rank, args.processes, args.rank, "", "127.0.0.1", args.port)
        group = join(place, device=args.device, on_lost=lambda group, rank: None)
        measure(args, args.dir, group)
        group.barrier()
        leave(group)


def start_processes(args: argparse.Namespace) -> None:
    """Run this program once per process of a group, with the threads that `weft train` gives it. How threads wait must be set
    before torch is imported."""
    threads = {"OMP_NUM_THREADS": str(max(1, cpus() // args.processes)), "OMP_WAIT_POLICY": "PASSIVE"}
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    with tempfile.TemporaryDirectory(dir=args.dir) as directory:
        words = [sys.executable, *sys.argv, "--dir", directory, "--port", str(port)]
        environment = {**threads, **os.environ}
        processes = [subprocess.Popen([*words, "--rank", str(rank)], env=environment) for rank in range(args.processes)]
        codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit(1)


if __name__ == "__main__":
    main()
