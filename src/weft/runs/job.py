"""One run from its file to its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import tomli_w

from weft.data.corpus import Corpus
from weft.data.opening import opened
from weft.data.tables import training
from weft.errors import ConfigError, UsageError
from weft.lock import Lock
from weft.runs.folder import RunFolder, make_folder, open_folder
from weft.runs.inputs import write_inputs
from weft.runs.resolve import read_settings, resolve
from weft.runs.settings import Settings
from weft.tasks.prepare import prepare
from weft.tasks.registry import TASKS, find_task
from weft.text.sides import tokenizer_files
from weft.train.device import pick_device
from weft.train.journal import Journal
from weft.train.loop import Loop
from weft.train.meaning import Weights
from weft.train.warm import Made, Origin


class Watcher(Protocol):
    """Who looks at a run while it goes on: the command line, or nobody."""

    def note(self, text: str) -> None: ...

    def working(self, name: str, done: int, total: int) -> None:
        """How much of something that takes a while is done: tokenising, counting, validating."""

    def step(self, loop: Loop, loss: float, seconds: float) -> None: ...

    def validated(self, loop: Loop, scores: dict[str, float]) -> None: ...

    def counted(self, parameters: int, scores: dict[str, float]) -> None: ...

    def stopping(self) -> bool: ...


@dataclass
class Job:
    """Everything a family needs to train."""

    settings: Settings
    folder: RunFolder
    tokenizer: Any  # a Tokenizer; of pairs, Sides
    corpora: Mapping[str, Corpus]
    watcher: Watcher

    def columns(self, split: str) -> list[Corpus]:
        """The tokens of a split, column by column; none where it is not given, or the model reads texts themselves. A text that
        is not trained on comes after what a text of the run comes after."""
        found = [corpus for name, corpus in self.corpora.items() if name.partition(".")[0] == split]
        return found if split == "train" else [opened(corpus, self.folder.path, self.tokenizer) for corpus in found]

    def origin(self) -> Origin:
        """The run that this one is to start from, checked."""
        path = Path(self.settings.train.init_from or "")
        if not (path / "model.safetensors").is_file():
            raise ConfigError(f"train.init_from: {path} has no model.safetensors; name the folder of a trained run")
        folder = open_folder(path)
        settings = read_settings(folder)
        tokenizer = settings.spec.data.load(folder)
        return Origin(
            path, Made(settings, tokenizer), folder.read_weights(tokenizer.hash, logs=settings.preset.estimator.shape is None)
        )

    def journal(self) -> Journal:
        data = {name: corpus.origin for name, corpus in self.corpora.items()}
        return Journal(self.folder, self.tokenizer.hash, data=data, tensorboard=self.settings.train.tensorboard)


def _refuse_loss(settings: Settings, out: Path) -> None:
    """Refuse to start over where what is deleted is what the run is to be made from: a run that is trained on, in place."""
    table = settings.to_dict()["tokenizer"]
    tables = [table, *(table[side] for side in ("source", "target") if side in table)]
    for path in (settings.train.init_from, *(found.get("file") for found in tables)):
        if path is not None and Path(path).resolve().is_relative_to(out.resolve()):
            raise UsageError(f"{out}: --fresh would delete {path}, which this run starts from; choose another --out")


def train(
    values: Mapping[str, Any],
    out: Path,
    *,
    base: Path,
    watcher: Watcher,
    fresh: bool = False,
    held: Mapping[str, object] | None = None,
) -> RunFolder:
    """Train what a run file says into `out`, or go on where an earlier process stopped; paths are seen from `base`. A `fresh`
    run takes the place of one that is there, once it has weights. `held` is data in memory, by split, that goes into `out`."""
    settings = resolve(values, base=base)
    training(settings.datasets)  # before a folder is made, or data is read
    pick_device(settings.train.device)
    folder = make_folder(out)
    folder.refuse_strangers()
    if fresh:
        _refuse_loss(settings, folder.path)
    with Lock(out), folder.or_as_it_was():
        if folder.begin(settings, tomli_w.dumps(dict(values)), fresh=fresh):
            watcher.note(f"{out}: the run that was to be replaced is back; nothing was saved of the other")
        write_inputs(settings, folder, held or {})
        changed = folder.note_environment()
        if changed:
            watcher.note(f"resuming on another machine or set-up, so not bit for bit ({'; '.join(changed)})")
        folder.find_start(watcher.note)
        tokenizer, corpora = prepare(settings.spec, settings, folder, watcher)
        settings.preset.estimator.train(Job(settings, folder, tokenizer, corpora, watcher))
    return folder


def _weights(task: Any) -> Weights | None:
    """What the weights of a task mean that a run file, or a run, names; None where there is no such task."""
    return find_task(task).weights if isinstance(task, str) and task in TASKS else None


def borrow_for_start(values: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """The run file with the tokenizer of the run that it is to start from; of pairs, where that one has a single stack, for the
    side that starts from it, unless both sides must have one tokenizer."""
    model, own = values.get("model"), values.get("tokenizer", {})
    here, there = _weights(values.get("task")), _weights(open_folder(run).read_resolved().get("task"))
    two, both = (one is not None and one.in_decoder is not None for one in (here, there))
    joint = not isinstance(model, Mapping) or model.get("shared") or model.get("copying")
    if not two or both or joint or not isinstance(own, Mapping):
        return borrow_tokenizer(values, run)
    side = "target" if there is not None and there.continues else "source"
    sides = own if "source" in own or "target" in own else {"source": own, "target": own}
    return {**values, "tokenizer": {**sides, side: borrow_tokenizer({}, run)["tokenizer"]}}


def borrow_tokenizer(values: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """The run file with the tokenizer of another run."""
    found = {path.name.removesuffix(".json"): {"file": str(path.resolve())} for path in tokenizer_files(open_folder(run).path)}
    if "tokenizer" in found:
        return {**values, "tokenizer": found["tokenizer"]}
    if len(found) < 2:
        raise UsageError(f"--tokenizer-from: {run} has no tokenizer.json")
    return {**values, "tokenizer": {side: found[f"tokenizer.{side}"] for side in ("source", "target")}}
