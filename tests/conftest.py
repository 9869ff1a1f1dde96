"""A place for the command line to work in. A module that asks for it says in RUN what its run file is."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from command_line import TEXT

from weft.cli.main import main


@pytest.fixture(autouse=True)
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command says depends on no clock: it tells no file of its progress, however slow the machine is today."""
    monkeypatch.setattr("weft.cli.display.LOG_SECONDS", math.inf)


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test cuts the power: waiting for the disk would take a tenth of the time of all tests."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.fixture
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `main` says to OpenMP is forgotten after each test."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A folder with a small run file and its data."""
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "run.toml").write_text(request.module.RUN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trained(here: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The same with its run, trained."""
    assert main(["train", "run.toml", "--quiet"]) == 0
    capsys.readouterr()
    return here
