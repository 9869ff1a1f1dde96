"""Sizes, times and the training callback of `gpu_recurrent.py`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

REPEATS, WARMUP_STEPS = 3, 3


class Size(NamedTuple):
    num_layers: int = 2
    dim: int = 512
    rows: int = 64
    length: int = 256
    vocab_size: int = 65
    calls: int = 10  # per repetition
    loss_positions: int = 32 * 1024
    loss_dim: int = 768
    loss_vocab_size: int = 50_304


TINY = Size(2, 16, 4, 12, 11, 1, 64, 8, 97)


class Bench:
    """Times functions on one device and remembers the medians."""

    def __init__(self, device: torch.device, seconds: float, size: Size) -> None:
        self.device, self.size, self.end = device, size, time.perf_counter() + seconds
        self.medians: dict[str, float] = {}

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def milliseconds(self, work: Callable[[], object]) -> list[float]:
        """Milliseconds per call, one number per repetition."""
        for _ in range(WARMUP_STEPS):
            work()
        times = []
        for _ in range(REPEATS):
            self.wait()
            start = time.perf_counter()
            for _ in range(self.size.calls):
                work()
            self.wait()
            times.append(1e3 * (time.perf_counter() - start) / self.size.calls)
        return times

    def measure(self, name: str, build: Callable[[], Callable[[], object]], num_bytes: int = 0) -> None:
        """Time what `build` returns and print a line; a failure is printed too."""
        if time.perf_counter() > self.end:
            print(f"  {name:<54} skipped: the time is up", flush=True)
            return
        try:
            times = self.milliseconds(build())
        except Exception as error:  # the next line is worth more than a traceback
            print(f"  {name:<54} FAILED: {type(error).__name__}: {str(error).strip()[:300]}", flush=True)
            return
        self.medians[name] = median = statistics.median(times)
        rate = f"  {num_bytes / median / 1e6:>7.0f} GB/s" if num_bytes else ""
        print(f"  {name:<54} {median:>9.3f} ms  [{min(times):.3f}, {max(times):.3f}]{rate}", flush=True)

    def autocast(self) -> Any:
        return torch.autocast(self.device.type, torch.bfloat16)


def constant(work: Callable[[], object]) -> Callable[[], Callable[[], object]]:
    """A function that returns `work`, which needs no preparation."""
    return lambda: work


class Clock:
    """A callback that notes when steps end, and stops after `steps`."""

    def __init__(self, bench: Bench, steps: int) -> None:
        self.bench, self.times, self.losses, self.notes = bench, list[float](), list[float](), list[str]()
        self.steps, self.num_parameters = steps, 0

    def on_step(self, loop: Any, loss: float, seconds: float) -> None:
        if len(self.times) % 20 == 0:
            self.bench.wait()
        self.times.append(time.perf_counter())
        self.losses.append(loss)
        self.num_parameters = sum(weight.numel() for weight in loop.optimizers.weights)

    def on_note(self, text: str) -> None:
        self.notes.append(text)

    def on_data(self, summary: str) -> None: ...

    def on_progress(self, phase: str, done: int, total: int) -> None: ...

    def on_validation(self, loop: Any, scores: dict[str, float]) -> None: ...

    def on_fit(self, parameters: int, scores: dict[str, float]) -> None: ...

    def should_stop(self) -> bool:
        return len(self.times) > self.steps or time.perf_counter() > self.bench.end
