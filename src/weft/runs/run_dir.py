"""The run directory, which training writes and all other commands read.

run.toml as written, resolved.toml with every option, tokenizer.json, data/ (token files), model.safetensors (the best weights),
metrics.jsonl (depends on the run only), timings.jsonl, checkpoints/, environment.json, machines.jsonl; with train.num_samples,
samples.jsonl; for data from memory, inputs/.
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

from weft import __version__, backup, files, log
from weft.config import describe_differences, read_toml
from weft.data.bos import FILE as BOS_FILE
from weft.errors import ConfigError, DivergedError, ModelError, ResourceError, UsageError
from weft.lock import Lock
from weft.runs import suggestions
from weft.runs.config import RunConfig
from weft.runs.machine import this_machine, torch_version, write_machine
from weft.runs.resolve import resolve
from weft.tensors import not_finite, read_arrays, read_metadata, read_tensors, write_tensors
from weft.training import checkpoint
from weft.training.train_state import TrainState

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T", "Tensor", NDArray[Any])
FORMAT = "1"
INPUTS = "inputs"  # files with data from memory
# files that map the IDs of a run to tokens and labels
VOCABULARY_FILES = (*(f"tokenizer{side}.json" for side in ("", ".source", ".target", ".char")), "labels.json", BOS_FILE)
NOT_UTF_8 = "the directory name is not valid UTF-8, so tensor files in it cannot be read"


class RunDir:
    """One run on disk. Writing requires its lock; reading does not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # whether the data is named by a run file of the user: then it may differ from the training data
        self.has_own_run_file = False
        self.backup = backup.Backup(path, self.resolved.name)  # the old run, until the new one has weights

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
        """The content of resolved.toml. It was written by weft, so an error in it means that it is corrupted."""
        try:
            return read_toml(self.resolved)
        except ConfigError as error:
            raise ModelError(error.where, error.problem, error.fix) from None

    # ---- beginning

    def refuse_links(self) -> None:
        """Refuse a link, a pipe or a device in place of a subdirectory: files outside the run would be written, moved or
        removed. Call with the lock, before anything is changed."""
        for name in ("data", INPUTS, "checkpoints", "results", "tensorboard", backup.NAME):
            files.refuse_link(self.path / name)

    def check_is_run_dir(self) -> None:
        """Refuse a directory that is neither empty nor a run. Call it before locking, because the lock is a file in it."""
        if not self.resolved.is_file() and (entries := self.backup.contents()):
            raise UsageError(
                self.path, f"not empty and not a run directory (contains {entries[0].name})", "choose another `output_dir`"
            )

    def begin(self, config: RunConfig, run_file: str, *, overwrite: bool) -> bool:
        """Start a run in an empty directory, or check that the run in the directory is this one. Call with the lock.

        resolved.toml marks a directory as a run, so it is written first.

        Args:
            config: The resolved configuration.
            run_file: The text of the run file.
            overwrite: Move the run in the directory to the backup and start over.

        Returns:
            Whether the old run was restored from the backup.

        Raises:
            UsageError: The directory contains another run or other files.
        """
        self.refuse_links()
        for directory in self._directories():
            files.remove_temporary_files(directory)
        self.backup.repair()
        if self.backup.exists() and self.weights.exists():
            self.backup.delete()  # the previous process was killed before it could
        if overwrite and self.resolved.is_file():  # foreign files are refused below, unless the directory is empty
            self.backup.create()
        is_backup = self.backup.exists() and not RunDir(self.backup.path).changes(config)
        is_restored = is_backup and not overwrite and not self.has_started()
        if is_restored:  # the new run was killed before it saved anything
            self.backup.restore()
        if self.resolved.is_file():
            if changes := self.changes(config):
                started = self.path / "checkpoints"
                resume = f"; to resume the old run in {self.backup.path}, remove {started}" if is_backup else ""
                raise UsageError(
                    self.path,
                    f"contains a run with different options ({'; '.join(changes[:3])})",
                    f"choose another `output_dir` or use `overwrite`{resume}",
                )
        else:
            self.check_is_run_dir()
            files.write_text(self.resolved, config.to_toml())
        if not (self.path / "run.toml").exists():
            files.write_text(self.path / "run.toml", run_file)
        self.refuse_links()  # the restored run may contain links
        return is_restored

    def changes(self, config: RunConfig) -> list[str]:
        """The differences between the options of this run and `config`, as text. Tokenizer files with the same content are
        equal wherever they are: a comparison that was moved can be resumed."""
        current, new = dict(self._options()), config.to_dict()
        if self._has_same_tokenizers(current.get("tokenizer"), new["tokenizer"]):
            current["tokenizer"] = new["tokenizer"]
        return describe_differences(current, new)

    def _has_same_tokenizers(self, current: Any, new: Mapping[str, Any]) -> bool:
        """Whether both configurations name tokenizer files, and the new files have the content of the run's tokenizers."""
        if not isinstance(current, dict) or current.keys() != new.keys():
            return False
        if "file" in new:
            return self._is_same_file(current["file"], new["file"], self.tokenizer)
        tables = [table for config in (current, new) for table in config.values() if isinstance(table, dict)]
        return all("file" in table for table in tables) and all(
            isinstance(new[side], dict)
            and self._is_same_file(current[side]["file"], new[side]["file"], self.path / f"tokenizer.{side}.json")
            for side in new
        )

    def _is_same_file(self, current: str, new: str, copy: Path) -> bool:
        """Whether the new tokenizer file is the current one, or equals the copy in the run directory."""
        if current == new:
            return True
        if not copy.is_file():
            return not os.path.exists(current)  # removed before it was copied
        return os.path.isfile(new) and files.sha256(copy) == files.sha256(Path(new))

    def _options(self) -> Mapping[str, Any]:
        """All options of this run; options that are newer than the run have their defaults."""
        values = self.read_resolved()
        try:
            return resolve(values, base=self.path).to_dict()
        except ConfigError:  # written by a version with other options
            return values

    def has_started(self) -> bool:
        """Whether the run has a checkpoint to resume from."""
        return bool(checkpoint.names(self.path))

    def not_trained(self) -> ModelError:
        """The error for a run without weights."""
        if not self.backup.exists():
            return ModelError(self.path, "not trained yet", "run weft train")
        return ModelError(
            self.path,
            f"a new run has started here but has no weights yet (the old run is in {self.backup.path})",
            "run weft train without `overwrite` to resume",
        )

    @contextmanager
    def restore_on_failure(self) -> Iterator[None]:
        """If the block fails before the run has a checkpoint, restore the old run. Call with the lock."""
        try:
            yield
        except BaseException:
            self.backup.repair()
            if self.backup.exists() and not self.has_started():
                self.backup.restore()
            raise

    def _directories(self) -> list[Path]:
        """Directories in which killed processes may have left temporary files."""
        directories = (self.path, self.data, self.inputs, checkpoint.checkpoints_dir(self.path))
        return [directory for directory in directories if directory.is_dir()]

    def drop_backup(self) -> None:
        """Clean up after a process that was killed when the run was complete: remove the backup of the old run, temporary
        files and surplus checkpoints."""
        has_leftovers = any(files.temporary_files(directory) for directory in self._directories())
        if not (has_leftovers or os.path.lexists(self.backup.path) or checkpoint.expired(self.path)):
            return  # the directory may be read-only
        with Lock(self.path):
            self.refuse_links()
            for directory in self._directories():
                files.remove_temporary_files(directory)
            self.backup.repair()
            self.backup.delete()
            checkpoint.remove_expired(self.path)

    def find_checkpoint(self, on_note: Callable[[str], None]) -> None:
        """Find the checkpoint to resume from, and remove corrupted ones, which are reported to `on_note`. Call with the
        lock."""
        start, problems = checkpoint.newest(self.path)
        for problem in problems:
            on_note(problem if start is None else f"{problem}; resuming from the previous checkpoint")
        if start is None and problems:
            on_note("all checkpoints are corrupted; training restarts from step 0")
        if start is not None:
            self._check_vocabulary(checkpoint.checksums(start).get("vocabulary", {}))
        checkpoint.remove_after(self.path, start)

    def vocabulary_checksums(self) -> dict[str, str]:
        """The SHA-256 of each file that maps the IDs of the run to tokens or labels."""
        return {name: files.sha256(self.path / name) for name in VOCABULARY_FILES if (self.path / name).exists()}

    def _check_vocabulary(self, expected: Mapping[str, str]) -> None:
        """Refuse to resume with other tokens or labels than the run started with."""
        checksums = self.vocabulary_checksums()
        for name in sorted({*checksums, *expected} if expected else ()):
            if checksums.get(name) != expected.get(name):
                problem = "has changed since the run started" if name in checksums else "file is missing"
                raise ModelError(self.path / name, problem, "restore it, or train again with `overwrite`")

    def write_environment(self, threads: int | None = None) -> list[str]:
        """Write environment.json, or return the differences from the existing one, as text. `threads` as in `this_machine`."""
        current = environment(threads)
        write_machine(self.path, max(map(int, checkpoint.names(self.path)), default=0), threads)
        path = self.path / "environment.json"
        if not path.exists():
            files.write_json(path, log.with_checksum(current))
            return []
        return describe_differences(read_environment(self.path), current)

    # ---- weights

    def weights_metadata(self, vocabulary: str, step: int) -> dict[str, str]:
        """The metadata of weights that were trained here."""
        return {"weft": FORMAT, "vocabulary": vocabulary, "config": _sha256(self.resolved), "step": str(step)}

    def write_weights(self, tensors: Mapping[str, Tensor] | Mapping[str, NDArray[Any]], vocabulary: str, step: int) -> None:
        if (name := not_finite(tensors, logs=True)) is not None:
            raise DivergedError(self.weights, f"{name} has NaN or infinite values, so it was not written")
        write_tensors(self.weights, tensors, self.weights_metadata(vocabulary, step))
        self.backup.delete()

    def read_weights(self, vocabulary: str, *, logs: bool = False) -> dict[str, Tensor]:
        """The weights, or log-probabilities (`logs`: they may be -inf). Raises ModelError if a file of the run was replaced or
        changed."""
        return self._read_weights(read_tensors, vocabulary, logs=logs)

    def read_arrays(self, vocabulary: str, *, logs: bool = False) -> dict[str, NDArray[Any]]:
        """The same as NumPy arrays, for models that do not need torch."""
        return self._read_weights(read_arrays, vocabulary, logs=logs)

    def _read_weights(
        self, read: Callable[[Path], tuple[dict[str, T], dict[str, str]]], vocabulary: str, *, logs: bool
    ) -> dict[str, T]:
        if not self.weights.exists():
            raise self.not_trained()
        train_state = self._last_train_state()  # first: the weights may become newer meanwhile, but not older
        tensors, metadata = read(self.weights)
        if metadata.get("weft") != FORMAT:
            raise ModelError(self.weights, f"format version {metadata.get('weft')!r} is not supported (expected {FORMAT})")
        if metadata.get("vocabulary") != vocabulary:
            raise self._wrong_vocabulary()
        if metadata.get("config") != _sha256(self.resolved):
            raise ModelError(self.resolved, "has changed since the weights were written")
        if (name := not_finite(tensors, logs=logs)) is not None:
            raise ModelError(self.weights, f"{name} has NaN or infinite values")
        if train_state is not None:
            self.check_step(train_state)
        return tensors

    def weights_step(self) -> int:
        """The training step of the weights, from 1; 0 if they were not trained here."""
        step = read_metadata(self.weights).get("step", "")
        if not (step.isascii() and step.isdigit()):
            raise ModelError(self.weights, "corrupted or not written by weft (its metadata has no step)")
        return int(step)

    def check_step(self, train_state: TrainState) -> int:
        """The step of the weights: the best step in the training state, or a later one, since a process may have been killed
        after it wrote weights and before it wrote a checkpoint. Older weights are refused: they are from an old copy."""
        step = self.weights_step()
        if step != train_state.best_step and step <= train_state.step:
            raise ModelError(self.weights, f"is from step {step}, but the best weights are from step {train_state.best_step}")
        return step

    def _last_train_state(self) -> TrainState | None:
        """The training state of the newest readable checkpoint."""
        for name in reversed(checkpoint.names(self.path)):
            with suppress(ModelError, ResourceError):
                return checkpoint.read_train_state(checkpoint.checkpoints_dir(self.path) / name)
        return None

    def _wrong_vocabulary(self) -> ModelError:
        """The error for weights of another tokenizer, label set or feature set: it names the files that may be wrong."""
        features = sorted(self.path.glob("features.*.json"))  # baselines have no tokens
        paths = [*(features or sorted(self.path.glob("tokenizer*.json"))), *self.path.glob("labels.json")]
        return ModelError(" or ".join(map(str, paths)), "not the file that the weights were trained with")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_environment(path: Path) -> dict[str, Any]:
    """The environment that the run in `path` was trained in."""
    content = log.check_checksum(files.read_json(path / "environment.json", max_bytes=1 << 20))
    if content is None:
        raise ModelError(path / "environment.json", "checksum mismatch; the file is corrupted", "remove it and resume")
    return content


