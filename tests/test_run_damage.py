"""Run directories that are damaged, incomplete after a kill, or untrusted: rejected by name, or repaired."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import stat
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import expect_error
from small_runs import SilentCallback, flip_bit, make_text, run_file, run_hashes, train_here

import weft
from weft import files
from weft.cli.main import main
from weft.data.source import Source, fingerprints
from weft.errors import DataError, DivergedError, LogError, ModelError, ResourceError, TrainingInterrupted, WeftError
from weft.runs import run_dir as folder
from weft.runs.run_dir import RunDir
from weft.runs.status import read_run_status
from weft.tensors import read_listed, read_tensors, write_tensors
from weft.training import checkpoint

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
LINK = "symbolic links are not followed inside a weft directory; remove it"
RESTORES = "run weft train again to restore it"
PIPE = "not a regular file"


def error_message(kind: type[WeftError], call: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    return str(caught.value)


def small(text: Path, **options: Any) -> dict[str, Any]:
    return run_file(text, "conv", **{"train__max_steps": 8, "train__num_validations": 4, **options})


def stop(values: dict[str, Any], out: Path, step: int) -> None:
    with pytest.raises(TrainingInterrupted):
        train_here(values, out, SilentCallback(stop_at=step))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture(scope="module")
def template_run(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    """A finished run, `whole`, and the same run stopped at step 5, `stopped`."""
    directory = tmp_path_factory.mktemp("runs")
    train_here(small(text), directory / "whole")
    stop(small(text), directory / "stopped", 5)
    return directory


@pytest.fixture
def finished_run(tmp_path: Path, template_run: Path) -> Path:
    return shutil.copytree(template_run / "whole", tmp_path / "whole")


@pytest.fixture
def stopped(tmp_path: Path, template_run: Path) -> Path:
    return shutil.copytree(template_run / "stopped", tmp_path / "stopped")


# ---- killed twice


def test_a_run_that_was_killed_twice_before_its_first_checkpoint_is_not_finished(finished_run, template_run, text):
    """Once between its best weights and its checkpoint, and once before its first log line."""
    shutil.rmtree(finished_run / "checkpoints")
    (finished_run / "metrics.jsonl").write_bytes(b"")
    story = read_run_status(finished_run)
    assert (story.done, story.imported) == (False, False)
    train_here(small(text), finished_run)
    assert run_hashes(finished_run) == run_hashes(template_run / "whole")


def test_weights_at_step_0_are_imported(finished_run):
    shutil.rmtree(finished_run / "checkpoints")
    (finished_run / "metrics.jsonl").unlink()
    tensors, notes = read_tensors(finished_run / "model.safetensors")
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    write_tensors(finished_run / "model.safetensors", copies, {**notes, "step": "0"})
    assert read_run_status(finished_run).imported
    write_tensors(finished_run / "model.safetensors", copies, {**notes, "step": "many"})
    assert error_message(ModelError, lambda: read_run_status(finished_run)) == (
        f"{finished_run / 'model.safetensors'}: corrupted or not written by weft (its metadata has no step)"
    )


# ---- labels and tokenizers

LABELLED = """
task = "classification"
[data]
train = "texts.tsv"
[model]
arch = "gru"
hidden_size = 4
[train]
max_steps = 4
num_validations = 4
batch_tokens = 64
"""


@pytest.fixture
def labelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A classifier that was stopped after a step."""
    rows = [f"{word} {n}\t{label}" for n in range(30) for word, label in (("bad", "x"), ("good", "y"), ("fine", "y"))]
    (tmp_path / "texts.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    (tmp_path / "run.toml").write_text(LABELLED)
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("weft.cli.progress.TrainProgress.should_stop", lambda self: True)
        assert main(["train", "run.toml", "--quiet"]) == 130
    return tmp_path / "runs" / "run"


@pytest.mark.parametrize("change", [lambda names: names[::-1], lambda names: [names[0], "q"]], ids=["swapped", "one-character"])
def test_changed_labels_are_rejected_on_resume(labelled, capsys, change):
    path = labelled / "labels.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "labels": change(data["labels"])}))
    capsys.readouterr()
    message = "runs/run/labels.json: has changed since the run started; restore it, or train again with --overwrite"
    assert expect_error(capsys, "train", "run.toml", "--quiet") == (4, message)
    path.unlink()
    message = "runs/run/labels.json: file is missing; restore it, or train again with --overwrite"
    assert expect_error(capsys, "train", "run.toml", "--quiet") == (4, message)
    assert main(["train", "run.toml", "--quiet", "--overwrite"]) == 0


def test_a_changed_tokenizer_is_rejected_on_resume(stopped, text):
    path = stopped / "tokenizer.json"
    path.write_text(path.read_text().replace('"</s>"', '"</t>"'))
    assert error_message(ModelError, lambda: train_here(small(text), stopped)) == (
        f"{path}: has changed since the run started; restore it, or train again with `overwrite`"
    )


# ---- what a stranger may have put into a folder


@pytest.fixture
def mine(tmp_path: Path) -> dict[Path, bytes]:
    """Files of the user outside the run."""
    for number in range(2019, 2023):
        (tmp_path / "home" / str(number)).mkdir(parents=True)
        (tmp_path / "home" / str(number) / "photo").write_bytes(b"dear")
    for name in ("train.json", "letter", "resolved.toml", ".x.tmp-1-0123456789ab"):
        (tmp_path / "home" / name).write_bytes(b"dear")
    return {path: path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file()}


def untouched(mine: dict[Path, bytes]) -> bool:
    home = min(mine, key=lambda path: len(path.parts)).parent
    return {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == mine


FOLDERS = ["data", "checkpoints", ".previous", "results", "tensorboard"]


@pytest.mark.parametrize("overwrite", [False, True], ids=["resume", "overwrite"])
@pytest.mark.parametrize("name", FOLDERS)
def test_a_symlinked_directory_is_rejected_and_its_target_untouched(stopped, text, mine, name, overwrite):
    shutil.rmtree(stopped / name, ignore_errors=True)
    (stopped / name).symlink_to(stopped.parent / "home")
    assert (
        error_message(ModelError, lambda: train_here(small(text), stopped, overwrite=overwrite)) == f"{stopped / name}: {LINK}"
    )
    assert untouched(mine)


@pytest.mark.parametrize("name", ["data", "checkpoints"])
def test_a_symlink_in_a_restored_backup_is_rejected(stopped, text, mine, name):
    shutil.rmtree(stopped / name)
    (stopped / ".previous").mkdir()
    (stopped / ".previous" / name).symlink_to(stopped.parent / "home")
    assert error_message(ModelError, lambda: train_here(small(text), stopped)) == f"{stopped / name}: {LINK}"
    assert untouched(mine)


@pytest.mark.parametrize("name", [".previous", "checkpoints"])
def test_a_symlink_in_a_finished_run_is_rejected(finished_run, text, mine, name, capsys):
    run_toml = finished_run.parent / "run.toml"
    shutil.copy(finished_run / "run.toml", run_toml)
    if name == "checkpoints":
        (finished_run / name).rename(finished_run.parent / "elsewhere")
        (finished_run / ".x.tmp-1-0123456789ab").touch()  # a leftover to remove
        (finished_run / name).symlink_to(finished_run.parent / "elsewhere")
    else:
        (finished_run / name).symlink_to(finished_run.parent / "home")
    assert expect_error(capsys, "train", str(run_toml), "--output-dir", str(finished_run), "--quiet") == (
        4,
        f"{finished_run / name}: {LINK}",
    )
    assert untouched(mine)


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "timings.jsonl"])
def test_links_and_pipes_in_place_of_written_files_are_rejected(stopped, text, mine, name):
    letter = stopped.parent / "home" / "letter"
    (stopped / name).unlink()
    (stopped / name).symlink_to(letter)
    assert error_message(ModelError, lambda: train_here(small(text), stopped)) == f"{stopped / name}: {LINK}"
    (stopped / name).unlink()
    os.link(letter, stopped / name)
    message = "is a hard link; writing to it would change another file; remove it"
    assert error_message(ModelError, lambda: train_here(small(text), stopped)) == f"{stopped / name}: {message}"
    (stopped / name).unlink()
    os.mkfifo(stopped / name)
    assert error_message(ModelError, lambda: train_here(small(text), stopped)) == f"{stopped / name}: {PIPE}"
    assert untouched(mine)


