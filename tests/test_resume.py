"""A run that is killed or stopped at any moment and resumed gives the same bits as an uninterrupted run."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from killable import Killable, count_lines
from small_runs import SilentCallback, flip_bit, leftovers, make_text, run_file, run_hashes, train_here

from weft import files
from weft.errors import ModelError, TrainingInterrupted
from weft.tensors import read_listed, write_tensors
from weft.training import checkpoint
from weft.training import loop_checkpoint as saving
from weft.training.ema import EMA
from weft.training.train_state import TrainState

SETUPS: dict[str, dict[str, Any]] = {
    "conv": {"model": "conv"},
    "lstm-stream": {"model": "lstm", "data__read_as": "stream"},
    "transformer": {"model": "transformer", "train__micro_batches": 2},
    "gpt-stream": {"model": "gpt", "data__read_as": "stream"},
    "gpt-stream-average": {"model": "gpt", "data__read_as": "stream", "train__ema_decay": 0.9},
}
FAST = ("gpt-stream-average",)  # killed in the fast tests
every_setup = pytest.mark.parametrize("setup", SETUPS)
# kill before every fifth line in the fast tests, before every line in the slow ones
line_steps = pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def children() -> Iterator[Killable]:
    with Killable() as server:
        yield server


def setup_file(text: Path, setup: str, *, steps: int, validations: int) -> dict[str, Any]:
    return run_file(text, train__max_steps=steps, train__num_validations=validations, **SETUPS[setup])


def training(out: Path) -> bool:
    """Whether a run has started training and has not ended."""
    actual, _ = checkpoint.newest(out)
    begun = (out / "metrics.jsonl").exists()
    return begun and (actual is None or not files.read_json(actual / "train_state.json")["done"])


def steps_saved(out: Path) -> int:
    return max(map(int, checkpoint.names(out)), default=0)


# ---- killed

KILLS = 6  # per setup, 30 in total


@pytest.mark.parametrize("setup", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in SETUPS])
def test_a_run_killed_at_random_moments_ends_identically(tmp_path, text, children, setup):
    values = setup_file(text, setup, steps=48, validations=24)
    began = time.monotonic()
    assert children.train(values, tmp_path / "whole")
    took = time.monotonic() - began
    expected, chance = run_hashes(tmp_path / "whole"), random.Random(setup)
    kills, share, folders = 0, 0.6, count()
    out = tmp_path / f"killed-{next(folders)}"
    while kills < KILLS or out.exists():
        before = steps_saved(out)
        limit = chance.uniform(0, share * took) if kills < KILLS else None
        if children.train(values, out, seconds=limit):
            assert run_hashes(out) == expected
            assert leftovers(out) == []
            out = tmp_path / f"killed-{next(folders)}"  # restart until there are enough kills
            continue
        kills += training(out)
        # on a slow machine, child processes need longer to make progress
        share = 0.6 if steps_saved(out) > before else 1.2 * share
    assert kills >= KILLS


@line_steps
def test_kill_before_each_line_of_saving(tmp_path, text, children, step):
    """Each child process continues the run and dies one line later in its first save than the previous one."""
    values = setup_file(text, "gpt-stream-average", steps=80, validations=80)
    assert children.train(values, tmp_path / "whole")
    expected, out, kills = run_hashes(tmp_path / "whole"), tmp_path / "killed", 0
    for line in range(1, count_lines("save") + 1, step):
        if not children.train(values, out, before=("save", line)):
            kills += 1
            continue
        assert run_hashes(out) == expected
        shutil.rmtree(out)
    assert children.train(values, out)
    assert run_hashes(out) == expected
    assert leftovers(out) == []
    assert kills >= 20 // step


@line_steps
def test_kill_before_each_line_of_starting(tmp_path, text, children, step):
    """Before the first checkpoint, the same command completes what is missing."""
    values = setup_file(text, "conv", steps=1, validations=1)
    assert children.train(values, tmp_path / "whole")
    expected, line = run_hashes(tmp_path / "whole"), 1
    while not children.train(values, out := tmp_path / f"killed-{line}", before=("begin", line)):
        assert children.train(values, out), line
        assert run_hashes(out) == expected
        assert leftovers(out) == []
        assert (out / "run.toml").read_bytes() == (tmp_path / "whole" / "run.toml").read_bytes()
        line += step
    assert line > 20


@pytest.mark.slow
def test_kill_while_an_old_run_is_backed_up(tmp_path, text, children):
    """Both the new run and the old run can be resumed."""
    old, new = (setup_file(text, setup, steps=1, validations=1) for setup in ("transformer", "conv"))
    assert children.train(new, tmp_path / "whole")
    assert children.train(old, tmp_path / "old")
    line = 1
    while True:
        out = tmp_path / f"killed-{line}"
        shutil.copytree(tmp_path / "old", out)
        ended = children.train(new, out, before=("aside", line), overwrite=True)
        if not ended:
            shutil.copytree(out, tmp_path / f"back-{line}")
            assert children.train(old, tmp_path / f"back-{line}")
            assert run_hashes(tmp_path / f"back-{line}") == run_hashes(tmp_path / "old")
            assert leftovers(tmp_path / f"back-{line}") == []
        assert ended or children.train(new, out, overwrite=True)
        assert run_hashes(out) == run_hashes(tmp_path / "whole")
        assert leftovers(out) == []
        if ended:
            break
        line += 2  # two lines per moved file
    assert line > 15


# ---- stopped


@every_setup
def test_a_run_stopped_after_every_step_ends_identically(tmp_path, text, setup):
    values, steps = setup_file(text, setup, steps=9, validations=3), 9
    full, out = SilentCallback(), tmp_path / "stopped"
    train_here(values, tmp_path / "whole", full)
    losses = []
    for step in range(1, steps):
        callback = SilentCallback(stop_at=step)
        with pytest.raises(TrainingInterrupted):
            train_here(values, out, callback)
        losses += callback.losses
        assert steps_saved(out) == step
        assert ("resuming at step" in "".join(callback.notes)) == (step > 1)
    last = SilentCallback()
    train_here(values, out, last)
    assert last.notes == ["resuming at step 8"]
    assert losses + last.losses == full.losses
    assert run_hashes(out) == run_hashes(tmp_path / "whole")
    assert len(checkpoint.names(out)) == 2


def test_a_stop_at_the_last_step_is_the_end(tmp_path, text):
    values = setup_file(text, "conv", steps=4, validations=2)
    train_here(values, tmp_path / "whole")
    train_here(values, tmp_path / "stopped", SilentCallback(stop_at=4))
    assert run_hashes(tmp_path / "stopped") == run_hashes(tmp_path / "whole")


def test_a_finished_run_is_not_trained_again(tmp_path, text):
    values = setup_file(text, "lstm-stream", steps=4, validations=2)
    train_here(values, tmp_path / "run")
    before, again = run_hashes(tmp_path / "run"), SilentCallback()
    train_here(values, tmp_path / "run", again)
    assert again.losses == []
    assert run_hashes(tmp_path / "run") == before


def test_patience_is_counted_across_resumes(tmp_path, text):
    """A learning rate far too high: the score gets worse, and each validation is in another process."""
    values = run_file(text, "conv", train__max_steps=40, train__num_validations=40, train__lr=2.0, train__patience=3)
    full = SilentCallback()
    train_here(values, tmp_path / "whole", full)
    ended = full.scores[-1][0]
    assert ended < 40
    assert len(full.losses) == ended
    for step in range(1, ended):
        with pytest.raises(TrainingInterrupted):
            train_here(values, tmp_path / "stopped", SilentCallback(stop_at=step))
    train_here(values, tmp_path / "stopped")
    assert run_hashes(tmp_path / "stopped") == run_hashes(tmp_path / "whole")


# ---- damaged


def stopped_run(tmp_path: Path, values: dict[str, Any], step: int) -> Path:
    """A run that was stopped at `step`, next to the uninterrupted one."""
    train_here(values, tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        train_here(values, tmp_path / "stopped", SilentCallback(stop_at=step))
    return tmp_path / "stopped"


def listed_again(folder: Path) -> None:
    """Rewrite the manifest of a checkpoint that was changed on purpose."""
    manifest = files.read_json(folder / files.MANIFEST)
    files.write_manifest(folder, {name: manifest[name] for name in ("owner", "vocabulary", "data")})


FILES = [
    "model.safetensors",
    "optimizer.safetensors",
    "state.safetensors",
    "train_state.json",
    "metrics.jsonl",
    "manifest.json",
]


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_falls_back_to_the_previous_one(tmp_path, text, name):
    values = setup_file(text, "lstm-stream", steps=8, validations=4)
    out = stopped_run(tmp_path, values, 5)
    newest = out / "checkpoints" / "000005"
    flip_bit(newest / name)
    with pytest.raises(ModelError) as caught:
        files.verify(newest)
    callback = SilentCallback()
    train_here(values, out, callback)
    assert callback.notes == [f"{caught.value}; resuming from the previous checkpoint", "resuming at step 4"]
    assert run_hashes(out) == run_hashes(tmp_path / "whole")


def test_without_an_intact_checkpoint_a_run_restarts_with_a_note(tmp_path, text):
    values = setup_file(text, "conv", steps=8, validations=4)
    out = stopped_run(tmp_path, values, 5)
    for step in ("000004", "000005"):
        (out / "checkpoints" / step / "manifest.json").unlink()
    callback = SilentCallback()
    train_here(values, out, callback)
    places = [out / "checkpoints" / step for step in ("000005", "000004")]
    assert callback.notes[:3] == [
        *[f"{path}: incomplete (manifest.json is missing)" for path in places],
        "all checkpoints are corrupted; training restarts from step 0",
    ]
    assert [note.partition(": ")[0] for note in callback.notes[3:]] == [str(text)]  # including its tokenizer
    assert len(callback.losses) == 8
    assert run_hashes(out) == run_hashes(tmp_path / "whole")


@pytest.mark.parametrize("damage", [flip_bit, Path.unlink, lambda log: log.write_bytes(log.read_bytes()[:-10])])
def test_damaged_metrics_are_restored_from_the_checkpoint(tmp_path, text, damage):
    values = setup_file(text, "conv", steps=8, validations=4)
    out, callback = stopped_run(tmp_path, values, 5), SilentCallback()
    damage(out / "metrics.jsonl")
    train_here(values, out, callback)
    message = f"{out / 'metrics.jsonl'}: corrupted; restored from the checkpoint"
    assert callback.notes == [message, "resuming at step 5"]
    assert run_hashes(out) == run_hashes(tmp_path / "whole")


def test_a_train_state_of_another_log_is_rejected(tmp_path, text):
    values = setup_file(text, "conv", steps=8, validations=4)
    newest = stopped_run(tmp_path, values, 5) / "checkpoints" / "000005"
    cursor, size = files.read_json(newest / "train_state.json"), (newest / "metrics.jsonl").stat().st_size
    files.write_json(newest / "train_state.json", {**cursor, "metrics": 0})
    listed_again(newest)
    with pytest.raises(ModelError) as caught:
        train_here(values, tmp_path / "stopped")
    message = f"{newest / 'metrics.jsonl'}: corrupted: {size} bytes, but train_state.json expects 0"
    assert str(caught.value) == message


@pytest.mark.parametrize("change", [lambda part: part[:-1], None], ids=["shape", "name"])
def test_ema_weights_of_another_model_are_rejected(tmp_path, text, change):
    values = setup_file(text, "gpt-stream-average", steps=8, validations=4)
    out = stopped_run(tmp_path, values, 5)
    path = out / "checkpoints" / "000005" / "average.safetensors"
    averages = read_listed(path)[0]
    weight = averages.pop("embedding.weight")
    write_tensors(path, averages | ({} if change is None else {"embedding.weight": change(weight)}))
    listed_again(path.parent)
    with pytest.raises(ModelError) as caught:
        train_here(values, out)
    assert str(caught.value) == (f"{path}: does not match the model of this run: other names or shapes of weights")


def test_a_checkpoint_of_another_model_is_rejected(tmp_path, text):
    values = setup_file(text, "conv", steps=8, validations=4)
    out = stopped_run(tmp_path, values, 5)
    newest = out / "checkpoints" / "000005"
    shutil.rmtree(newest)
    train_here(run_file(text, "conv", model__hidden_size=16, train__max_steps=5), tmp_path / "other")
    shutil.copytree(tmp_path / "other" / "checkpoints" / "000005", newest)
    with pytest.raises(ModelError) as caught:
        train_here(values, out)
    assert str(caught.value).startswith(
        f"{newest}: does not match the model of this run: Error(s) in loading state_dict for LanguageModel: "
        "size mismatch for embedding.weight: "
    )
    assert "\n" not in str(caught.value)


def test_a_train_state_of_another_version_is_rejected(tmp_path, text):
    values = setup_file(text, "conv", steps=8, validations=4)
    out = stopped_run(tmp_path, values, 5)
    path = out / "checkpoints" / "000005" / "train_state.json"
    for content in ({**TrainState().to_json(), "more": 1}, {"step": 1}, [], None):
        files.write_json(path, content)
        listed_again(path.parent)
        with pytest.raises(ModelError) as caught:
            train_here(values, out)
        assert str(caught.value) == f"{path}: not a training state of this version of weft"


# ---- what is in a checkpoint


def test_checkpoint_contents(tmp_path, text):
    values = setup_file(text, "gpt-stream", steps=8, validations=4)
    out = stopped_run(tmp_path, values, 5)
    newest = out / "checkpoints" / "000005"
    assert sorted(path.name for path in newest.iterdir()) == sorted(FILES)
    weights, _ = read_listed(newest / "model.safetensors")
    optimizer, _ = read_listed(newest / "optimizer.safetensors")
    owners = {name.rpartition("/")[0] for name in optimizer}
    assert owners == set(weights)
    keys = {name.rpartition("/")[2] for name in optimizer}
    assert keys == {"momentum", "step", "exp_avg", "exp_avg_sq"}
    carry, notes = read_listed(newest / "state.safetensors")
    # the length, and keys, values and positions of the attention layer; the feed-forward layer has no state
    assert notes == {"shape": "[0, [[0, 0, 0], []]]"}
    assert carry["0000"].tolist() == [[5 * 16]] * 4
    assert files.read_json(newest / "train_state.json")["step"] == 5


def test_ema_weights_are_saved_in_checkpoints_and_restored(tmp_path, text, monkeypatch):
    values = setup_file(text, "gpt-stream-average", steps=8, validations=4)
    out = stopped_run(tmp_path, values, 5)
    newest = out / "checkpoints" / "000005"
    assert sorted(path.name for path in newest.iterdir()) == sorted([*FILES, "average.safetensors"])
    weights, averages = (read_listed(newest / f"{name}.safetensors")[0] for name in ("model", "average"))
    assert set(averages) == set(weights)
    assert not any(torch.equal(averages[name], weights[name]) for name in weights if weights[name].dim() == 2)
    shutil.copytree(out, tmp_path / "lost")
    with monkeypatch.context() as patch:
        patch.setattr(EMA, "restore", lambda average, tensors, path: None)
        train_here(values, tmp_path / "lost")
    train_here(values, out)
    expected, lost = run_hashes(tmp_path / "whole"), run_hashes(tmp_path / "lost")
    assert run_hashes(out) == expected
    # training itself does not depend on them
    assert {name for name in expected if lost[name] != expected[name]} >= {"average", "best", "metrics"}
    assert all(lost[name] == expected[name] for name in ("model", "optimizer", "state"))


def test_resuming_without_the_carried_state_gives_other_weights(tmp_path, text, monkeypatch):
    values = setup_file(text, "lstm-stream", steps=8, validations=4)
    out = stopped_run(tmp_path, values, 5)
    unflatten = saving.unflatten
    monkeypatch.setattr(saving, "unflatten", lambda shape, tensors: None)
    shutil.copytree(out, tmp_path / "lost")
    train_here(values, tmp_path / "lost")
    monkeypatch.setattr(saving, "unflatten", unflatten)
    train_here(values, out)
    assert run_hashes(out) == run_hashes(tmp_path / "whole")
    assert run_hashes(tmp_path / "lost")["model"] != run_hashes(out)["model"]
