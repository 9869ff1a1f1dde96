"""Training of one run, from its run file to its run directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import tomli_w

from weft.data.bos import with_bos
from weft.data.config import training
from weft.data.corpus import Corpus
from weft.errors import ConfigError, DataError, UsageError
from weft.lock import Lock
from weft.parallel.group import ALONE, Group
from weft.runs.config import RunConfig
from weft.runs.memory_data import write_inputs
from weft.runs.open_vectors import open_vectors
from weft.runs.recommend import Recommendation, complete, describe
from weft.runs.resolve import read_config
from weft.runs.run import AnyRun
from weft.runs.run_dir import RunDir, make_directory, open_run_dir
from weft.runs.teachers import load_teachers, write_teachers
from weft.tasks.prepare import prepare
from weft.tasks.registry import TASKS, find_task
from weft.text.tokenizer_pair import tokenizer_files
from weft.training.device import uses_gpu
from weft.training.weight_compatibility import Weights
from weft.vectors.word_vectors import WordVectors

if TYPE_CHECKING:
    from weft.training.follower_log import FollowerLog
    from weft.training.init_weights import InitRun
    from weft.training.loop import Loop
    from weft.training.run_log import RunLogWriter

RewardFunction = Callable[[Sequence[str], Sequence[str]], Sequence[float]]  # from prompts and responses to rewards


class JobInputs(NamedTuple):
    """What a program gives to a training besides the run file."""

    files: Mapping[str, Path] = {}  # temporary files of data in memory, by split, which are copied to the run directory
    reward: RewardFunction | None = None
    group: Group = ALONE  # the processes that train together
    threads: int | None = None  # that torch would use, for models that do not import it; None: torch is asked


NO_INPUTS = JobInputs()


class JobCallback(Protocol):
    """Receives the progress of a run, such as the progress display of the command line."""

    def on_note(self, text: str) -> None: ...

    def on_data(self, summary: str) -> None:
        """Called when the training data has been read; `summary` describes it in a few lines."""

    def on_progress(self, phase: str, done: int, total: int) -> None:
        """Called during tokenizing, counting and validating."""

    def on_step(self, loop: Loop, loss: float, seconds: float) -> None: ...

    def on_validation(self, loop: Loop, scores: dict[str, float]) -> None: ...

    def on_fit(self, num_parameters: int, scores: dict[str, float]) -> None: ...

    def should_stop(self) -> bool: ...


@dataclass
class Job:
    """Everything an estimator needs to train."""

    config: RunConfig
    directory: RunDir
    tokenizer: Any  # a Tokenizer, or the task's own vocabulary, such as a TokenizerPair
    prepared: Mapping[str, Any]  # corpora and frames, by split and column
    callback: JobCallback
    teachers: Sequence[AnyRun] = ()  # of train.distill_from
    reward: RewardFunction | None = None  # of a Python program
    group: Group = ALONE  # the processes that train together

    def columns(self, split: str) -> list[Any]:
        """The data of a split: a corpus per column of texts, frames per column of files; empty if the split is missing, or if
        the model does not use tokens. Validation and test text starts with the BOS tokens of the run."""
        columns = [column for name, column in self.prepared.items() if name.partition(".")[0] == split]
        return columns if split == "train" else [self._with_bos(column) for column in columns]

    def _with_bos(self, column: Any) -> Any:
        return with_bos(column, self.directory.path, self.tokenizer) if isinstance(column, Corpus) else column

    def init_run(self) -> InitRun:
        """The run of train.init_from, with its weights."""
        return read_init_run(self.config)

    def init_vectors(self) -> WordVectors:
        """The word vectors of train.init_embeddings."""
        path = Path(self.config.train.init_embeddings or "")
        if not path.exists():
            raise ConfigError("train.init_embeddings", f"{path} not found", "name a run of task word-vectors, or a file")
        return open_vectors(path)

    def run_log(self) -> RunLogWriter | FollowerLog:
        """The log of the run; only the first process of a group writes it."""
        from weft.training.follower_log import FollowerLog
        from weft.training.run_log import RunLogWriter

        if not self.group.leads:
            return FollowerLog(self.directory.path)
        data = {name: column.provenance for name, column in self.prepared.items()}
        return RunLogWriter(self.directory, self.tokenizer.hash, data=data, tensorboard=self.config.train.tensorboard)


def read_init_run(config: RunConfig) -> InitRun:
    """The run of train.init_from, with its weights."""
    from weft.training.init_weights import BuiltRun, InitRun

    path = Path(config.train.init_from or "")
    if not (path / "model.safetensors").is_file():
        raise ConfigError(
            "train.init_from", f"{path} is not a trained run (model.safetensors is missing)", "use a trained run directory"
        )
    directory = open_run_dir(path)
    theirs = read_config(directory)
    tokenizer = theirs.spec.data.load(directory)
    return InitRun(
        path,
        BuiltRun(theirs, tokenizer),
        directory.read_weights(tokenizer.hash, logs=theirs.preset.estimator.network_task is None),
    )


def _check_overwrite(config: RunConfig, out: Path) -> None:
    """Refuse to overwrite a directory that has the initial weights, the tokenizer or a teacher of the new run."""
    table = config.to_dict()["tokenizer"]
    tables = [table, *(table[side] for side in ("source", "target") if side in table)]
    teachers = config.train.distill_from or []
    starts = (config.train.init_from, config.train.init_embeddings)
    for path in (*starts, *teachers, *(tokenizer.get("file") for tokenizer in tables)):
        if path is not None and Path(path).resolve().is_relative_to(out.resolve()):
            raise UsageError(out, f"`overwrite` would delete {path}, which this run needs", "choose another `output_dir`")


def train(
    values: Mapping[str, Any],
    out: Path,
    *,
    base: Path,
    callback: JobCallback,
    overwrite: bool = False,
    inputs: JobInputs = NO_INPUTS,
    completed: Recommendation | None = None,
) -> RunDir:
    """Train the run of a run file, or resume it.

    Args:
        values: The content of the run file.
        out: The run directory.
        base: The directory that paths in the run file are relative to.
        callback: Receives the progress.
        overwrite: Start over. The new run replaces the one in `out` as soon as it has weights.
        inputs: Data in memory, a reward function, and the processes that train together.
        completed: The run file with its recommended options; by default, they are found here.

    Returns:
        The run directory.
    """
    group = inputs.group
    if not group.leads:
        return _follow(out, callback, inputs)
    recommendation = (
        complete(values, out, base=base, overwrite=overwrite, inputs=inputs.files) if completed is None else completed
    )
    config = recommendation.config
    training(config.datasets)  # before a directory is created or data is read
    uses_gpu(config.train.device)  # a missing GPU is refused; models without a network do not need torch
    check_group(config, group)
    directory = make_directory(out)
    directory.check_is_run_dir()
    if overwrite:
        _check_overwrite(config, directory.path)
    with Lock(out), directory.restore_on_failure():
        if directory.begin(config, tomli_w.dumps(dict(values)), overwrite=overwrite):
            callback.on_note(f"{out}: restored the previous run, because the run that was to replace it saved nothing")
        write_inputs(directory, inputs.files)
        # torch is asked for its threads if it is needed anyway: imported now, it is not in the time of the training
        changes = directory.write_environment(None if config.preset.estimator.uses_torch(config) else inputs.threads)
        if changes:
            callback.on_note(f"the environment changed ({'; '.join(changes)}); results will not be bit-identical")
        if chosen := describe(recommendation):
            callback.on_note(f"Settings for {chosen}")
        if recommendation.warning:
            callback.on_note(f"warning: {recommendation.warning}")
        directory.find_checkpoint(callback.on_note)
        teachers = load_teachers(config)  # before the data is read
        write_teachers(directory, teachers)
        tokenizer, columns = prepare(config.spec, config, directory, callback)
        # to the other processes
        group.announce(f"prepared/{out.absolute()}", {name: column.provenance for name, column in columns.items()})
        config.preset.estimator.train(Job(config, directory, tokenizer, columns, callback, teachers, inputs.reward, group))
        group.barrier()  # with the lock
        group.end()
    return directory


def _follow(out: Path, callback: JobCallback, inputs: JobInputs) -> RunDir:
    """Train as one of the processes that do not write the run directory, once the first one has prepared it."""
    group = inputs.group
    expected = group.await_leader(f"prepared/{out.absolute()}")
    if not (out / "resolved.toml").is_file():
        raise UsageError(out, f"not the run directory of {group.name(0)}", "use a directory that all hosts share")
    directory = RunDir(out)  # which may have no weights yet, and the old run in its backup
    config = read_config(directory)
    teachers = load_teachers(config)
    try:
        tokenizer, columns = prepare(config.spec, config, directory, callback, expected=expected)
    except DataError as error:
        raise DataError(error.where, error.problem, "use the same files on all hosts") from error
    config.preset.estimator.train(Job(config, directory, tokenizer, columns, callback, teachers, inputs.reward, group))
    group.barrier()
    group.end()
    return directory


def check_group(config: RunConfig, group: Group) -> None:
    """Refuse several processes for a model that is not trained in steps."""
    if group.size > 1 and not config.preset.estimator.by_steps:
        raise UsageError("model.arch", f"{config.arch!r} is trained by one process", "leave out `processes`")


def _weights(task: Any) -> Weights | None:
    """The weights specification of a task by its name; None if the task is unknown."""
    return find_task(task).weights if isinstance(task, str) and task in TASKS else None


def _has_two_tokenizers(task: Any) -> bool:
    """Whether source and target of a task may have their own tokenizers."""
    table = find_task(task).data.tokenizer_config if isinstance(task, str) and task in TASKS else None
    return table is not None and "source" in table.model_fields


def _with_template(values: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """[data] of a run file with the template of another run, if it has none and its task uses one."""
    names = find_task(values["task"]).data.data_config.model_fields
    template = {name: stored[name] for name in ("template", "system_template") if name in stored and name in names}
    return {**template, **values.get("data", {})}


def known_options(task: str, model: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a [model] table that models of a task have."""
    preset = find_task(task).presets.get(model["arch"])
    return {
        name: value for name, value in model.items() if preset is None or name in ("arch", *preset.config_class.model_fields)
    }


