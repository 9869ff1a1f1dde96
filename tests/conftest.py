"""Shared fixtures. A module that uses `work_dir` or `trained_dir` defines its run file as the constant RUN."""

from __future__ import annotations

import gc
import math
from collections.abc import Generator
from pathlib import Path

import pytest
import torch
from command_line import TEXT

from weft.cli.main import main
from weft.training import compilation


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without looking for garbage: modules and tests stay until the end, and are not looked at later either."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def no_progress_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off the progress lines that are printed every few seconds, so that output does not depend on the time taken."""
    monkeypatch.setattr("weft.cli.display.LOG_SECONDS", math.inf)


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test cuts the power: waiting for the disk would take a tenth of the time of all tests."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.fixture
def restore_openmp_env(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the OpenMP variables, which `main` sets, after the test."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture
def work_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """The current directory, with a small run file and its data."""
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "run.toml").write_text(request.module.RUN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trained_dir(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """`work_dir` with its run, trained."""
    assert main(["train", "run.toml", "--quiet"]) == 0
    capsys.readouterr()
    return work_dir


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.GraphModule]:
    """The graphs that were traced; they run as they are, for a compiler of code would take minutes."""
    results: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        results.append(graph)
        return graph

    torch.compiler.reset()
    monkeypatch.setattr(compilation, "BACKEND", keep)
    return results
