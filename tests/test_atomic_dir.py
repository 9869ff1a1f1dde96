"""Output directories of import, export and prune are complete or absent, whenever the process ends."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import expect_error
from small_runs import make_text, run_file, train_here

from weft import files, tensors
from weft.cli.main import main
from weft.errors import ResourceError
from weft.runs import atomic_dir as staging
from weft.runs.atomic_dir import staged_directory


class Killed(BaseException):
    """Stands for SIGKILL: nothing is cleaned up after it."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: Any) -> Path:
    """A run with attention, and the same as a Hugging Face folder."""
    place: Path = tmp_path_factory.mktemp("models")
    values = run_file(make_text(place / "text.txt"), "transformer", train__max_steps=2, tokenizer={"type": "byte"})
    train_here(values, place / "run")
    assert main(["export", str(place / "run"), "--format", "hf", "--output-dir", str(place / "hf"), "-q"]) == 0
    return place


COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "export": lambda place: ["export", str(place / "run"), "--format", "hf", "-q"],
    "import": lambda place: ["import", str(place / "hf"), "-q"],
    "prune": lambda place: ["prune", str(place / "run"), "--remove", "1", "--max-tokens", "50", "-q"],
}


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException) -> Iterator[list[int]]:
    """The file with this number, from 0, that is written fails; a killed process tidies nothing up."""
    left = [number]

    @contextmanager
    def writing(path: Path, *, user_path: bool = False) -> Iterator[Any]:
        left[0] -= 1
        if left[0] < 0:
            raise error
        with whole(path, user_path=user_path) as write:
            yield write

    with monkeypatch.context() as patch:
        whole = files.atomic_write
        patch.setattr(files, "atomic_write", writing)
        if hasattr(tensors, "atomic_write"):
            patch.setattr(tensors, "atomic_write", writing)
        if isinstance(error, Killed):
            tidy = shutil.rmtree
            patch.setattr(shutil, "rmtree", lambda path, **how: None if ".tmp-" in str(path) else tidy(path, **how))
        yield left


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("error", [Killed(), ResourceError("", "no space left on the disk")], ids=["killed", "full"])
def test_a_failed_command_can_be_repeated(command, error, models, tmp_path, monkeypatch, capsys):
    words = COMMANDS[command](models)
    for number in range(20):
        out = tmp_path / f"{number}" / "out"
        with failing(monkeypatch, number, error) as left:
            try:
                code = main([*words, "--output-dir", str(out)])
            except Killed:
                code = -9
        if left[0] >= 0:
            break
        assert code == (-9 if isinstance(error, Killed) else 5)
        assert isinstance(error, Killed) or not out.parent.exists()
        assert not (out.is_dir() and any(out.iterdir())), "half a folder"
        assert main([*words, "--output-dir", str(out)]) == 0
        assert os.listdir(out.parent) == ["out"]  # what was left is gone
        assert not any(path.name.startswith(".") for path in out.iterdir())
        capsys.readouterr()
    assert number > 3 and code == 0


# a process that ends before the system moves a finished folder to its place, or whose disk is full by then
ENDED = r"""
import errno, os, signal, sys
from weft import files
from weft.cli.main import main


class Ending:
    def __getattr__(self, name):
        if name == "rename" and sys.argv[1] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "rename":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return getattr(os, name)


files.os = Ending()
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(("how", "code", "left"), [pytest.param("killed", -9, 2, marks=pytest.mark.slow), ("full", 5, 0)])
def test_a_command_can_be_repeated_after_a_kill_or_a_full_disk(how, code, left, models, tmp_path):
    """`out`, which is empty, and beside it what was made so far."""
    words = [*COMMANDS["import"](models), "--output-dir", str(tmp_path / "new" / "out")]
    done = subprocess.run([sys.executable, "-c", ENDED, how, *words], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert len(list((tmp_path / "new").glob("*"))) == left and not list((tmp_path / "new").glob("out/*"))
    assert main(words) == 0
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]


def fill(out: Path, **more: Any) -> None:
    with staged_directory(out, last="mark") as place:
        for name in ("a", "mark", *more):
            (place / name).write_text(name)


def test_a_directory_in_progress_in_another_process_is_kept(tmp_path):
    out = tmp_path / "o[u]t"
    with staged_directory(out, last="mark") as place:
        fill(out)  # another one is faster
        assert place.is_dir()
        shutil.rmtree(out)
    assert out.is_dir() and list(tmp_path.iterdir()) == [out]
    (out / "x").write_text("")
    with pytest.raises(ResourceError) as caught:
        fill(out)
    assert str(caught.value) == f"{out}: already exists; nothing was changed; remove it first"
    assert list(tmp_path.iterdir()) == [out]


def test_a_mount_point_is_filled_in_place(tmp_path, monkeypatch):
    """No folder can be renamed to a mount point, and none made beside it where only it is writable."""
    out = tmp_path / "out"
    out.mkdir()
    moved: list[str] = []
    monkeypatch.setattr(staging, "_can_rename_to", lambda final: False)
    monkeypatch.setattr(staging.os, "rename", lambda a, b, real=os.rename: (moved.append(a.name), real(a, b)))
    left = out / ".out.tmp-1-0123456789ab"
    left.mkdir()
    fill(out, z="z")
    assert moved == ["a", "z", "mark"]
    assert sorted(path.name for path in out.iterdir()) == ["a", "mark", "z"] and list(tmp_path.iterdir()) == [out]


def test_a_symlink_is_followed_and_a_directory_that_cannot_be_created_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    fill(tmp_path / "link")
    assert (tmp_path / "there" / "mark").is_file() and (tmp_path / "link").is_symlink()

    def mkdir(path: Any, mode: int = 0) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(staging.os, "mkdir", mkdir)
    with pytest.raises(ResourceError) as caught:
        fill(tmp_path / "new")
    assert str(caught.value) == f"{tmp_path / 'new'}: cannot write: Read-only file system; nothing was changed"


def test_a_nonempty_directory_is_refused(models, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    results = [expect_error(capsys, *words(models), "--output-dir", str(tmp_path / "out")) for words in COMMANDS.values()]
    assert results == [
        (2, f"export: {tmp_path / 'out'} is not empty; choose another --output-dir"),
        (2, f"{tmp_path / 'out'}: not empty and not a run directory (contains mine); choose another --output-dir"),
        (2, f"{tmp_path / 'out'}: not empty and not a run directory (contains mine); choose another --output-dir"),
    ]
