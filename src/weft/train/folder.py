"""The run folder: what `train` writes and everything else reads.

run.toml as written, resolved.toml with every option, tokenizer.json, data/ (tokens on disk), model.safetensors (the best
weights), metrics.jsonl (functions of the run only), timings.jsonl, checkpoints/, environment.json.
"""

from __future__ import annotations

import hashlib
import os
import platform
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft import __version__, aside, files
from weft.config import differences, read_toml
from weft.errors import ConfigError, ModelError, ResourceError, UsageError
from weft.tensors import read_tensors, write_tensors
from weft.train import checkpoint
from weft.train.loop import Loop
from weft.train.settings import Settings, resolve

FORMAT = "1"


class RunFolder:
    """One run on disk. Writing happens under its lock; reading needs none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.aside = aside.Aside(path, self.resolved.name)  # the run that is to be replaced, until the new one has weights

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
    def resolved(self) -> Path:
        return self.path / "resolved.toml"

    def read_resolved(self) -> dict[str, Any]:
        """resolved.toml as it is; it was written by weft, so a fault in it is damage."""
        try:
            return read_toml(self.resolved)
        except ConfigError as error:
            raise ModelError(str(error)) from None

    # ---- beginning

    def refuse_strangers(self) -> None:
        """Leave a folder alone that holds something, but no run. Call it before the lock, too, which is a file in it."""
        if not self.resolved.is_file() and (strangers := self.aside.contents()):
            raise UsageError(f"{self.path}: is no run folder and not empty ({strangers[0].name}); choose another --out")

    def begin(self, settings: Settings, written: str, *, fresh: bool) -> bool:
        """Make the folder, or find it as this very run left it; whether a run that was to be replaced is back. Call under the
        lock.

        resolved.toml is what makes a folder a run's: it is written first, before all else.
        """
        for place in (self.path, self.data, self.path / "checkpoints"):
            if place.is_dir():
                files.sweep(place)
        self.aside.mend()
        if self.aside.is_there() and self.weights.exists():
            self.aside.drop()  # a process was killed just before that
        if fresh and self.resolved.is_file():  # what is not ours is refused below, unless the folder is empty
            self.aside.put()
        asked = self.aside.is_there() and not RunFolder(self.aside.place).changes(settings)
        back = asked and not fresh and not self.has_begun()
        if back:  # the one that was to replace this run was killed before it saved anything
            self.aside.bring_back()
        if self.resolved.is_file():
            found = self.changes(settings)
            if found:
                started = self.path / "checkpoints"
                cure = f"; remove {started} to go on with the one that waits in {self.aside.place}" if asked else ""
                raise UsageError(
                    f"{self.path}: holds another run ({'; '.join(found[:3])}); choose another --out, or --fresh{cure}"
                )
        else:
            self.refuse_strangers()
            files.write_text(self.resolved, settings.to_toml())
        if not (self.path / "run.toml").exists():
            files.write_text(self.path / "run.toml", written)
        return back

    def changes(self, settings: Settings) -> list[str]:
        """What differs between the run that is here and `settings`. A tokenizer that is named by its file is the same wherever
        the file lies, if it holds what the run has: a comparison that was moved goes on."""
        here, asked = dict(self._options()), settings.to_dict()
        if self._same_tokenizers(here.get("tokenizer"), asked["tokenizer"]):
            here["tokenizer"] = asked["tokenizer"]
        return differences(here, asked)

    def _same_tokenizers(self, here: Any, asked: Mapping[str, Any]) -> bool:
        """Whether all tokenizers are named by files on both sides, and those that are asked for hold what the run has."""
        if not isinstance(here, dict) or here.keys() != asked.keys():
            return False
        if "file" in asked:
            return self._same_file(here["file"], asked["file"], self.tokenizer)
        named = all("file" in table for tables in (here, asked) for table in tables.values() if isinstance(table, dict))
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

    def has_begun(self) -> bool:
        """Whether the run has a checkpoint to go on from."""
        return bool(checkpoint.names(self.path))

    def waiting(self) -> str:
        """What is to be said of a run that is to replace another, and can't yet."""
        return (
            f"{self.path}: the run that is to replace the one in {self.aside.place} has no weights yet; weft train, without "
            "--fresh, goes on with the one whose run file it is given"
        )

    @contextmanager
    def or_as_it_was(self) -> Iterator[None]:
        """If the block fails before the run has saved anything, the one that it was to replace is back; after a checkpoint
        that one goes on waiting. Call under the lock."""
        try:
            yield
        except BaseException:
            self.aside.mend()
            if self.aside.is_there() and not self.has_begun():
                self.aside.bring_back()
            raise

    def settle(self) -> None:
        """A process may have been killed between the run's weights and the end of the one that it replaces."""
        if os.path.exists(self.aside.place):
            with files.Lock(self.path):
                self.aside.mend()
                self.aside.drop()

    def note_environment(self) -> list[str]:
        """Write environment.json; what differs from the machine that the run began on, if it did."""
        now = environment()
        path = self.path / "environment.json"
        if not path.exists():
            files.write_json(path, now)
            return []
        return differences(read_environment(self.path), now)

    # ---- weights

    def write_weights(self, tensors: Mapping[str, Tensor], vocabulary: str, step: int) -> None:
        notes = {"weft": FORMAT, "vocabulary": vocabulary, "settings": _sum(self.resolved.read_bytes()), "step": str(step)}
        write_tensors(self.weights, tensors, notes)
        self.aside.drop()

    def read_weights(self, vocabulary: str) -> dict[str, Tensor]:
        """The run's weights; a file of it that was swapped or changed is refused by name."""
        if not self.weights.exists():
            raise ModelError(
                self.waiting()
                if self.aside.is_there()
                else f"{self.path}: has no model.safetensors yet; train it first (the same command resumes)"
            )
        tensors, notes = read_tensors(self.weights)
        if notes.get("weft") != FORMAT:
            raise ModelError(f"{self.weights}: is of version {notes.get('weft')!r}; this weft reads version {FORMAT}")
        if notes.get("vocabulary") != vocabulary:
            raise ModelError(self._swapped())
        if notes.get("settings") != _sum(self.resolved.read_bytes()):
            raise ModelError(f"{self.resolved}: was changed since the weights were written")
        return tensors

    def _swapped(self) -> str:
        """That weights know other tokens, labels or terms: by the files that say which."""
        terms = sorted(self.path.glob("features.*.json"))  # baselines read no tokens
        labels = list(self.path.glob("labels.json"))
        names = [*(terms or sorted(self.path.glob("tokenizer*.json"))), *labels]  # pairs may have two
        what = "what" if labels else "the tokenizer that"
        return f"{' or '.join(map(str, names))}: is not {what} the weights were trained with"


