"""Training by gradients: from settings to a loop, from a run folder to a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from weft.data.batch import cropped
from weft.data.batching import BatchSampler
from weft.data.bucketing import ExampleBatchSampler, Examples
from weft.data.corpus import Corpus
from weft.errors import ModelError
from weft.training import checkpoint, memory
from weft.training import loop_checkpoint as saving
from weft.training import sample_outputs as samples
from weft.training.device import pick_device, pick_device_config
from weft.training.init_weights import BuiltRun, load_initial_weights
from weft.training.loop import DeviceConfig, Loop
from weft.training.loss_module import LossModule
from weft.training.objective import Objective
from weft.training.optimizers import optimizers

RESUME_HINT = "--overwrite trains it again"
E = TypeVar("E", bound=Examples[Any])
Progress = Callable[[str, int, int], None]  # what is going on, how much of it is done, how much there is

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.runs.job import Job
    from weft.runs.run_dir import RunDir
    from weft.training.run_log import RunLogWriter


class NetworkTask(Protocol[E]):
    """What is particular to the networks of one task. What most have in common is written here: networks inherit it."""

    def build(self, config: RunConfig, vocabulary: Any) -> Callable[[], Any]:
        """What makes the model, freshly initialised from torch's default generator."""

    def encode(
        self,
        config: RunConfig,
        vocabulary: Any,
        dataset: Any,
        columns: Sequence[Corpus],
        *,
        learned: bool,
        progress: Progress | None = None,
    ) -> E:
        """A data set, and its columns as tokens, as examples: as training learns from it, or as it is measured by."""

    def objective(
        self, config: RunConfig, vocabulary: Any, train: E | None, valid: E | None, device: torch.device
    ) -> Objective:
        """What is learned from `train` and measured on `valid`; without `train` the plain loss, in which nothing is smoothed or
        balanced."""

    def compiles(self, config: RunConfig) -> bool:
        """Whether compiling pays: batches of one shape, read by mixers that torch's compiler takes."""
        return False

    def notes(self, config: RunConfig, train: E) -> Sequence[str]:
        """What is to be said of the training data before the first step."""
        return ()

    def check_lengths(self, config: RunConfig, columns: Sequence[Corpus], max_length: int | None) -> None:
        """Refuses, before the first token, texts that pass the last position that a network can read."""
        return None

    def batch_sampler(self, config: RunConfig, train: E) -> BatchSampler[Any]:
        """The order in which training reads its examples: those of like length together."""
        return ExampleBatchSampler(train, batch_tokens=config.train.batch_tokens, seed=config.seed)