def with_tokenizer_of_init(values: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """The run file with the tokenizer of the run of train.init_from. A seq2seq model that is initialized from a model with a
    single stack gets it for that side only, unless both sides need the same tokenizer. An encoder-decoder that is initialized
    from another one gets its [model] as well, if the run file has none; a language model gets the template and the options
    of [model] that the run file does not set, unless it names an architecture."""
    model, tokenizer, stored = values.get("model"), values.get("tokenizer", {}), open_run_dir(run).read_resolved()
    ours, theirs = _weights(values.get("task")), _weights(stored.get("task"))
    is_seq2seq, from_seq2seq = (weights is not None and weights.decoder_name is not None for weights in (ours, theirs))
    if is_seq2seq and from_seq2seq and "model" not in values:
        return with_tokenizer_from({**values, "model": stored["model"]}, run)
    if ours and theirs and ours.is_causal and theirs.is_causal and "arch" not in (given := values.get("model", {})):
        options = known_options(values["task"], {**stored["model"], **given})
        values = {**values, "data": _with_template(values, stored["data"]), "model": options}
        return with_tokenizer_from(values, run)
    is_shared = not isinstance(model, Mapping) or model.get("share_embeddings") or model.get("copy_mechanism")
    is_shared = is_shared or not _has_two_tokenizers(values.get("task"))
    if not is_seq2seq or from_seq2seq or is_shared or not isinstance(tokenizer, Mapping):
        return with_tokenizer_from(values, run)
    side = "target" if theirs is not None and theirs.is_causal else "source"
    sides = tokenizer if "source" in tokenizer or "target" in tokenizer else {"source": tokenizer, "target": tokenizer}
    return {**values, "tokenizer": {**sides, side: with_tokenizer_from({}, run)["tokenizer"]}}


def with_tokenizer_from(values: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """The run file with the tokenizer of another run."""
    paths = tokenizer_files(open_run_dir(run).path)
    tokenizers = {path.name.removesuffix(".json"): {"file": str(path.resolve())} for path in paths}
    if "tokenizer" in tokenizers:
        return {**values, "tokenizer": tokenizers["tokenizer"]}
    if len(tokenizers) < 2:
        raise UsageError("tokenizer_from", f"{run} has no tokenizer.json")
    return {**values, "tokenizer": {side: tokenizers[f"tokenizer.{side}"] for side in ("source", "target")}}