class Journal:
    """Writes a run down while it is trained by gradients."""

    def __init__(self, folder: RunFolder, vocabulary: str, *, tensorboard: bool = False) -> None:
        self.folder, self.vocabulary = folder, vocabulary
        self.open_board = board_opener(folder.path / "tensorboard") if tensorboard else None
        self.board: Any = None
        self.metrics = files.Log(folder.path / "metrics.jsonl")
        self.timings = files.Log(folder.path / "timings.jsonl")

    def log(self, record: dict[str, Any]) -> int:
        self.metrics.write(record)
        if self.board is None and self.open_board is not None:
            # what a killed process logged after its last checkpoint comes again, from this step on
            self.board = self.open_board(record["step"])
        for name in record:
            if self.board is not None and name not in ("step", "epoch"):
                self.board.add_scalar(name, record[name], record["step"])
        return self.metrics.length

    def save(self, loop: Loop) -> None:
        self.metrics.sync()
        checkpoint.save(loop, self.folder.path)
        cursor, memory = loop.cursor, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.timings.write(
            {
                "step": cursor.step,
                "seconds": cursor.seconds,
                "tokens_per_second": cursor.tokens / cursor.seconds if cursor.seconds else None,
                "peak_memory": torch.cuda.max_memory_allocated() if loop.place.device.type == "cuda" else memory,
            }
        )

    def keep_best(self, model: nn.Module, step: int) -> None:
        self.folder.write_weights(model.state_dict(), self.vocabulary, step)

    def close(self) -> None:
        self.metrics.close()
        self.timings.close()
        if self.board is not None:
            self.board.close()


def board_opener(path: Path) -> Callable[[int], Any]:
    """What opens a writer of TensorBoard event files that takes the place of all points from a step on."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ResourceError('train.tensorboard: needs the package tensorboard: pip install "weft[tensorboard]"') from None
    return lambda step: SummaryWriter(path, purge_step=step)


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_environment(path: Path) -> dict[str, Any]:
    """What the run folder `path` was trained with."""
    found = files.read_json(path / "environment.json")
    if not isinstance(found, dict):
        raise ModelError(f"{path / 'environment.json'}: is damaged: it holds no table; remove it and resume")
    return found


def environment() -> dict[str, Any]:
    """What a run's numbers may depend on beside its run file."""
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


def open_folder(path: Path) -> RunFolder:
    """An existing run folder."""
    if not _is_utf_8(path):
        raise UsageError(f"{path}: its name is not UTF-8, and no tensor file can be read there; rename it")
    if os.path.isfile(path):
        kind = "a run file" if path.suffix == ".toml" else "a file"
        raise ModelError(f"{path}: is {kind}, not the folder of a run")
    if not os.path.isdir(path):  # Path.is_dir fails on too long a name
        raise ModelError(f"{path}: no such run folder")
    folder = RunFolder(path)
    if not folder.resolved.is_file():
        raise ModelError(f"{path}: is no run folder: it has no resolved.toml")
    if folder.aside.is_there() and not folder.has_begun():  # there may be no more of it than its name
        raise ModelError(folder.waiting())
    return folder


def make_folder(path: Path) -> RunFolder:
    if not _is_utf_8(path):
        raise UsageError(f"{path}: its name is not UTF-8, and no tensor file can be read there; choose another --out")
    if path.name == aside.NAME:
        raise UsageError(f"{path}: is where what is to be replaced waits, and nothing is made there; choose another --out")
    if (file := files.in_the_way(path)) is not None:
        raise UsageError(f"{path}: {'' if file == path else f'{file} '}is a file, not a folder; choose another --out")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"{path}: can't be made: {error.strerror}") from None
    return RunFolder(path)