def _misfit(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> str:
    """In words, the first tensor that is not there, not wanted, or of another shape."""
    for name in dict.fromkeys([*wanted, *found]):
        if name not in found:
            return f"it has no {name}"
        if name not in wanted:
            return f"the model has no {name}"
        if wanted[name].shape != found[name].shape:
            here, there = (" x ".join(map(str, tensor.shape)) for tensor in (found[name], wanted[name]))
            return f"{name} is {here}, and would be {there}"
    return ""


def _encode(shape: NetworkTask[E], job: Job, split: str) -> E:
    """A split of the run's data."""
    config, learned = job.config, split == "train"

    def progress(name: str, done: int, total: int) -> None:
        job.callback.on_progress(f"{name} of {split}", done, total)

    dataset, columns = config.datasets[split], job.columns(split)
    return shape.encode(config, job.tokenizer, dataset, columns, learned=learned, progress=progress)


def read_training(shape: NetworkTask[E], job: Job) -> tuple[E, BatchSampler[Any]]:
    """The training data as examples, and the order in which they are read."""
    train = _encode(shape, job, "train")
    for note in shape.notes(job.config, train):
        job.callback.on_note(note)
    return train, shape.batch_sampler(job.config, train)


def make_objective(shape: NetworkTask[E], job: Job, train: E, max_length: int | None) -> Objective:
    """What is learned, on data that fits a network that reads so many positions."""
    config = job.config
    for split in config.datasets:
        shape.check_lengths(config, job.columns(split), max_length)
    device = pick_device(config.train.device)
    valid = _encode(shape, job, "valid") if job.columns("valid") else None
    return shape.objective(config, job.tokenizer, train, valid, device)


class NeuralTrainer:
    """How every model that is a torch module is trained and loaded."""

    def __init__(self, shape: NetworkTask[Any]) -> None:
        self.shape = shape

    @torch.inference_mode(False)  # gradients are kept, whatever the caller has switched off
    def train(self, job: Job) -> None:
        """From the newest checkpoint, or from the start."""
        loop = self.loop(job)
        run_log = job.run_log()
        try:
            if names := checkpoint.names(job.directory.path):
                self._resume(loop, job, run_log, checkpoint.checkpoints_dir(job.directory.path) / names[-1])
            else:
                run_log.restore(loop.train_state)
            loop.run(run_log, job.callback)
        finally:
            run_log.close()

    def _resume(self, loop: Loop, job: Job, run_log: RunLogWriter, start: Path) -> None:
        """Everything as the checkpoint has it."""
        saving.restore(loop, start)
        self._check_best(loop, job)
        for told in run_log.restore(loop.train_state, checkpoint.read_metrics(start, loop.train_state)):
            job.callback.on_note(told)
        job.callback.on_note(f"resuming at step {loop.train_state.step}")

    def _check_best(self, loop: Loop, job: Job) -> None:
        """Refuse to go on where the weights that the run is known by are gone, damaged or others: it may never find as good
        ones again."""
        train_state, run_dir = loop.train_state, job.directory
        if not train_state.best_step:
            return
        if not run_dir.weights.exists():
            raise ModelError(run_dir.weights, "is missing, and was written at an earlier step", f"{RESUME_HINT}")
        try:
            run_dir.read_weights(job.tokenizer.hash)
            step = run_dir.check_step(train_state)
        except ModelError as error:
            raise ModelError("", f"{error}", f"{RESUME_HINT}") from None
        if step > train_state.step:  # of a process that was killed before it could save: the next validation takes its place
            train_state.best, train_state.best_step = None, step

    def loop(self, job: Job) -> Loop:
        config, device_config = job.config, pick_device_config(job.config)
        train, batch_sampler = read_training(self.shape, job)
        build = self.shape.build(config, job.tokenizer)
        memory.check_weights(build, config.train, device_config.device)
        torch.manual_seed(config.seed)
        model = build().to(device_config.device)
        if config.train.init_from is not None and not checkpoint.names(job.directory.path):
            made = BuiltRun(config, job.tokenizer)
            job.callback.on_note(load_initial_weights(model, made, job.init_run(), loose=config.train.init_loose))
        loss_module = LossModule(make_objective(self.shape, job, train, model.max_positions), model)
        memory.check_batch(
            loss_module, self._widest(loss_module, batch_sampler, config.seed, device_config), config.train, device_config
        )
        auto = device_config.device.type == "cuda" and self.shape.compiles(config)
        if config.train.compile is True or (config.train.compile == "auto" and auto):
            loss_module.compile()  # in place: saved names, and whoever explains, see the plain model
        steps = optimizers(model, model.muon_parameters(), config.train)
        loop = Loop(loss_module, steps, batch_sampler, config=config.train, seed=config.seed, device_config=device_config)
        loop.writer = samples.sample_writer(job, model, device_config.device)
        return loop

    def _widest(
        self, loss_module: LossModule, batch_sampler: BatchSampler[Any], seed: int, device_config: DeviceConfig
    ) -> memory.Widest:
        """The batch that takes the most memory, as it is learned from."""
        if loss_module.task.prepare is None:
            return batch_sampler.largest_batch
        with device_config.autocast():
            return partial(
                cropped, loss_module.prepared(device_config.to_device(batch_sampler.largest_batch()), seed=seed, step=0)
            )

    def num_parameters(self, config: RunConfig, vocabulary: Any) -> int:
        build = self.shape.build(config, vocabulary)
        with torch.device("meta"):  # no memory is taken for them
            return sum(int(weight.numel()) for weight in build().parameters())

    def load(self, config: RunConfig, tokenizer: Any, run_dir: RunDir, device: str) -> Any:
        tensors = run_dir.read_weights(tokenizer.hash)  # first: what resolved.toml says is believed only if they know it
        build = self.shape.build(config, tokenizer)
        with torch.device("meta"):  # takes no memory, whatever the sizes are that a stranger wrote
            wanted = build().state_dict()
        if misfit := _misfit(wanted, tensors):
            raise ModelError(run_dir.weights, f"does not fit resolved.toml: {misfit}")
        model: nn.Module = build()
        model.load_state_dict(tensors)
        return model.to(pick_device(device)).eval()