def test_a_symlinked_lock_in_an_empty_directory_is_rejected(tmp_path, text, mine):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "home" / "letter")
    assert (
        error_message(ModelError, lambda: train_here(small(text), tmp_path / "run")) == f"{tmp_path / 'run' / '.lock'}: {LINK}"
    )
    (tmp_path / "run" / ".lock").unlink()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "nothing")
    assert (
        error_message(ModelError, lambda: train_here(small(text), tmp_path / "run")) == f"{tmp_path / 'run' / '.lock'}: {LINK}"
    )
    assert untouched(mine) and not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("name", ["data/train.tokens", "model.safetensors", "environment.json", "tokenizer.json"])
def test_a_pipe_in_a_run_does_not_block(stopped, text, name):
    (stopped / name).unlink()
    os.mkfifo(stopped / name)
    stuck = threading.Timer(30, lambda: os.kill(os.getpid(), signal.SIGINT))
    stuck.start()
    try:
        assert error_message(ModelError, lambda: train_here(small(text), stopped)).startswith(f"{stopped / name}: {PIPE}")
    finally:
        stuck.cancel()
    assert stat.S_ISFIFO((stopped / name).lstat().st_mode)


def test_only_user_paths_may_be_pipes(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert error_message(ModelError, lambda: files.write_text(tmp_path / "pipe", "x")) == f"{tmp_path / 'pipe'}: {PIPE}"
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    files.write_text(tmp_path / "pipe", "x", user_path=True)
    assert os.read(reader, 9) == b"x"
    os.close(reader)


def test_symlinks_in_a_comparison_are_rejected(tmp_path, text, mine, capsys):
    values = small(text, train__max_steps=1, train__num_validations=1)
    import tomli_w

    (tmp_path / "run.toml").write_text(tomli_w.dumps(values))
    (tmp_path / "cmp").mkdir()
    (tmp_path / "cmp" / "plan.toml").write_text("seeds = 1\n[run]\n")
    for name in ("evidence", "run-files", ".previous", "gru-0"):
        (tmp_path / "cmp" / name).symlink_to(tmp_path / "home")
        words = ("compare", str(tmp_path / "run.toml"), "--models", "gru", "--output-dir", str(tmp_path / "cmp"))
        assert expect_error(capsys, *words) == (4, f"{tmp_path / 'cmp' / name}: {LINK}")
        (tmp_path / "cmp" / name).unlink()
    assert untouched(mine)


def test_results_are_not_written_through_a_symlink(finished_run, mine, capsys):
    (finished_run.parent / "home" / "whole").mkdir()
    (finished_run.parent / "home" / "whole" / "photo").write_bytes(b"dear")
    (finished_run.parent / "results").symlink_to(finished_run.parent / "home")
    out = str(finished_run.parent / "page.html")
    assert expect_error(capsys, "compare", str(finished_run), "--report", out) == (
        4,
        f"{finished_run.parent / 'results'}: {LINK}",
    )
    assert (finished_run.parent / "home" / "whole" / "photo").read_bytes() == b"dear"


# ---- weights


def rewrite(path: Path, change: Callable[[dict[str, torch.Tensor]], None], **notes: str) -> None:
    old, noted = read_listed(path)
    tensors = {name: tensor.clone() for name, tensor in old.items()}
    change(tensors)
    write_tensors(path, tensors, {**noted, **notes})


def test_untrusted_sizes_allocate_no_memory(finished_run, monkeypatch):
    """resolved.toml has a valid checksum but describes a model of terabytes: rejected before allocation."""
    path = finished_run / "resolved.toml"
    path.write_text(path.read_text().replace("hidden_size = 8", "hidden_size = 65536"))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    rewrite(finished_run / "model.safetensors", lambda tensors: None, config=digest)
    sizes = []
    normal = torch.nn.init.normal_

    def watched(tensor: torch.Tensor, *values: Any, **options: Any) -> torch.Tensor:
        sizes.append(0 if tensor.is_meta else tensor.numel())
        return normal(tensor, *values, **options)

    monkeypatch.setattr(torch.nn.init, "normal_", watched)
    rows = len(read_tensors(finished_run / "model.safetensors")[0]["embedding.weight"])
    assert error_message(ModelError, lambda: weft.load(finished_run).model) == (
        f"{finished_run / 'model.safetensors'}: does not match resolved.toml: embedding.weight is {rows}x8, expected {rows}x65536"
    )
    assert max(sizes, default=0) == 0


def test_unexpected_weight_names_are_rejected_by_the_first(finished_run):
    path = finished_run / "model.safetensors"
    rewrite(path, lambda tensors: tensors.update(extra=torch.zeros(1)))
    assert error_message(ModelError, lambda: weft.load(finished_run).model) == (
        f"{path}: does not match resolved.toml: unexpected extra"
    )
    rewrite(path, lambda tensors: (tensors.pop("extra"), tensors.pop("embedding.weight")))
    assert error_message(ModelError, lambda: weft.load(finished_run).model) == (
        f"{path}: does not match resolved.toml: embedding.weight is missing"
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_weights_are_rejected(finished_run, stopped, text, value):
    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["embedding.weight"].view(-1)[3] = value

    path = finished_run / "model.safetensors"
    rewrite(path, spoil)
    assert error_message(ModelError, lambda: weft.load(finished_run).generate("a")) == (
        f"{path}: embedding.weight has NaN or infinite values"
    )
    started = small(text, train__init_from=str(finished_run))
    assert error_message(ModelError, lambda: train_here(started, finished_run.parent / "new")) == (
        f"{path}: embedding.weight has NaN or infinite values"
    )
    newest = stopped / "checkpoints" / "000005"
    manifest = files.read_json(newest / files.MANIFEST)
    rewrite(newest / "model.safetensors", spoil)
    (newest / files.MANIFEST).unlink()
    files.write_manifest(newest, {name: manifest[name] for name in ("owner", "vocabulary", "data")})
    assert error_message(ModelError, lambda: train_here(small(text), stopped)) == (
        f"{newest / 'model.safetensors'}: embedding.weight has NaN or infinite values; remove {newest}"
    )


def test_log_counts_may_be_minus_infinity_but_not_nan(finished_run):
    run = RunDir(finished_run)
    run.write_weights({"a": torch.tensor([0.0, float("-inf")]), "threshold": torch.tensor(float("inf"))}, "v", 1)
    for value in (float("nan"), float("inf")):
        assert error_message(
            DivergedError, lambda value=value: run.write_weights({"a": torch.tensor([0.0, value])}, "v", 1)
        ) == (f"{run.weights}: a has NaN or infinite values, so it was not written")
    shutil.rmtree(finished_run / "checkpoints")
    assert run.read_weights("v", logs=True)["a"][1] == float("-inf")
    with pytest.raises(ModelError):
        run.read_weights("v")


@pytest.mark.parametrize("valid", [0.1, None], ids=["validated", "not validated"])
def test_training_does_not_save_non_finite_weights(tmp_path, text, valid):
    """The last step makes them, and nothing is computed with them afterwards."""
    values = small(text, train__max_steps=1, train__num_validations=1, train__lr=1e38)
    if valid is None:
        values["data"].pop("valid")
    message = error_message(DivergedError, lambda: train_here(values, tmp_path / "run"))
    assert message.startswith("step 1: ") and message.endswith(
        "; the last checkpoint is intact; lower train.lr or train.max_grad_norm"
    )
    if valid is None:
        assert "has NaN or infinite values" in message
    assert not (tmp_path / "run" / "model.safetensors").exists() and not checkpoint.names(tmp_path / "run")


def test_a_stop_does_not_save_non_finite_weights(tmp_path, text):
    def spoil(loop: Any) -> None:
        with torch.no_grad():
            next(loop.loss_module.model.parameters()).view(-1)[0] = float("nan")

    callback = SilentCallback(stop_at=1, inspect=spoil)
    message = error_message(DivergedError, lambda: train_here(small(text), tmp_path / "run", callback))
    assert message == (
        "step 1: embedding.weight has NaN or infinite values; the last checkpoint is intact; "
        "lower train.lr or train.max_grad_norm"
    )
    assert not checkpoint.names(tmp_path / "run")


@pytest.mark.parametrize("damage", [flip_bit, lambda path: path.write_bytes(b"")], ids=["flipped", "emptied"])
def test_damaged_best_weights_are_rejected_on_resume(stopped, text, damage):
    damage(stopped / "model.safetensors")
    message = error_message(ModelError, lambda: train_here(small(text), stopped))
    assert message.startswith(f"{stopped / 'model.safetensors'}: ")
    assert message.endswith("; use `overwrite` to train again")


def test_older_weights_of_the_same_run_are_rejected(tmp_path, text, stopped, finished_run, capsys):
    stop(small(text), tmp_path / "early", 2)
    shutil.copy(tmp_path / "early" / "model.safetensors", stopped / "model.safetensors")
    path = stopped / "model.safetensors"
    assert error_message(ModelError, lambda: train_here(small(text), stopped)) == (
        f"{path}: is from step 2, but the best weights are from step 4; use `overwrite` to train again"
    )
    assert error_message(ModelError, lambda: weft.load(stopped).model) == (
        f"{path}: is from step 2, but the best weights are from step 4"
    )
    shutil.copy(tmp_path / "early" / "model.safetensors", finished_run / "model.safetensors")
    shutil.copy(finished_run / "run.toml", tmp_path / "run.toml")
    code, message = expect_error(capsys, "train", str(tmp_path / "run.toml"), "--output-dir", str(finished_run), "--quiet")
    assert code == 4 and message.startswith(
        f"{finished_run / 'model.safetensors'}: is from step 2, but the best weights are from step "
    )


def test_weights_newer_than_the_checkpoint_are_accepted_after_a_kill(stopped, template_run, text):
    """Even if the resumed run does not reach their score: the next validation replaces them."""
    shutil.rmtree(stopped / "checkpoints" / "000005")
    (stopped / "model.safetensors").write_bytes((template_run / "whole" / "model.safetensors").read_bytes())
    stop(small(text), stopped, 5)
    assert (
        checkpoint.read_train_state(stopped / "checkpoints" / "000005").best_step
        == RunDir(template_run / "whole").weights_step()
    )
    train_here(small(text), stopped)
    assert run_hashes(stopped) == run_hashes(template_run / "whole")


# ---- checkpoints


def test_after_two_damaged_checkpoints_new_ones_are_kept(stopped, template_run, text):
    for step in ("000004", "000005"):
        flip_bit(stopped / "checkpoints" / step / "model.safetensors")
    stop(small(text), stopped, 3)
    assert checkpoint.names(stopped) == ["000002", "000003"]
    last = SilentCallback()
    train_here(small(text), stopped, last)
    assert last.notes == ["resuming at step 3"]
    assert run_hashes(stopped) == run_hashes(template_run / "whole")


def test_a_damaged_checkpoint_does_not_replace_an_intact_one(stopped, text):
    flip_bit(stopped / "checkpoints" / "000005" / "model.safetensors")
    stop(small(text), stopped, 6)
    assert checkpoint.names(stopped) == ["000004", "000006"]


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Checkpoints with read errors, by name."""
    bad, sha256 = set[str](), files.sha256

    def broken(path: Path) -> str:
        if path.parent.name in bad:
            raise ResourceError(path, f"can't be read: {os.strerror(errno.EIO)}")
        return sha256(path)

    monkeypatch.setattr(files, "sha256", broken)
    return bad


def test_an_unreadable_checkpoint_falls_back_to_the_previous_one(stopped, template_run, text, unreadable):
    unreadable.add("000005")
    callback = SilentCallback()
    train_here(small(text), stopped, callback)
    path = stopped / "checkpoints" / "000005" / "metrics.jsonl"
    message = f"{path}: can't be read: Input/output error; resuming from the previous checkpoint"
    assert callback.notes == [message, "resuming at step 4"]
    unreadable.clear()
    assert run_hashes(stopped) == run_hashes(template_run / "whole")


def test_unreadable_checkpoints_are_not_deleted(stopped, text, unreadable):
    unreadable |= {"000004", "000005"}
    message = error_message(ResourceError, lambda: train_here(small(text), stopped))
    assert message.endswith("can't be read: Input/output error")
    assert checkpoint.names(stopped) == ["000004", "000005"]


def test_leftovers_of_a_kill_in_a_finished_run_are_removed(finished_run, text, capsys):
    names = checkpoint.names(finished_run)
    shutil.copytree(finished_run / "checkpoints" / names[0], finished_run / "checkpoints" / "000001")
    shutil.copytree(finished_run / "checkpoints" / names[0], finished_run / "checkpoints" / ".000002.tmp-1-0123456789ab")
    (finished_run / ".model.safetensors.tmp-1-0123456789ab").touch()
    shutil.copy(finished_run / "run.toml", finished_run.parent / "run.toml")
    assert main(["train", str(finished_run.parent / "run.toml"), "--output-dir", str(finished_run), "--quiet"]) == 0
    assert sorted(path.name for path in (finished_run / "checkpoints").iterdir()) == names
    assert not [path for path in finished_run.iterdir() if ".tmp-" in path.name]


def test_leftovers_of_a_kill_next_to_an_output_file_are_removed(tmp_path):
    dead = 2**22 + 1  # beyond the maximum process ID
    leftover, unrelated = tmp_path / f".x.html.tmp-{dead}-0123456789ab", tmp_path / f".y.html.tmp-{dead}-0123456789ab"
    at_work = tmp_path / f".x.html.tmp-{os.getpid()}-0123456789ab"
    for path in (leftover, unrelated, at_work):
        path.touch()
    files.write_text(tmp_path / "x.html", "page", user_path=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([unrelated.name, at_work.name, "x.html"])


# ---- data


def test_an_edit_anywhere_in_a_large_file_is_detected(tmp_path):
    """Same size, in the middle, with the modification time restored."""
    path = tmp_path / "large.txt"
    path.write_bytes(b"x" * (5 << 20))
    before, times = fingerprints([path]), path.stat()
    assert before == [{"file": "large.txt", "bytes": 5 << 20, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}]
    time.sleep(0.02)  # the clock of the file system ticks every few milliseconds
    with path.open("r+b") as file:
        file.seek(2_500_000)
        file.write(b"y")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert fingerprints([path]) != before
    assert Source((path,)).provenance()["files"] == fingerprints([path])


def test_swapped_labels_in_a_large_file_are_rejected(labelled, capsys):
    path = Path("texts.tsv")
    shutil.rmtree(labelled)
    path.write_text("text\tlabel\n" + "".join(f"{'word ' * 50}{n:05}\t{'xy'[n % 2]}\n" for n in range(12_000)))
    assert path.stat().st_size > 3_000_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weft.cli.progress.TrainProgress.should_stop", lambda self: True)
        assert main(["train", "run.toml", "--quiet"]) == 130
    lines = path.read_text().split("\n")
    lines[5000:7000] = [line[:-1] + ("y" if line[-1] == "x" else "x") for line in lines[5000:7000]]
    path.write_text("\n".join(lines))
    capsys.readouterr()
    code, message = expect_error(capsys, "train", "run.toml", "--quiet")
    assert code == 3
    assert message.endswith("texts.tsv has changed); restore it or start a new run")


@pytest.mark.parametrize("damage", ["flip", "provenance", "gone"])
def test_a_damaged_data_description_is_rebuilt(stopped, template_run, text, damage):
    path = stopped / "data" / "train.json"
    if damage == "gone":
        path.unlink()
    elif damage == "provenance":
        path.write_text(path.read_text().replace('"version": ', '"version": 1'))
    else:
        flip_bit(path)
    callback = SilentCallback()
    train_here(small(text), stopped, callback)
    message = f"{path}: the tokenized text is corrupted; it is written again from the same text"
    assert callback.notes == [message, "resuming at step 5"]
    assert run_hashes(stopped) == run_hashes(template_run / "whole")


def test_a_damaged_description_of_changed_data_is_rejected(tmp_path, text):
    path = Path(shutil.copy(text, tmp_path / "text.txt"))
    stop(small(path), tmp_path / "run", 1)
    path.write_text(path.read_text().replace("cat", "cow"))
    about = tmp_path / "run" / "data" / "train.json"
    full = about.read_bytes()
    about.write_bytes(b"{}")
    assert error_message(ModelError, lambda: train_here(small(path), tmp_path / "run")) == (
        f"{about}: corrupted, and {path} is not the text that the run was started with; restore both or start a new run"
    )
    about.write_bytes(full)
    assert error_message(DataError, lambda: train_here(small(path), tmp_path / "run")).endswith(
        "text.txt has changed); restore it or start a new run"
    )


# ---- logs


def test_every_log_line_ends_with_its_checksum(finished_run):
    for name in ("metrics.jsonl", "timings.jsonl"):
        lines = (finished_run / name).read_bytes().split(b"\n")[:-1]
        for line in lines:
            body, _, checksum = line.partition(b', "crc32": ')
            assert checksum == b'"%08x"}' % zlib.crc32(body + b"}")
        assert lines


def test_every_flipped_bit_of_a_log_is_detected(finished_run, capsys):
    path = finished_run / "metrics.jsonl"
    good = path.read_bytes()
    first = good.index(b"\n") + 1
    for bit in range(0, 8 * first, 7):
        flip_bit(path, bit)
        message = error_message(LogError, lambda: read_run_status(finished_run))
        assert message.startswith(f"{path}:") and message.endswith(
            ": checksum mismatch; the file is corrupted; run weft train again to restore it"
        ), bit
        path.write_bytes(good)
    flip_bit(path, 8 * len(good) - 3)  # the end of the last line
    start = good[:-1].rfind(b"\n") + 1
    message = f"{path}: corrupted: {start} bytes, but the checkpoint expects {len(good)}; {RESTORES}"
    assert expect_error(capsys, "info", str(finished_run)) == (4, message)
    shutil.copy(finished_run / "run.toml", finished_run.parent / "run.toml")
    assert main(["train", str(finished_run.parent / "run.toml"), "--output-dir", str(finished_run), "--quiet"]) == 0
    assert path.read_bytes() == good and read_run_status(finished_run).done


def test_a_run_with_a_damaged_log_is_omitted_from_the_report_and_named(tmp_path, finished_run, template_run, capsys):
    good = shutil.copytree(template_run / "whole", tmp_path / "good")
    flip_bit(finished_run / "timings.jsonl", 100)
    capsys.readouterr()
    assert main(["compare", str(good), str(finished_run), "--report", str(tmp_path / "page.html"), "--quiet"]) == 4
    assert (
        f"{finished_run / 'timings.jsonl'}:1: checksum mismatch; the file is corrupted; remove it\n" in capsys.readouterr().err
    )


def test_a_torn_line_is_removed_on_resume(stopped, text):
    """A process was killed while writing timings.jsonl; the next one starts on a new line."""
    path = stopped / "timings.jsonl"
    full = path.read_bytes()
    path.write_bytes(full + full[:20])
    train_here(small(text), stopped)
    assert path.read_bytes().startswith(full + b'{"step": 6')
    assert main(["info", str(stopped)]) == 0


def test_a_flipped_bit_of_the_environment_is_detected(finished_run):
    path = finished_run / "environment.json"
    flip_bit(path, 8 * path.read_bytes().index(b"Linux") + 1)
    assert error_message(ModelError, lambda: folder.read_environment(finished_run)) == (
        f"{path}: checksum mismatch; the file is corrupted; remove it and resume"
    )


# ---- power cuts


def test_directories_are_synced_after_create_and_rename(tmp_path, text, monkeypatch):
    synced = list[Path]()
    real = files.sync_directory
    monkeypatch.setattr(files, "sync_directory", lambda place: (synced.append(place), real(place)))
    run = tmp_path / "runs" / "new"
    train_here(small(text, train__max_steps=1, train__num_validations=1), run)
    assert {tmp_path, tmp_path / "runs", run, run / "checkpoints", run / "data"} <= set(synced)
    synced.clear()
    RunDir(run).backup.create()
    assert {run, run / ".previous"} <= set(synced)
    synced.clear()
    RunDir(run).backup.restore()
    assert {run, run / ".previous"} <= set(synced)