def environment(threads: int | None = None) -> dict[str, Any]:
    """Versions and hardware that the results of a run may depend on. `threads` as in `this_machine`."""
    machine = this_machine(threads)
    return {
        "weft": __version__,
        "python": platform.python_version(),
        "torch": torch_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": machine.processor,
        "threads": machine.threads,
        "gpu": machine.gpu,
    }


def _is_utf_8(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def open_run_dir(path: Path) -> RunDir:
    """An existing run directory."""
    if not _is_utf_8(path):
        raise UsageError(path, NOT_UTF_8, "rename it")
    if os.path.isfile(path):
        kind = "a run file" if path.suffix == ".toml" else "a file"
        raise ModelError(path, f"is {kind}, not a run directory", suggestions.run_of_file(path))
    if not os.path.isdir(path):  # Path.is_dir fails if the name is too long
        raise ModelError(path, "run directory not found", suggestions.similar_run(path))
    directory = RunDir(path)
    if not directory.resolved.is_file():
        raise ModelError(path, "not a run directory (resolved.toml is missing)", suggestions.runs_inside(path))
    if directory.backup.exists() and not directory.has_started():  # the new run may be no more than a name
        raise directory.not_trained()
    return directory


def make_directory(path: Path) -> RunDir:
    """Create a directory for a run, with its parents, unless it exists."""
    if not _is_utf_8(path):
        raise UsageError(path, NOT_UTF_8, "choose another `output_dir`")
    if path.name == backup.NAME:
        raise UsageError(path, f"{backup.NAME} is reserved for backups", "choose another `output_dir`")
    if (file := files.blocking_file(path)) is not None:
        raise UsageError(path, f"{'' if file == path else f'{file} '}is a file, not a directory", "choose another `output_dir`")
    try:
        files.make_directories(path)
    except OSError as error:
        raise ResourceError(path, f"cannot create directory: {error.strerror}") from None
    return RunDir(path)
