"""A callback that measures training steps on a GPU, and profiles some."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from typing import Any

import torch

from weft.training.cuda_graphs import GraphedReplica
from weft.training.loop import Loop

RECORDING_STEPS, MEASURED_STEPS = 400, 270  # at least, in whole epochs, so that all shapes occur
WARMUP_STEPS, PROFILED_STEPS = 20, 5  # without recording; profiled after the measurement


class Clock:
    """A callback that measures steps, and stops the training after the last one or when the time is up."""

    def __init__(self, *, seconds: float, profile: bool = False, num_steps: int | None = None) -> None:
        self.seconds, self.profile, self.num_steps = seconds, profile, num_steps
        self.began, self.losses, self.notes = time.perf_counter(), list[float](), list[str]()
        self.start: tuple[float, int, int] | None = None  # time, step and tokens at the start of the measurement
        self.end = (0.0, 0, 0)
        self.step_times: list[float] = []
        self.table = ""
        self.profiler: Any = None
        self.loop: Loop | None = None
        self.epoch_steps: int | None = None  # steps per epoch

    def steps(self, loop: Loop) -> tuple[int, int]:
        """The number of steps before and in the measurement."""
        if self.num_steps is not None:
            return 0, self.num_steps
        if self.epoch_steps is None:  # only once: a sampler keeps the order of one epoch
            self.epoch_steps = loop.batch_sampler.batches(0)
        recording, measured = (-(-steps // self.epoch_steps) * self.epoch_steps for steps in (RECORDING_STEPS, MEASURED_STEPS))
        return recording if isinstance(loop.replica, GraphedReplica) else WARMUP_STEPS, measured

    def on_step(self, loop: Loop, loss: float, seconds: float) -> None:
        self.loop, step = loop, loop.train_state.step
        self.losses.append(loss)
        before, measured = self.steps(loop)
        if step <= before or self.profiler is not None:
            if step == before:
                self.start = (synchronized_time(), step, loop.train_state.tokens)
            self._profile(loop)
            return
        self.end = (synchronized_time() if step >= before + measured else time.perf_counter(), step, loop.train_state.tokens)
        self.step_times.append(time.perf_counter())
        if self.profile and step >= before + measured:
            self._profile(loop)

    def _profile(self, loop: Loop) -> None:
        """Profile the steps after the measurement."""
        _, step, _ = self.end
        if self.profiler is None:
            if not step:
                return
            activities = [torch.profiler.ProfilerActivity.CPU]
            activities += [torch.profiler.ProfilerActivity.CUDA] if torch.cuda.is_available() else []
            self.profiler = torch.profiler.profile(activities=activities)
            synchronized_time()
            self.profile_start = time.perf_counter()
            self.profiler.start()
        elif loop.train_state.step == step + PROFILED_STEPS:
            seconds = synchronized_time() - self.profile_start
            self.profiler.stop()
            self.table = profile_table(self.profiler, seconds)
            self.profile = False

    def should_stop(self) -> bool:
        if time.perf_counter() - self.began > self.seconds and self.profiler is None:
            self.profile = False
            return True
        if self.loop is None:
            return False
        before, measured = self.steps(self.loop)
        return self.loop.train_state.step >= before + measured and not self.profile

    def rate(self) -> tuple[float, float] | None:
        """Target tokens per second, and milliseconds per step."""
        if self.start is None or self.end[1] <= self.start[1]:
            return None
        (start, first, tokens), (end, last, all_tokens) = self.start, self.end
        return (all_tokens - tokens) / (end - start), 1e3 * (end - start) / (last - first)

    def median_ms(self) -> float:
        """The median time of a step, by the clock of the host."""
        times = [1e3 * (after - before) for before, after in zip(self.step_times, self.step_times[1:], strict=False)]
        return statistics.median(times) if times else 0.0

    def on_note(self, text: str) -> None:
        self.notes.append(text)

    def on_data(self, summary: str) -> None: ...

    def on_progress(self, phase: str, done: int, total: int) -> None: ...

    def on_validation(self, loop: Loop, scores: dict[str, float]) -> None: ...

    def on_fit(self, num_parameters: int, scores: dict[str, float]) -> None: ...


def synchronized_time() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def profile_table(profiler: Any, seconds: float) -> str:
    """The kernels that take the most time, launches per step, and the fraction of the time in which the GPU works."""
    averages = profiler.key_averages()
    is_gpu = torch.cuda.is_available()
    sort = "self_device_time_total" if is_gpu else "self_cpu_time_total"
    calls = Counter({event.key: event.count for event in averages})
    launches = {
        name: count for name, count in calls.items() if name.startswith(("cudaLaunch", "cudaGraphLaunch", "cudaMemcpy"))
    }
    kernels = [event for event in profiler.events() if "CUDA" in str(event.device_type)]
    busy = sum(event.self_device_time_total for event in kernels) / 1e6 if is_gpu else 0.0
    return "\n".join(
        [
            averages.table(sort_by=sort, row_limit=30, max_name_column_width=70),
            f"per step: {1e3 * seconds / PROFILED_STEPS:.2f} ms, {len(kernels) / PROFILED_STEPS:.0f} kernels, GPU busy "
            f"{100 * busy / seconds:.0f}%, calls " + ", ".join(f"{n} {c / PROFILED_STEPS:.0f}" for n, c in launches.items()),
        ]
    )
