"""The run directory: contents, locking, overwriting and backup, integrity checks, and TensorBoard logs."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from small_runs import SilentCallback, flip_bit, make_text, run_file, run_hashes, train_here

import weft
from weft.config import read_toml
from weft.errors import DataError, InUseError, ModelError, ResourceError, TrainingInterrupted, UsageError, WeftError
from weft.lock import Lock
from weft.runs import run_dir as folder
from weft.runs.job import train
from weft.runs.resolve import resolve
from weft.runs.run_dir import RunDir, make_directory, open_run_dir
from weft.tasks.registry import TASKS, find_task
from weft.tensors import read_tensors, write_tensors
from weft.text.tokenizers import Tokenizer
from weft.training import checkpoint

KINDS = [(task, kind) for task, shared in ((name, find_task(name)) for name in TASKS) for kind in shared.presets]


def error_message(error_type: type[WeftError], call: Callable[[], object]) -> str:
    with pytest.raises(error_type) as caught:
        call()
    assert type(caught.value) is error_type
    return str(caught.value)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    """A run of 2 steps; copy it before you touch it."""
    out = tmp_path_factory.mktemp("runs") / "run"
    train_here(small(text), out)
    return out


@pytest.fixture
def run(tmp_path: Path, finished: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def small(text: Path, **options: Any) -> dict[str, Any]:
    return run_file(text, "conv", **{"train__max_steps": 2, "train__num_validations": 2, **options})


def contents(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


# ---- what is in it


def test_contents_of_a_run_directory(finished):
    assert sorted(path.name for path in finished.iterdir()) == [
        ".lock",
        "bos.json",
        "checkpoints",
        "data",
        "environment.json",
        "machines.jsonl",
        "metrics.jsonl",
        "model.safetensors",
        "resolved.toml",
        "run.toml",
        "timings.jsonl",
        "tokenizer.json",
    ]
    assert not (finished / ".lock").read_bytes()


@pytest.mark.parametrize(("task", "arch"), KINDS)
def test_the_resolved_file_round_trips(tmp_path, text, task, arch):
    train = str(text) if task == "lm" else "pairs.tsv"  # its content is not read
    valid = "pairs.tsv" if task == "word-vectors" else 0.1  # suites are not a part of the text
    values = {"task": task, "data": {"train": train, "valid": valid}, "model": {"arch": arch}}
    settings = resolve(values, base=Path("elsewhere"))
    with Lock(make_directory(tmp_path / "run").path):
        RunDir(tmp_path / "run").begin(settings, "", overwrite=False)
    again = resolve(read_toml(tmp_path / "run" / "resolved.toml"), base=Path("somewhere/else"))
    assert again == settings
    assert again.to_toml() == settings.to_toml() == (tmp_path / "run" / "resolved.toml").read_text()


def test_the_run_file_is_copied_unchanged(finished, text):
    assert read_toml(finished / "run.toml") == small(text)
    resolved = read_toml(finished / "resolved.toml")
    assert resolved["model"]["layer_type"] == "conv"
    assert resolved["data"]["stride"] == 16
    assert resolved["tokenizer"] == {"type": "char", "vocab_size": 8000, "lowercase": False}


def test_an_equivalent_run_file_resumes_and_the_first_copy_is_kept(run, text):
    written = (run / "run.toml").read_bytes()
    train_here(small(text, model__num_layers=1, train__max_grad_norm=1.0), run)  # the default values
    assert (run / "run.toml").read_bytes() == written


def test_a_run_is_resumed_from_another_working_directory(tmp_path, text, monkeypatch):
    """Paths of a run file are relative to its directory."""
    values = small(text, data__train=text.name)
    with pytest.raises(TrainingInterrupted):
        train(values, tmp_path / "run", base=text.parent, callback=SilentCallback(stop_at=1))
    monkeypatch.chdir(tmp_path)
    train(values, Path("run"), base=text.parent, callback=SilentCallback())
    assert weft.load("run").config.data.train == str(text)


# ---- whose it is


def test_a_run_without_a_newer_option_resumes_with_its_default(tmp_path, text):
    out = tmp_path / "run"
    resolved = make_directory(out).resolved
    full = resolve(small(text), base=tmp_path).to_toml()
    older = full.replace("init_strict = true\n", "")
    assert older != full
    resolved.write_text(older)
    train_here(small(text), out)
    assert resolved.read_text() == older  # the checksum identifies the run of the weights
    assert weft.load(out).config.train.init_strict is True


def test_a_different_run_in_the_directory_is_rejected_untouched(run, text):
    before = contents(run)
    assert error_message(UsageError, lambda: train_here(small(text, model__hidden_size=16, train__lr=0.02), run)) == (
        f"{run}: contains a run with different options (model.hidden_size: 8, now 16; train.lr: 0.01, now 0.02);"
        " choose another `output_dir` or use `overwrite`"
    )
    assert contents(run) == before


def test_at_most_three_differences_are_listed(run, text):
    values = small(text, model__hidden_size=16, model__kernel_size=2, train__lr=0.02, train__max_grad_norm=0, seed=9)
    assert error_message(UsageError, lambda: train_here(values, run)) == (
        f"{run}: contains a run with different options (model.hidden_size: 8, now 16; model.kernel_size: 3, now 2; seed: 3, now 9);"
        " choose another `output_dir` or use `overwrite`"
    )


def test_overwrite_starts_over(run, text):
    (run / "model.safetensors").write_bytes(b"spoilt")
    (run / "notes.txt").write_text("of the old run")
    (run / ".hidden").write_text("not ours")
    train_here(small(text, model__hidden_size=16), run, overwrite=True)
    assert open_run_dir(run).read_weights(Tokenizer.load(run / "tokenizer.json").hash)["embedding.weight"].shape[1] == 16
    assert not (run / "notes.txt").exists()
    assert (run / ".hidden").exists()


def unfit(tmp_path: Path, text: Path) -> dict[str, tuple[dict[str, Any], str]]:
    """Run files that are rejected late, when data, weights and packages are read, with the message."""
    (tmp_path / "binary.txt").write_bytes(b"a line\nand \0\n")
    (tmp_path / "empty").mkdir()
    return {
        "text": (small(tmp_path / "binary.txt"), ": NUL character; "),
        "no text": (small(tmp_path / "none.txt"), "file not found"),
        "weights": (
            small(text, train__init_from=str(tmp_path / "empty")),
            r"is not a trained run \(model.safetensors is missing\)",
        ),
        "memory": (small(text, model__hidden_size=60_000, model__num_layers=500), "are free"),
    }


@pytest.mark.parametrize("problem", ["text", "no text", "weights", "memory"])
def test_a_rejected_overwrite_keeps_the_old_run(run, text, tmp_path, problem):
    values, message = unfit(tmp_path, text)[problem]
    before = contents(run)
    with pytest.raises(WeftError, match=message):
        train_here(values, run, overwrite=True)
    assert contents(run) == before
    train_here(small(text), run)  # it stays finished
    assert weft.load(run).info()["arch"] == "conv"


def test_overwrite_keeps_the_old_run_until_the_new_one_has_a_checkpoint(run, text):
    before = {name: data for name, data in contents(run).items() if name != ".lock"}
    states = []

    class Looking(SilentCallback):
        def on_progress(self, name, done, total):
            previous = {} if states else contents(run)
            states.append(
                {str(Path(name).relative_to(".previous")): data for name, data in previous.items() if ".previous" in name}
            )

        def should_stop(self):  # the new weights are written in the background, then the backup is removed
            assert (run / ".previous").exists() or (run / "model.safetensors").exists()
            return super().should_stop()

    train_here(small(text, seed=4), run, Looking(), overwrite=True)
    assert states[0] == before
    assert not (run / ".previous").exists()


def test_the_backup_is_restored_after_a_kill_at_any_point(run, text, monkeypatch):
    """During the backup, before the new run has saved anything, and during the restore."""
    before = contents(run)
    rename, moves = Path.rename, iter([True, True, False, *[True] * 100])

    def killed(self, to):
        if not next(moves):
            raise OSError(5, "Input/output error")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", killed)
    message = error_message(ResourceError, lambda: train_here(small(text, seed=4), run, overwrite=True))
    assert message == f"{run / 'data'}: cannot move to {run / '.previous'}: Input/output error"
    assert contents(run) == before
    monkeypatch.undo()
    settings = resolve(small(text, seed=4), base=run)
    RunDir(run).begin(settings, "", overwrite=True)
    assert sorted(path.name for path in run.iterdir()) == [".lock", ".previous", "resolved.toml", "run.toml"]
    RunDir(run).begin(settings, "", overwrite=True)  # killed here, then repeated
    with pytest.raises(DataError):
        train_here(small(run / "none.txt", seed=4), run, overwrite=True)
    assert contents(run) == before
    (run / ".previous").mkdir()
    for name in ("checkpoints", "model.safetensors"):
        (run / name).rename(run / ".previous" / name)
    train_here(small(text), run)
    assert {name: data for name, data in contents(run).items() if "timings" not in name} == {
        name: data for name, data in before.items() if "timings" not in name
    }


def waiting(run: Path) -> str:
    return (
        f"{run}: a new run has started here but has no weights yet (the old run is in {run / '.previous'}); "
        "run weft train without `overwrite` to resume"
    )


@pytest.fixture
def killed(run, text):
    """A run, and the run that was to replace it, killed before it saved anything."""
    settings = resolve(small(text, seed=4), base=run)
    before = contents(run)
    RunDir(run).begin(settings, "", overwrite=True)
    return before


def test_a_backed_up_run_is_named_and_restored_by_its_run_file(run, text, killed):
    message = error_message(ModelError, lambda: weft.load(run))
    assert message == waiting(run)
    assert weft.load(run / ".previous").info()["arch"] == "conv"
    watcher = SilentCallback()
    train_here(small(text), run, watcher)
    assert watcher.notes[0] == f"{run}: restored the previous run, because the run that was to replace it saved nothing"
    assert {name for name in contents(run)} == set(killed)
    assert weft.load(run).info()["config"]["seed"] != 4


def test_the_replacing_run_resumes_with_its_own_run_file(run, text, killed):
    train_here(small(text, seed=4), run)
    assert weft.load(run).info()["config"]["seed"] == 4 and not (run / ".previous").exists()


def late(text: Path, **options: Any) -> dict[str, Any]:
    """A run that is validated only at its end."""
    return small(text, train__num_validations=1, **options)


def stopped_early(run: Path, values: dict[str, Any]) -> None:
    """A replacing run that has a checkpoint but no weights yet."""
    with pytest.raises(TrainingInterrupted):
        train_here(values, run, SilentCallback(stop_at=1), overwrite=True)
    assert checkpoint.names(run) == ["000001"] and not (run / "model.safetensors").exists()


def unlocked(run: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(run).items() if name != ".lock"}


def test_the_backup_is_kept_until_the_new_run_has_weights(run, text):
    before = unlocked(run)
    for seed in (4, 5):  # the intermediate run is replaced, the run with weights is not
        stopped_early(run, late(text, seed=seed))
        assert unlocked(run / ".previous") == before
    assert weft.load(run / ".previous").info()["config"]["seed"] == 3
    assert weft.load(run).config.seed == 5  # it can be inspected, but not used
    assert error_message(ModelError, lambda: weft.load(run).generate("a")) == waiting(run)
    train_here(late(text, seed=5), run)
    assert weft.load(run).info()["config"]["seed"] == 5 and not (run / ".previous").exists()


def test_a_failure_after_a_checkpoint_removes_nothing(run, tmp_path):
    before, text = unlocked(run), make_text(tmp_path / "text.txt")
    stopped_early(run, late(text, seed=4))
    text.write_text("another text\n" * 40)
    with pytest.raises(WeftError):
        train_here(late(text, seed=4), run)
    assert checkpoint.names(run) == ["000001"] and unlocked(run / ".previous") == before


def test_the_run_file_of_a_backup_removes_no_checkpoint(run, text):
    before = unlocked(run)
    stopped_early(run, late(text, seed=4))
    assert error_message(UsageError, lambda: train_here(small(text), run)) == (
        f"{run}: contains a run with different options (seed: 4, now 3; train.num_validations: 1, now 2); "
        f"choose another `output_dir` or use `overwrite`; to resume the old run in {run / '.previous'}, remove {run / 'checkpoints'}"
    )
    assert checkpoint.names(run) == ["000001"] and unlocked(run / ".previous") == before
    shutil.rmtree(run / "checkpoints")
    RunDir(run).begin(resolve(small(text), base=run), "", overwrite=False)
    assert unlocked(run) == before


def test_overwriting_with_the_same_run_resumes_from_its_new_checkpoint(run, text):
    train_here(late(text), run, overwrite=True)
    before, watcher = run_hashes(run), SilentCallback()
    stopped_early(run, late(text))
    train_here(late(text), run, watcher)
    assert watcher.notes == ["resuming at step 1"]
    assert run_hashes(run) == before and not (run / ".previous").exists()


def test_after_a_kill_before_the_backup_is_removed_the_new_run_stays(run, text):
    shutil.copytree(run, run.parent / "old")
    train_here(small(text, seed=4), run, overwrite=True)
    shutil.copytree(run.parent / "old", run / ".previous")
    train_here(small(text, seed=4), run)
    assert weft.load(run).info()["config"]["seed"] == 4 and not (run / ".previous").exists()


def test_a_file_is_not_a_run_directory(tmp_path):
    for name, description in (("a.toml", "a run file"), ("a.txt", "a file")):
        (tmp_path / name).write_text("x")
        assert error_message(ModelError, lambda name=name: weft.load(tmp_path / name)) == (
            f"{tmp_path / name}: is {description}, not a run directory"
        )


def test_overwrite_in_a_new_directory_starts_a_run(tmp_path, text, finished):
    train_here(small(text), tmp_path / "new", overwrite=True)
    assert run_hashes(tmp_path / "new") == run_hashes(finished)


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_unrelated_directory_is_rejected_untouched(tmp_path, text, overwrite):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("x")
    (tmp_path / "thesis" / "appendix").mkdir()
    message = error_message(UsageError, lambda: train_here(small(text), tmp_path / "thesis", overwrite=overwrite))
    assert (
        message == f"{tmp_path / 'thesis'}: not empty and not a run directory (contains appendix); choose another `output_dir`"
    )
    assert contents(tmp_path / "thesis") == {"chapter.tex": b"x"}


def test_a_directory_with_only_hidden_files_counts_as_empty(tmp_path, text):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".DS_Store").write_text("x")
    train_here(small(text), tmp_path / "run")
    assert (tmp_path / "run" / "model.safetensors").exists()
    assert (tmp_path / "run" / ".DS_Store").read_text() == "x"


def test_a_locked_directory_rejects_training_and_allows_reading(run, text):
    with Lock(run):
        for overwrite in (False, True):
            message = error_message(InUseError, lambda overwrite=overwrite: train_here(small(text), run, overwrite=overwrite))
            assert re.fullmatch(
                re.escape(f"{run}: in use by another process (process {os.getpid()} since ")
                + r"[-\d]+ [:\d]+\); wait for it or choose another directory",
                message,
            )
        assert weft.load(run).info()["arch"] == "conv"


def test_a_directory_that_cannot_be_created(tmp_path, text):
    (tmp_path / "file").write_text("")
    for out, told in (("file", "is a file"), ("file/run", f"{tmp_path / 'file'} is a file")):
        message = error_message(UsageError, lambda out=out: train_here(small(text), tmp_path / out))
        assert message == f"{tmp_path / out}: {told}, not a directory; choose another `output_dir`"


def test_missing_run_directory(tmp_path):
    assert error_message(ModelError, lambda: weft.load(tmp_path / "none")) == f"{tmp_path / 'none'}: run directory not found"
    assert (
        error_message(ModelError, lambda: weft.load(tmp_path)) == f"{tmp_path}: not a run directory (resolved.toml is missing)"
    )


# ---- damaged weights


def test_every_flipped_bit_of_the_weights_is_rejected_by_name(run):
    """Two hundred of them, spread over the file; none gives a model with wrong numbers."""
    path = run / "model.safetensors"
    full = path.read_bytes()
    messages = set()
    for bit in range(0, len(full) * 8, len(full) * 8 // 200):
        flip_bit(path, bit)
        message = error_message(ModelError, lambda: weft.load(run).model)
        assert message.startswith(f"{path}: ")
        assert "\n" not in message
        messages.add(message.removeprefix(f"{path}: ").partition(":")[0])
        path.write_bytes(full)
    assert "checksum mismatch; the file is corrupted" in messages
    assert len(messages) <= 4
    assert weft.load(run).model is not None


@pytest.mark.parametrize("num_bytes", [0, 1, 7, 8, 9, 100, -1])
def test_truncated_weights_are_rejected_by_name(run, num_bytes):
    path = run / "model.safetensors"
    path.write_bytes(path.read_bytes()[:num_bytes])
    message = error_message(ModelError, lambda: weft.load(run).model)
    size = path.stat().st_size
    assert message in (
        f"{path}: corrupted or not a safetensors file: its header does not match its size of {size} bytes",
        f"{path}: corrupted or not a safetensors file: "
        "Error while deserializing header: incomplete metadata, file not fully covered",
    )


def test_weights_of_another_program_are_rejected(run):
    """A valid safetensors file without the checksum cannot be verified."""
    path = run / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in read_tensors(path)[0].items()}
    save_file(tensors, path, {"weft": "1"})
    message = error_message(ModelError, lambda: weft.load(run).model)
    assert message == f"{path}: corrupted or not written by weft (it has no checksum)"


def test_no_weights_yet(run):
    (run / "model.safetensors").unlink()
    message = error_message(ModelError, lambda: weft.load(run).model)
    assert message == f"{run}: not trained yet; run weft train"


# ---- files that do not belong together


def rewrite(path: Path, tensors: dict[str, torch.Tensor] | None = None, **notes: str) -> None:
    old, noted = read_tensors(path)
    copies = {name: tensor.clone() for name, tensor in (old if tensors is None else tensors).items()}
    write_tensors(path, copies, {**noted, **notes})


def test_weights_of_another_version_are_rejected(run):
    rewrite(run / "model.safetensors", weft="2")
    message = error_message(ModelError, lambda: weft.load(run).model)
    assert message == f"{run / 'model.safetensors'}: format version '2' is not supported (expected 1)"


def test_another_tokenizer_is_rejected(tmp_path, run, text):
    train_here(small(text, tokenizer={"type": "char", "vocab_size": 10}), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "tokenizer.json", run / "tokenizer.json")
    message = error_message(ModelError, lambda: weft.load(run).model)
    assert message == f"{run / 'tokenizer.json'}: not the file that the weights were trained with"


def test_weights_of_another_run_are_rejected(tmp_path, run, text):
    train_here({**small(text), "seed": 4}, tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", run / "model.safetensors")
    message = error_message(ModelError, lambda: weft.load(run).model)
    assert message == f"{run / 'resolved.toml'}: has changed since the weights were written"


def test_an_edited_resolved_file_is_rejected(run):
    path = run / "resolved.toml"
    path.write_text(path.read_text().replace("hidden_size = 8", "hidden_size = 16"))
    assert error_message(ModelError, lambda: weft.load(run).model) == f"{path}: has changed since the weights were written"


def test_weights_of_the_wrong_shape_are_rejected(run):
    """Nothing was edited, but the model has other parts: another version of weft wrote it."""
    path = run / "model.safetensors"
    tensors, _ = read_tensors(path)
    rewrite(path, {name: tensor for name, tensor in tensors.items() if name != "embedding.weight"})
    assert error_message(ModelError, lambda: weft.load(run).model) == (
        f"{path}: does not match resolved.toml: embedding.weight is missing"
    )


# ---- another environment, other data


def test_a_changed_environment_gives_a_note(run, text, monkeypatch):
    before = (run / "environment.json").read_bytes()
    monkeypatch.setattr(folder, "environment", lambda threads: {**folder.read_environment(run), "torch": "9.9"})
    watcher = SilentCallback()
    train_here(small(text), run, watcher)
    assert watcher.notes == [
        f"the environment changed (torch: {torch.__version__}, now 9.9); results will not be bit-identical",
        "resuming at step 2",
    ]
    assert (run / "environment.json").read_bytes() == before


def test_environment_has_what_numbers_depend_on(finished):
    actual = folder.read_environment(finished)
    assert set(actual) == {"weft", "python", "torch", "system", "processor", "threads", "gpu"}
    assert actual["torch"] == torch.__version__
    assert actual["weft"] == weft.__version__


@pytest.fixture
def stopped(tmp_path: Path) -> tuple[dict[str, Any], Path]:
    """A run stopped after its first step, with its own text."""
    values = small(make_text(tmp_path / "text.txt"))
    with pytest.raises(TrainingInterrupted):
        train_here(values, tmp_path / "run", SilentCallback(stop_at=1))
    return values, tmp_path / "run"


def test_changed_data_is_rejected(tmp_path, stopped):
    values, out = stopped
    text = tmp_path / "text.txt"
    before, full = contents(out), text.read_text()
    text.write_text(full.replace("cat", "cow", 1))
    assert error_message(DataError, lambda: train_here(values, out)) == (
        f"{text}: not the text that the run was started with ({text} has changed); restore it or start a new run"
    )
    assert contents(out) == before
    text.write_text(full)
    train_here(values, out)
    train_here(values, tmp_path / "whole")
    assert run_hashes(out) == run_hashes(tmp_path / "whole")


def test_missing_data_is_rejected(tmp_path, stopped):
    values, out = stopped
    (tmp_path / "text.txt").rename(tmp_path / "moved.txt")
    assert error_message(DataError, lambda: train_here(values, out)) == f"{tmp_path / 'text.txt'}: file not found"
    assert checkpoint.names(out) == ["000001"]


def test_missing_tokens_are_rebuilt_from_the_same_text(tmp_path, stopped):
    values, out = stopped
    (out / "data" / "train.tokens").unlink()
    train_here(values, out)
    train_here(values, tmp_path / "whole")
    assert run_hashes(out) == run_hashes(tmp_path / "whole")


def test_a_missing_tokenizer_is_rejected(stopped):
    values, out = stopped
    (out / "tokenizer.json").unlink()
    assert error_message(ModelError, lambda: train_here(values, out)).startswith(f"{out / 'tokenizer.json'}: ")


@pytest.mark.parametrize("model", ["window", "ngram"])
def test_changed_data_before_the_first_checkpoint_starts_a_new_run(tmp_path, model):
    """The tokenizer is retrained on the new text, too."""
    text = make_text(tmp_path / "text.txt")
    values = small(text)
    if model == "ngram":
        values["model"] = {"arch": "ngram", "order": 2}
    train_here(values, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints", ignore_errors=True)
    text.write_text(text.read_text().replace("cat", "Çat"))
    train_here(values, tmp_path / "run")
    train_here(values, tmp_path / "new")
    for name in ("tokenizer.json", "data/train.tokens", "model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "new" / name).read_bytes()


# ---- timings and TensorBoard


def test_timings_are_stored_separately(finished):
    lines = [line for line in (finished / "timings.jsonl").read_text().split("\n") if line]
    assert len(lines) == 2
    assert set(json.loads(lines[0])) == {"step", "seconds", "tokens_per_second", "peak_memory", "crc32"}


def test_tensorboard_shows_the_metrics_and_changes_nothing(tmp_path, text, finished):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    train_here(small(text, train__tensorboard=True), tmp_path / "run")
    (events,) = (tmp_path / "run" / "tensorboard").iterdir()
    logged: dict[str, list[tuple[int, float]]] = {}
    for event in loader.EventFileLoader(str(events)).Load():
        for value in event.summary.value:
            logged.setdefault(value.tag, []).append((event.step, pytest.approx(value.tensor.float_val[0])))
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().split("\n") if line]
    for name in ("train_loss", "valid_loss", "tokens"):
        assert [(record["step"], record[name]) for record in records if name in record] == logged[name]
    assert run_hashes(tmp_path / "run").items() - run_hashes(finished).items() == {
        ("best", run_hashes(tmp_path / "run")["best"])
    }
    assert run_hashes(tmp_path / "run")["model"] == run_hashes(finished)["model"]


def test_tensorboard_shows_no_point_twice_after_a_crash(tmp_path, text):
    """Steps 5 to 7 were logged after the last checkpoint, at step 4; they are repeated and replace the first ones."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    values, out = small(text, train__tensorboard=True, train__max_steps=8), tmp_path / "run"

    def crash(loop):
        if loop.train_state.step == 7:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train_here(values, out, SilentCallback(inspect=crash))
    assert checkpoint.names(out) == ["000004"]
    train_here(values, out)
    assert len(list((out / "tensorboard").iterdir())) == 2
    events = accumulator.EventAccumulator(str(out / "tensorboard")).Reload()
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().split("\n") if line]
    for name in ("train_loss", "valid_loss"):
        points = [(event.step, event.value) for event in events.Scalars(name)]
        assert points == [(record["step"], pytest.approx(record[name])) for record in records if name in record]


def test_missing_tensorboard_names_the_package(tmp_path, text, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    message = error_message(ResourceError, lambda: train_here(small(text, train__tensorboard=True), tmp_path / "run"))
    assert message == "train.tensorboard: package tensorboard is not installed; run pip install tensorboard"
