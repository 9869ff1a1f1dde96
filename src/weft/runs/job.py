"""One run from its file to its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import tomli_w

from weft.data.bos import with_bos
from weft.data.config import training
from weft.data.corpus import Corpus
from weft.errors import ConfigError, UsageError
from weft.lock import Lock
from weft.runs.config import RunConfig
from weft.runs.memory_data import write_inputs
from weft.runs.resolve import read_settings, resolve
from weft.runs.run_dir import RunDir, make_directory, open_run_dir
from weft.tasks.prepare import prepare
from weft.tasks.registry import TASKS, find_task
from weft.text.tokenizer_pair import tokenizer_files
from weft.training.device import pick_device
from weft.training.init_weights import BuiltRun, InitRun
from weft.training.loop import Loop
from weft.training.run_log import RunLogWriter
from weft.training.weight_compatibility import Weights


class JobCallback(Protocol):
    """Who looks at a run while it goes on: the command line, or nobody."""

    def on_note(self, text: str) -> None: ...

    def on_data(self, summary: str) -> None:
        """The training data has been read; `summary` describes it in a few lines."""

    def on_progress(self, name: str, done: int, total: int) -> None:
        """How much of something that takes a while is done: tokenising, counting, validating."""

    def on_step(self, loop: Loop, loss: float, seconds: float) -> None: ...

    def on_validation(self, loop: Loop, scores: dict[str, float]) -> None: ...

    def on_fit(self, num_parameters: int, scores: dict[str, float]) -> None: ...

    def should_stop(self) -> bool: ...


@dataclass
class Job:
    """Everything a family needs to train."""

    config: RunConfig
    directory: RunDir
    tokenizer: Any  # a Tokenizer; of pairs, Sides
    corpora: Mapping[str, Corpus]
    callback: JobCallback

    def columns(self, split: str) -> list[Corpus]:
        """The tokens of a split, column by column; none where it is not given, or the model reads texts themselves. A text that
        is not trained on comes after what a text of the run comes after."""
        found = [corpus for name, corpus in self.corpora.items() if name.partition(".")[0] == split]
        return found if split == "train" else [with_bos(corpus, self.directory.path, self.tokenizer) for corpus in found]

    def init_run(self) -> InitRun:
        """The run that this one is to start from, checked."""
        path = Path(self.config.train.init_from or "")
        if not (path / "model.safetensors").is_file():
            raise ConfigError("train.init_from", f"{path} has no model.safetensors", "name the folder of a trained run")
        directory = open_run_dir(path)
        config = read_settings(directory)
        tokenizer = config.spec.data.load(directory)
        return InitRun(
            path,
            BuiltRun(config, tokenizer),
            directory.read_weights(tokenizer.hash, logs=config.preset.estimator.shape is None),
        )

    def run_log(self) -> RunLogWriter:
        data = {name: corpus.provenance for name, corpus in self.corpora.items()}
        return RunLogWriter(self.directory, self.tokenizer.hash, data=data, tensorboard=self.config.train.tensorboard)


def _check_overwrite(settings: RunConfig, out: Path) -> None:
    """Refuse to start over where what is deleted is what the run is to be made from: a run that is trained on, in place."""
    table = settings.to_dict()["tokenizer"]
    tables = [table, *(table[side] for side in ("source", "target") if side in table)]
    for path in (settings.train.init_from, *(found.get("file") for found in tables)):
        if path is not None and Path(path).resolve().is_relative_to(out.resolve()):
            raise UsageError(out, f"--overwrite would delete {path}, which this run starts from", "choose another --output-dir")


def train(
    values: Mapping[str, Any],
    out: Path,
    *,
    base: Path,
    callback: JobCallback,
    overwrite: bool = False,
    held: Mapping[str, object] | None = None,
) -> RunDir:
    """Train what a run file says into `out`, or go on where an earlier process stopped; paths are seen from `base`. A `fresh`
    run takes the place of one that is there, once it has weights. `held` is data in memory, by split, that goes into `out`."""
    config = resolve(values, base=base)
    training(config.datasets)  # before a folder is made, or data is read
    pick_device(config.train.device)
    directory = make_directory(out)
    directory.check_is_run_dir()
    if overwrite:
        _check_overwrite(config, directory.path)
    with Lock(out), directory.restore_on_failure():
        if directory.begin(config, tomli_w.dumps(dict(values)), overwrite=overwrite):
            callback.on_note(f"{out}: the run that was to be replaced is back; nothing was saved of the other")
        write_inputs(config, directory, held or {})
        changed = directory.write_environment()
        if changed:
            callback.on_note(f"resuming on another machine or set-up, so not bit for bit ({'; '.join(changed)})")
        directory.find_checkpoint(callback.on_note)
        tokenizer, corpora = prepare(config.spec, config, directory, callback)
        config.preset.estimator.train(Job(config, directory, tokenizer, corpora, callback))
    return directory


def _weights(task: Any) -> Weights | None:
    """What the weights of a task mean that a run file, or a run, names; None where there is no such task."""
    return find_task(task).weights if isinstance(task, str) and task in TASKS else None


def with_tokenizer_of_init(values: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """The run file with the tokenizer of the run that it is to start from; of pairs, where that one has a single stack, for the
    side that starts from it, unless both sides must have one tokenizer."""
    model, own = values.get("model"), values.get("tokenizer", {})
    here, there = _weights(values.get("task")), _weights(open_run_dir(run).read_resolved().get("task"))
    two, both = (one is not None and one.in_decoder is not None for one in (here, there))
    joint = not isinstance(model, Mapping) or model.get("shared") or model.get("copying")
    if not two or both or joint or not isinstance(own, Mapping):
        return with_tokenizer_from(values, run)
    side = "target" if there is not None and there.continues else "source"
    sides = own if "source" in own or "target" in own else {"source": own, "target": own}
    return {**values, "tokenizer": {**sides, side: with_tokenizer_from({}, run)["tokenizer"]}}


def with_tokenizer_from(values: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """The run file with the tokenizer of another run."""
    found = {path.name.removesuffix(".json"): {"file": str(path.resolve())} for path in tokenizer_files(open_run_dir(run).path)}
    if "tokenizer" in found:
        return {**values, "tokenizer": found["tokenizer"]}
    if len(found) < 2:
        raise UsageError("--tokenizer-from", f"{run} has no tokenizer.json")
    return {**values, "tokenizer": {side: found[f"tokenizer.{side}"] for side in ("source", "target")}}
