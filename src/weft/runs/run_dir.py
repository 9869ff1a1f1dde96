"""The run folder: what `train` writes and everything else reads.

run.toml as written, resolved.toml with every option, tokenizer.json, data/ (tokens on disk), model.safetensors (the best
weights), metrics.jsonl (functions of the run only), timings.jsonl, checkpoints/, environment.json; with train.num_samples,
samples.jsonl; of data that was given in memory, inputs/.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from numpy.typing import NDArray

from weft import __version__, files, log
from weft import backup as aside
from weft.config import describe_differences, read_toml
from weft.data.bos import FILE as OPENING
from weft.errors import ConfigError, DivergedError, ModelError, ResourceError, UsageError
from weft.lock import Lock
from weft.runs import suggestions
from weft.runs.config import RunConfig
from weft.runs.resolve import resolve
from weft.tensors import not_finite, read_arrays, read_notes, read_tensors, write_tensors
from weft.training import checkpoint
from weft.training.train_state import TrainState

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T", "Tensor", NDArray[Any])
FORMAT = "1"
INPUTS = "inputs"  # data that was given in memory, written down
# what tokens and labels a run's numbers stand for
FORMAT_NOTES = (*(f"tokenizer{side}.json" for side in ("", ".source", ".target", ".letters")), "labels.json", OPENING)


class RunDir:
    """One run on disk. Writing happens under its lock; reading needs none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.named = False  # whether somebody has named its data, in a run file: it may be other than training read
        self.backup = aside.Backup(path, self.resolved.name)  # the run that is to be replaced, until the new one has weights

    # ---- names

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer.json"

    @property
    def weights(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def inputs(self) -> Path:
        return self.path / INPUTS

    @property
    def resolved(self) -> Path:
        return self.path / "resolved.toml"

    def read_resolved(self) -> dict[str, Any]:
        """resolved.toml as it is; it was written by weft, so a fault in it is damage."""
        try:
            return read_toml(self.resolved)
        except ConfigError as error:
            raise ModelError("", str(error)) from None

    # ---- beginning

    def refuse_links(self) -> None:
        """Refuse a link, a pipe or a device where a run has a folder: what is written, moved or removed there would be somebody
        else's. Call under the lock, before anything is changed."""
        for name in ("data", INPUTS, "checkpoints", "evidence", "tensorboard", aside.NAME):
            files.refuse_link(self.path / name)

    def check_is_run_dir(self) -> None:
        """Leave a folder alone that holds something, but no run. Call it before the lock, too, which is a file in it."""
        if not self.resolved.is_file() and (strangers := self.backup.contents()):
            raise UsageError(self.path, f"is no run folder and not empty ({strangers[0].name})", "choose another --output-dir")

    def begin(self, config: RunConfig, written: str, *, overwrite: bool) -> bool:
        """Make the folder, or find it as this very run left it; whether a run that was to be replaced is back. Call under the
        lock.

        resolved.toml is what makes a folder a run's: it is written first, before all else.
        """
        self.refuse_links()
        for place in self._places():
            files.sweep(place)
        self.backup.repair()
        if self.backup.exists() and self.weights.exists():
            self.backup.drop()  # a process was killed just before that
        if overwrite and self.resolved.is_file():  # what is not ours is refused below, unless the folder is empty
            self.backup.move_in()
        asked = self.backup.exists() and not RunDir(self.backup.path).changes(config)
        back = asked and not overwrite and not self.has_started()
        if back:  # the one that was to replace this run was killed before it saved anything
            self.backup.restore()
        if self.resolved.is_file():
            found = self.changes(config)
            if found:
                started = self.path / "checkpoints"
                fix = f"; remove {started} to go on with the one that waits in {self.backup.path}" if asked else ""
                raise UsageError(
                    self.path,
                    f"holds another run ({'; '.join(found[:3])})",
                    f"choose another --output-dir, or --overwrite{fix}",
                )
        else:
            self.check_is_run_dir()
            files.write_text(self.resolved, config.to_toml())
        if not (self.path / "run.toml").exists():
            files.write_text(self.path / "run.toml", written)
        self.refuse_links()  # what was set aside and is back may hold others
        return back

    def changes(self, config: RunConfig) -> list[str]:
        """What differs between the run that is here and `settings`. A tokenizer that is named by its file is the same wherever
        the file lies, if it holds what the run has: a comparison that was moved goes on."""
        here, asked = dict(self._options()), config.to_dict()
        if self._same_tokenizers(here.get("tokenizer"), asked["tokenizer"]):
            here["tokenizer"] = asked["tokenizer"]
        return describe_differences(here, asked)

    def _same_tokenizers(self, here: Any, asked: Mapping[str, Any]) -> bool:
        """Whether all tokenizers are named by files on both sides, and those that are asked for hold what the run has."""
        if not isinstance(here, dict) or here.keys() != asked.keys():
            return False
        if "file" in asked:
            return self._same_file(here["file"], asked["file"], self.tokenizer)
        named = all("file" in config for tables in (here, asked) for config in tables.values() if isinstance(config, dict))
        return named and all(
            isinstance(asked[side], dict)
            and self._same_file(here[side]["file"], asked[side]["file"], self.path / f"tokenizer.{side}.json")
            for side in asked
        )

    def _same_file(self, here: str, asked: str, own: Path) -> bool:
        """Whether a file that is asked for is the one that was, or holds what the run made of that."""
        if here == asked:
            return True
        if not own.is_file():
            return not os.path.exists(here)  # it is gone, and nothing was made of it
        return os.path.isfile(asked) and files.sha256(own) == files.sha256(Path(asked))

    def _options(self) -> Mapping[str, Any]:
        """Every option of the run that is here: those that its version of weft did not have yet as they are by themselves."""
        values = self.read_resolved()
        try:
            return resolve(values, base=self.path).to_dict()
        except ConfigError:  # of a version that had others
            return values

    def has_started(self) -> bool:
        """Whether the run has a checkpoint to go on from."""
        return bool(checkpoint.names(self.path))

    def has_backup(self) -> str:
        """What is to be said of a run that is to replace another, and can't yet."""
        return (
            f"{self.path}: the run that is to replace the one in {self.backup.path} has no weights yet; weft train, without "
            "--overwrite, goes on with the one whose run file it is given"
        )

    @contextmanager
    def restore_on_failure(self) -> Iterator[None]:
        """If the block fails before the run has saved anything, the one that it was to replace is back; after a checkpoint
        that one goes on waiting. Call under the lock."""
        try:
            yield
        except BaseException:
            self.backup.repair()
            if self.backup.exists() and not self.has_started():
                self.backup.restore()
            raise

    def _places(self) -> list[Path]:
        """Where killed processes may have left something unfinished."""
        return [place for place in (self.path, self.data, self.inputs, checkpoint.checkpoints_dir(self.path)) if place.is_dir()]

    def drop_backup(self) -> None:
        """Finish what a process left that was killed when the run was: it may still have the run that it replaces, and more
        checkpoints than are kept."""
        left = any(files.leftovers(place) for place in self._places())
        if not (left or os.path.lexists(self.backup.path) or checkpoint.previous(self.path)):
            return  # nothing to do, which may be in a folder that nobody may write to
        with Lock(self.path):
            self.refuse_links()
            for place in self._places():
                files.sweep(place)
            self.backup.repair()
            self.backup.drop()
            checkpoint.drop_previous(self.path)

    def find_checkpoint(self, on_note: Callable[[str], None]) -> None:
        """Look for the checkpoint to go on from, which is then the newest; those that are damaged are dropped and `told` of.
        Call under the lock."""
        start, problems = checkpoint.newest(self.path)
        for problem in problems:
            on_note(problem if start is None else f"{problem}; the checkpoint before it is used")
        if start is None and problems:
            on_note("no checkpoint is whole: training starts again from the first step")
        if start is not None:
            self._check_meanings(checkpoint.known(start).get("beside", {}))
        checkpoint.drop_after(self.path, start)

    def meanings(self) -> dict[str, str]:
        """The SHA-256 of the files that give the numbers of a run their meaning, by name."""
        return {name: files.sha256(self.path / name) for name in FORMAT_NOTES if (self.path / name).exists()}

    def _check_meanings(self, known: Mapping[str, str]) -> None:
        """Refuse to go on with other tokens or labels than the run began with."""
        here = self.meanings()
        for name in sorted({*here, *known} if known else ()):
            if here.get(name) != known.get(name):
                seen = "is missing" if name not in here else "is not as it was when the run began"
                raise ModelError(self.path / name, f"{seen}", "put it back, or --overwrite trains the run again")

    def write_environment(self) -> list[str]:
        """Write environment.json; what differs from the machine that the run began on, if it did."""
        now = environment()
        path = self.path / "environment.json"
        if not path.exists():
            files.write_json(path, log.with_checksum(now))
            return []
        return describe_differences(read_environment(self.path), now)

    # ---- weights

    def write_weights(self, tensors: Mapping[str, Tensor] | Mapping[str, NDArray[Any]], vocabulary: str, step: int) -> None:
        notes = {"weft": FORMAT, "vocabulary": vocabulary, "settings": _sum(self.resolved.read_bytes()), "step": str(step)}
        if (name := not_finite(tensors, logs=True)) is not None:
            raise DivergedError(self.weights, f"{name} would hold NaN or infinity", "nothing was changed")
        write_tensors(self.weights, tensors, notes)
        self.backup.drop()

    def read_weights(self, vocabulary: str, *, logs: bool = False) -> dict[str, Tensor]:
        """The weights, or logarithms of probabilities; a file of the run that was swapped or changed is refused by name."""
        return self._read_weights(read_tensors, vocabulary, logs=logs)

    def read_arrays(self, vocabulary: str, *, logs: bool = False) -> dict[str, NDArray[Any]]:
        """The same as arrays of numpy, of models that need no torch."""
        return self._read_weights(read_arrays, vocabulary, logs=logs)

    def _read_weights(
        self, read: Callable[[Path], tuple[dict[str, T], dict[str, str]]], vocabulary: str, *, logs: bool
    ) -> dict[str, T]:
        if not self.weights.exists():
            raise ModelError(
                "",
                self.has_backup()
                if self.backup.exists()
                else f"{self.path}: has no model.safetensors yet; train it first (the same command resumes)",
            )
        cursor = self._last_cursor()  # first: the weights may become newer meanwhile, but not older
        tensors, notes = read(self.weights)
        if notes.get("weft") != FORMAT:
            raise ModelError(self.weights, f"is of version {notes.get('weft')!r}", f"this weft reads version {FORMAT}")
        if notes.get("vocabulary") != vocabulary:
            raise ModelError("", self._swapped())
        if notes.get("settings") != _sum(self.resolved.read_bytes()):
            raise ModelError(self.resolved, "was changed since the weights were written")
        if (name := not_finite(tensors, logs=logs)) is not None:
            raise ModelError(self.weights, f"{name} holds NaN or infinity", "nothing can be computed with it")
        if cursor is not None:
            self.check_step(cursor)
        return tensors

    def weights_step(self) -> int:
        """The step that the weights are of, from 1; 0 where they were not trained here."""
        noted = read_notes(self.weights).get("step", "")
        if not (noted.isascii() and noted.isdigit()):
            raise ModelError(self.weights, "is damaged or not written by weft: it does not say of which step it is")
        return int(noted)

    def check_step(self, cursor: TrainState) -> int:
        """The step of the weights: the best one that the cursor of a checkpoint knows of, or one after it, for a process may
        have been killed between its weights and its checkpoint. Others are refused: they are of an old copy."""
        found = self.weights_step()
        if found != cursor.best_step and found <= cursor.step:
            raise ModelError(self.weights, f"is of step {found}, but the best weights are of step {cursor.best_step}")
        return found

    def _last_cursor(self) -> TrainState | None:
        """Where the newest checkpoint stands, if there is one that can be read."""
        for name in reversed(checkpoint.names(self.path)):
            with suppress(ModelError, ResourceError):
                return checkpoint.read_train_state(checkpoint.checkpoints_dir(self.path) / name)
        return None

    def _swapped(self) -> str:
        """That weights know other tokens, labels or terms: by the files that say which."""
        terms = sorted(self.path.glob("features.*.json"))  # baselines read no tokens
        labels = list(self.path.glob("labels.json"))
        names = [*(terms or sorted(self.path.glob("tokenizer*.json"))), *labels]  # pairs may have two
        what = "what" if labels else "the tokenizer that"
        return f"{' or '.join(map(str, names))}: is not {what} the weights were trained with"


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_environment(path: Path) -> dict[str, Any]:
    """What the run folder `path` was trained with."""
    found = log.check_checksum(files.read_json(path / "environment.json", max_bytes=1 << 20))
    if found is None:
        raise ModelError(path / "environment.json", "is not as it was written", "remove it and resume")
    return found


def environment() -> dict[str, Any]:
    """What a run's numbers may depend on beside its run file."""
    import torch

    return {
        "weft": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "system": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }


def _is_utf_8(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def open_run_dir(path: Path) -> RunDir:
    """An existing run folder."""
    if not _is_utf_8(path):
        raise UsageError(path, "its name is not UTF-8, and no tensor file can be read there", "rename it")
    if os.path.isfile(path):
        kind = "a run file" if path.suffix == ".toml" else "a file"
        raise ModelError(path, f"is {kind}, not the folder of a run{suggestions.made_of(path)}")
    if not os.path.isdir(path):  # Path.is_dir fails on too long a name
        raise ModelError(path, f"no such run folder{suggestions.like(path)}")
    directory = RunDir(path)
    if not directory.resolved.is_file():
        raise ModelError(path, f"is no run folder: it has no resolved.toml{suggestions.inside(path)}")
    if directory.backup.exists() and not directory.has_started():  # there may be no more of it than its name
        raise ModelError("", directory.has_backup())
    return directory


def make_directory(path: Path) -> RunDir:
    if not _is_utf_8(path):
        raise UsageError(path, "its name is not UTF-8, and no tensor file can be read there", "choose another --output-dir")
    if path.name == aside.NAME:
        raise UsageError(
            path, "is where what is to be replaced waits, and nothing is made there", "choose another --output-dir"
        )
    if (file := files.blocking_file(path)) is not None:
        raise UsageError(path, f"{'' if file == path else f'{file} '}is a file, not a folder", "choose another --output-dir")
    try:
        files.make_directories(path)
    except OSError as error:
        raise ResourceError(path, f"can't be made: {error.strerror}") from None
    return RunDir(path)
