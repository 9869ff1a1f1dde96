"""A group of processes of which any one is killed at any moment, and that is started again, ends as if nothing had happened."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from killable import count_lines
from killable_group import KillableGroup
from small_runs import SilentCallback, leftovers, make_text, run_file, run_hashes, train_here

from weft import files, log
from weft.training import checkpoint


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def groups() -> Iterator[KillableGroup]:
    with KillableGroup() as server:
        yield server


def small(text: Path, strategy: str) -> dict[str, Any]:
    options = {"data__read_as": "stream", "train__ema_decay": 0.9, "train__max_steps": 24, "train__num_validations": 12}
    return run_file(text, "gpt", train__parallel=strategy, **options)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("strategy", "kills", "size"),
    [
        ("fsdp", 3, 2),
        pytest.param("ddp", 50, 2, marks=pytest.mark.slow),
        pytest.param("fsdp", 50, 2, marks=pytest.mark.slow),
        pytest.param("fsdp", 20, 3, marks=pytest.mark.slow),
    ],
)
def test_a_group_killed_at_random_moments_ends_identically(tmp_path, text, groups, strategy, kills, size):
    """Half of the kills are at a random time, half before a random line of a save."""
    values, chance = small(text, strategy), random.Random(strategy)
    began = time.monotonic()
    assert groups.train(values, tmp_path / "whole", size=size)
    took, expected = time.monotonic() - began, run_hashes(tmp_path / "whole")
    killed, runs = 0, 0
    while killed < kills or (tmp_path / str(runs)).exists():
        out = tmp_path / str(runs)
        at = {"seconds": chance.uniform(0.1, 1.2) * took} if killed % 2 else {"line": chance.randrange(1, count_lines("save"))}
        if not groups.train(values, out, size=size, rank=chance.randrange(size), **(at if killed < kills else {})):
            killed += 1
            assert checkpoint.newest(out)[1] == []  # what is there is intact
            continue
        assert run_hashes(out) == expected
        assert leftovers(out) == []
        runs += 1
    assert killed == kills and runs > 0


def losses(out: Path) -> list[float]:
    return [record["valid_loss"] for record in log.read_log(out / "metrics.jsonl") if "valid_loss" in record]


def test_another_number_of_processes_resumes_from_shards(tmp_path, text, groups):
    """From two processes to three, and to one: the losses are those of one process alone, up to rounding."""
    values, out = {**small(text, "fsdp")}, tmp_path / "run"
    values["model"] = {**values["model"], "dropout": 0.0}  # its masks depend on the number of processes
    assert not groups.train(values, out, rank=1, line=2 * count_lines("save"))
    first, _ = checkpoint.newest(out)
    assert first is not None and files.read_json(first / "index.json")["processes"] == 2
    assert not groups.train(values, out, size=3, rank=2, line=count_lines("save"))
    second, _ = checkpoint.newest(out)
    assert second is not None and int(second.name) > int(first.name)
    assert files.read_json(second / "index.json")["processes"] == 3
    notes = SilentCallback()
    train_here(values, out, notes)
    assert notes.notes[-1] == f"resuming at step {int(second.name)}"
    train_here(values, tmp_path / "alone")
    assert losses(out) == pytest.approx(losses(tmp_path / "alone"), rel=1e-4)
    assert not (checkpoint.newest(out)[0] / "index.json").exists()
