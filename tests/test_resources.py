"""Measurement of free memory, peak memory, and the memory that a computation needs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from weft import resources as machine
from weft.resources import format_bytes, free_device_memory, measure_peak_memory

CPU = torch.device("cpu")


def test_size_format():
    assert [format_bytes(number) for number in (0, 999, 1000, 1_234_567, 2.5e9, 1e12, 1e16)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "1.2 MB",
        "2.5 GB",
        "1.0 TB",
        "10000.0 TB",
    ]


# ---- what is there


def test_free_memory_is_at_most_total_memory():
    free = free_device_memory(CPU)
    pages = int(next(line for line in Path("/proc/meminfo").read_text().split("\n") if "MemTotal" in line).split()[1])
    assert 0 < free <= pages * 1024


def place_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, contents: dict[str, str]) -> None:
    """Redirect the system files that are read to tmp_path."""
    for name, content in contents.items():
        path = tmp_path / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    monkeypatch.setattr(machine, "Path", lambda name: tmp_path / name.lstrip("/"))


@pytest.mark.parametrize(("limit", "free"), [("max", 3_000_000), ("1500000", 1_000_000), ("400000", 0)])
def test_container_limit_reduces_free_memory(tmp_path, monkeypatch, limit, free):
    place_files(
        monkeypatch,
        tmp_path,
        {
            "/proc/meminfo": "MemTotal:  9000 kB\nMemAvailable:  3000 kB\n".replace("3000 kB", f"{3_000_000 // 1024 + 1} kB"),
            "/sys/fs/cgroup/memory.max": f"{limit}\n",
            "/sys/fs/cgroup/memory.current": "500000\n",
        },
    )
    assert free_device_memory(CPU) == pytest.approx(free, abs=1024)


def test_without_cgroup_and_meminfo_free_pages_are_used(tmp_path, monkeypatch):
    place_files(monkeypatch, tmp_path, {})
    assert free_device_memory(CPU) > 0


MEMINFO = {"/proc/meminfo": "MemTotal:  9000000 kB\nMemAvailable:  8000000 kB\n"}
V2, V1 = "/sys/fs/cgroup", "/sys/fs/cgroup/memory"


@pytest.mark.parametrize(
    ("limit", "used", "cached"),
    [
        (f"{V2}/memory.max", f"{V2}/memory.current", "inactive_file"),
        (f"{V1}/memory.limit_in_bytes", f"{V1}/memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_page_cache_counts_as_free(tmp_path, monkeypatch, limit, used, cached):
    """A container that has read a large file reports little free memory but can still allocate it."""
    group = str(Path(limit).parent)
    stat = f"anon 1000000\nactive_file 5\n{cached} 3500000000\nslab 7\n"
    place_files(
        monkeypatch,
        tmp_path,
        {**MEMINFO, limit: "4000000000\n", used: "3900000000\n", f"{group}/memory.stat": stat},
    )
    assert free_device_memory(CPU) == 4_000_000_000 - 400_000_000


def test_page_cache_beyond_current_usage_adds_no_free_memory(tmp_path, monkeypatch):
    stat = {f"{V2}/memory.stat": "inactive_file 999\n", f"{V2}/memory.max": "1000", f"{V2}/memory.current": "500"}
    place_files(monkeypatch, tmp_path, {**MEMINFO, **stat})
    assert free_device_memory(CPU) == 1000


def test_the_tightest_cgroup_counts(tmp_path, monkeypatch):
    inner = f"{V2}/user.slice/job.scope"
    limits = {f"{inner}/memory.max": "3000\n", f"{inner}/memory.current": "1000\n", f"{V2}/user.slice/memory.max": "max\n"}
    damaged = {f"{V2}/user.slice/memory.current": "many\n", f"{inner}/memory.stat": "inactive_file\n\n"}
    place_files(monkeypatch, tmp_path, {**MEMINFO, **limits, **damaged, "/proc/self/cgroup": "0::/user.slice/job.scope\n"})
    assert free_device_memory(CPU) == 2000


def test_macos_has_no_free_page_count(tmp_path, monkeypatch):
    """It has no /proc and no sysconf name for free pages."""
    place_files(monkeypatch, tmp_path, {})
    sysconf_values = {"SC_PAGE_SIZE": 16384, "SC_PHYS_PAGES": 1_048_576}

    def sysconf(name: str) -> int:
        if name not in sysconf_values:
            raise ValueError("unrecognized configuration name")
        return sysconf_values[name]

    monkeypatch.setattr(machine.os, "sysconf", sysconf)
    assert free_device_memory(CPU) == 16384 * 1_048_576


@pytest.mark.parametrize(("system", "unit"), [("linux", 1024), ("darwin", 1)])
def test_peak_memory_is_in_bytes(monkeypatch, system, unit):
    monkeypatch.setattr(machine.sys, "platform", system)
    monkeypatch.setattr(machine.resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=5000))
    assert machine.peak_memory() == 5000 * unit


def test_memory_reserved_by_torch_counts_as_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 70)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 50)
    assert free_device_memory(torch.device("cuda")) == 120


# ---- what work takes


def chain(rows: int) -> None:
    """At most two of three tensors at once, of 40, 400 and 4000 bytes per row."""
    small = torch.zeros(rows, 10)
    middle = small.repeat(1, 10)
    del small
    large = middle.repeat(1, 10)
    del middle, large


def shared(rows: int) -> None:
    """4000 bytes for all rows together, 400 per row, and free views of them."""
    mask = torch.zeros(1, 1000)
    each = torch.zeros(rows, 100)
    views = [each[:1], each.t(), mask.expand(rows, -1)]
    del mask, each, views


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 100])
def test_peak_memory_is_extrapolated_from_a_few_rows(rows):
    ran = []

    def noted(count):
        ran.append(count)
        chain(count)

    assert measure_peak_memory(noted, rows) == rows * 4400
    assert ran == ([rows] if rows <= 3 else [2, 3])
    assert measure_peak_memory(shared, rows) == 4000 + 400 * rows


def test_memory_allocated_before_is_not_counted():
    before = torch.zeros(1000)
    assert measure_peak_memory(lambda rows: [before.view(10, 100), before + 1], 1) == 4000
    assert measure_peak_memory(lambda rows: before.add_(1), 1) == 0


def test_peak_memory_is_scaled_if_operations_differ_by_size():
    def uneven(rows):
        for _ in range(rows):
            torch.zeros(100)
        return torch.zeros(100 * rows)

    assert measure_peak_memory(uneven, 9) == 9 * 400


def test_backward_pass_is_measured():
    """x is kept for the backward pass, which has at most three live gradients: of y, of x * x, of a factor, and their sum."""
    x = torch.ones(1000, requires_grad=True)
    assert measure_peak_memory(lambda rows: torch.autograd.grad((x * x).sum(), [x]), 1) >= 2 * 4000
