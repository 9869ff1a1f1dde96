"""Which parts of a training step take how long on a GPU, for _gpu_worker.py."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

PROFILED = 5  # steps
# groups of kernels by their names; the first that matches counts
GROUPS = {
    "loss": r"_loss_and_gradient|softmax|nll",
    "copies and casts": r"memcpy|memset|direct_copy|fillfunctor|catarray|^triton_poi_fused__to_copy_\d*$",
    "elementwise and norms, compiled": r"^triton_(poi|red|per)",
    "attention": r"flash|sdpa|fmha|attention|cudnn",
    "matrix products": r"nvjet|gemm|cutlass|cublas|xmma|splitk|^triton_tem",
    "optimizer": r"adam|multi_tensor|lpnorm",
    "scan": r"^_forward|^_backward",
    "others": r"",
}


class PartTimes:
    """Milliseconds of the passes and of the optimizers in each step, by events on the GPU, which cost the host nothing."""

    def __init__(self) -> None:
        self.events: dict[str, list[tuple[Any, Any]]] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, with events before and after it."""

        def call(*parts: Any, **options: Any) -> Any:
            if not torch.cuda.is_available():
                return function(*parts, **options)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            try:
                return function(*parts, **options)
            finally:
                end.record()
                self.events.setdefault(name, []).append((start, end))

        return call

    def medians(self, skipped: int) -> dict[str, float]:
        """Of all steps but the first ones."""
        if self.events:
            torch.cuda.synchronize()
        return {
            name: median(start.elapsed_time(end) for start, end in pairs[skipped:])
            for name, pairs in self.events.items()
            if len(pairs) > skipped
        }


class StepProfiler:
    """Profiles the steps from `first` on."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.profiler: Any = None
        self.groups: dict[str, float] = {}

    def after_step(self, step: int, device: torch.device) -> None:
        if step == self.first:
            activities = [torch.profiler.ProfilerActivity.CPU]
            activities += [torch.profiler.ProfilerActivity.CUDA] if device.type == "cuda" else []
            _synchronize(device)
            self.profiler = torch.profiler.profile(activities=activities)
            self.profiler.start()
            self.start = time.perf_counter()
        if step == self.first + PROFILED:
            _synchronize(device)
            seconds = time.perf_counter() - self.start
            self.profiler.stop()
            self.groups = print_profile(self.profiler, seconds)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def group_of(kernel: str) -> str:
    return next(group for group, pattern in GROUPS.items() if re.search(pattern, kernel, re.IGNORECASE))


def print_profile(profiler: Any, seconds: float) -> dict[str, float]:
    """Print the kernels that take the most time, and return milliseconds per step of each group of kernels."""
    averages = profiler.key_averages()
    kernels = [event for event in averages if str(event.device_type).endswith("CUDA")]
    groups: dict[str, float] = {}
    for event in sorted(kernels, key=lambda event: -event.self_device_time_total):
        groups[group_of(event.key)] = groups.get(group_of(event.key), 0.0) + event.self_device_time_total / 1e3 / PROFILED
    for event in sorted(kernels, key=lambda event: -event.self_device_time_total)[:32]:
        milliseconds = event.self_device_time_total / 1e3 / PROFILED
        print(f"  {milliseconds:8.3f} ms  {event.count / PROFILED:6.1f} x  {event.key[:110]}")
    launches = sum(event.count for event in averages if "LaunchKernel" in event.key) / PROFILED
    busy = sum(groups.values())
    print(f"  per step: {1e3 * seconds / PROFILED:.2f} ms, {busy:.2f} ms of kernels, {launches:.0f} launches, while profiled")
    for event in averages:
        if "Synchronize" in event.key or event.key in ("aten::item", "aten::_local_scalar_dense"):
            total = event.cpu_time_total / 1e3 / PROFILED
            print(f"  waits: {event.key}: {event.count / PROFILED:.1f} per step, {total:.3f} ms per step")
    return groups
