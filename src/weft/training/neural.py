"""Training and loading of neural networks: from a configuration to a loop, from a run directory to a model.

A task provides a `NetworkTask`; `NeuralTrainer.loop` combines its model, examples and objective into a `Loop`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from weft.data.batch import FULL, crop_batch
from weft.data.batching import BatchSampler
from weft.data.bucketing import ExampleBatchSampler, Examples
from weft.data.few_shapes import FewShapes
from weft.errors import ModelError
from weft.nn.meta import meta_device
from weft.training import checkpoint, duration, loop_checkpoint, memory, sample_outputs
from weft.training.cuda_graphs import CudaRecorder, GraphedReplica, can_record, has_memory
from weft.training.data_parallel import Replica, Replicated, Sharded, check_rows, checkpoint_activations, pick_strategy
from weft.training.device import pick_device, pick_device_config
from weft.training.distillation import DistillationObjective, MeanTeacher, Teacher, check_network, check_same_vocabulary
from weft.training.init_embeddings import load_embeddings
from weft.training.init_weights import BuiltRun, load_initial_weights
from weft.training.loop import DeviceConfig, Loop
from weft.training.loss_module import LossModule
from weft.training.objective import Objective, ProgressCallback
from weft.training.optimizers import build_optimizers
from weft.training.r_drop import RDropObjective

MIN_STEPS, MIN_SECONDS = 100, 120.0  # of a training whose duration is announced
RETRAIN_HINT = "use `overwrite` to train again"
E = TypeVar("E", bound=Examples[Any])  # the examples of a task, from which batches are made
Progress = Callable[[str, int, int], None]  # phase, done, total

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.runs.job import Job
    from weft.runs.run import AnyRun
    from weft.runs.run_dir import RunDir
    from weft.training.follower_log import FollowerLog
    from weft.training.run_log import RunLogWriter


class NetworkTask(Protocol[E]):
    """The task-specific parts of training networks. Methods with a body are defaults that subclasses inherit."""

    def build(self, config: RunConfig, vocabulary: Any) -> Callable[[], Any]:
        """A function that builds the model, initialized with torch's default random generator."""

    def encode(
        self,
        config: RunConfig,
        vocabulary: Any,
        dataset: Any,
        columns: Sequence[Any],
        *,
        learned: bool,
        progress: Progress | None = None,
    ) -> E:
        """The examples of a data set with `columns`: a corpus per column of texts, frames per column of files. `learned` is
        True for the training data, which needs no references."""

    def objective(
        self, config: RunConfig, vocabulary: Any, train: E | None, valid: E | None, device: torch.device
    ) -> Objective:
        """The training objective, with validation on `valid`. If `train` is None, it is the plain loss, without label smoothing
        and class weights."""

    def compiles(self, config: RunConfig) -> bool:
        """Whether torch.compile helps: all batches have the same shape, and torch can compile the mixers."""
        return False

    def notes(self, config: RunConfig, train: E) -> Sequence[str]:
        """Remarks on the training data, shown before the first step."""
        return ()

    def valid_notes(self, config: RunConfig, valid: E) -> Sequence[str]:
        """Remarks on the validation data, shown before the first step."""
        return ()

    def check_lengths(self, config: RunConfig, columns: Sequence[Any], max_length: int | None) -> None:
        """Refuse texts that are too long for the positions of the network, before training starts."""
        return None

    def chosen_options(self, model: Any) -> Mapping[str, Any]:
        """The options of [model] that validation has set in a trained model."""
        return {}

    def batch_sampler(self, config: RunConfig, train: E) -> BatchSampler[Any]:
        """The batches of training: by default, length bucketing."""
        return ExampleBatchSampler(train, batch_tokens=config.train.batch_tokens, seed=config.seed)

    def equal_shapes(self, config: RunConfig, sampler: Any) -> BatchSampler[Any] | None:
        """The batches of a sampler, padded to the same shape, for compiled code; None if they differ in length."""
        return None

    def bind(self, objective: Any, job: Job, initial_model: Callable[[], Any]) -> None:
        """Give an objective what it needs of the run besides data, such as a frozen copy of the model before the first step."""
        return None

    def check_teacher(self, config: RunConfig, vocabulary: Any, run: AnyRun) -> None:
        """Refuse a run that cannot teach this one: by default, it must be a network that reads the same batches."""
        check_network(run)
        check_same_vocabulary(vocabulary, run)

    def add_soft_labels(self, dataset: Any, train: E, runs: Sequence[AnyRun], progress: ProgressCallback) -> E:
        """The training examples with the predictions of the teachers, if they are computed before training."""
        return train

    def teacher(self, objective: Any, runs: Sequence[AnyRun]) -> Teacher:
        """The teacher of a student with this objective."""
        return MeanTeacher(objective, [run.model for run in runs])


def _mismatch(expected: Mapping[str, Tensor], actual: Mapping[str, Tensor]) -> str:
    """Describe the first tensor that is missing, unexpected, or of another shape; empty if there is none."""
    for name in dict.fromkeys([*expected, *actual]):
        if name not in actual:
            return f"{name} is missing"
        if name not in expected:
            return f"unexpected {name}"
        if expected[name].shape != actual[name].shape:
            shape, expected_shape = ("x".join(map(str, tensor.shape)) for tensor in (actual[name], expected[name]))
            return f"{name} is {shape}, expected {expected_shape}"
    return ""


def _encode(task: NetworkTask[E], job: Job, split: str) -> E:
    """The examples of a split."""
    config, learned = job.config, split == "train"

    def progress(phase: str, done: int, total: int) -> None:
        job.callback.on_progress(f"{phase} of {split}", done, total)

    dataset, columns = config.datasets[split], job.columns(split)
    return task.encode(config, job.tokenizer, dataset, columns, learned=learned, progress=progress)


def read_training(task: NetworkTask[E], job: Job) -> tuple[E, BatchSampler[Any]]:
    """The training examples and their batches."""
    train = _encode(task, job, "train")
    for note in task.notes(job.config, train):
        job.callback.on_note(note)
    if job.teachers:
        for run in job.teachers:
            task.check_teacher(job.config, job.tokenizer, run)
        progress = partial(job.callback.on_progress, "predictions of the teachers")
        train = task.add_soft_labels(job.config.datasets["train"], train, job.teachers, progress)
    return train, task.batch_sampler(job.config, train)


def make_objective(
    task: NetworkTask[E], job: Job, train: E, max_length: int | None, device: torch.device | None = None
) -> Objective:
    """The training objective. Refuses data that is too long for a network with `max_length` positions."""
    config = job.config
    for split in config.datasets:
        task.check_lengths(config, job.columns(split), max_length)
    device = device or pick_device(config.train.device)
    valid = _encode(task, job, "valid") if job.columns("valid") else None
    for note in () if valid is None else task.valid_notes(config, valid):
        job.callback.on_note(note)
    objective: Any = task.objective(config, job.tokenizer, train, valid, device)
    objective.group = job.group  # shares the validation
    if config.train.r_drop:
        return RDropObjective(objective, config.train.r_drop)
    if not job.teachers:
        return objective  # type: ignore[no-any-return]
    weight, temperature = config.train.distill_weight or 0.0, config.train.distill_temperature or 1.0
    teacher = task.teacher(objective, job.teachers)
    return DistillationObjective(objective, teacher, weight=weight, temperature=temperature)


def _initial_model(build: Callable[[], Any], job: Job, device: torch.device) -> Any:
    """The model before the first step, in eval mode and frozen."""
    torch.manual_seed(job.config.seed)
    model = build().to(device)
    if job.config.train.init_from is not None:
        load_initial_weights(model, BuiltRun(job.config, job.tokenizer), job.init_run(), strict=job.config.train.init_strict)
    return model.eval().requires_grad_(False)


class NeuralTrainer:
    """Trains and loads models that are torch modules."""

    def __init__(self, task: NetworkTask[Any]) -> None:
        self.task = task

    @torch.inference_mode(False)  # record gradients even if the caller has switched them off
    def train(self, job: Job) -> None:
        """Train from the newest checkpoint, or from scratch."""
        with job.group.failures():
            self._train(job)

    def _train(self, job: Job) -> None:
        loop = self.loop(job)
        run_log = job.run_log()
        try:
            if names := checkpoint.names(job.directory.path):
                self._resume(loop, job, run_log, checkpoint.checkpoints_dir(job.directory.path) / names[-1])
            else:
                run_log.restore(loop.train_state)
                self._say_duration(loop, job)
            job.group.begin()
            loop.run(run_log, job.callback)
        finally:
            run_log.close()

    def _say_duration(self, loop: Loop, job: Job) -> None:
        """Announce a long training on a CPU before its first step."""
        if loop.group.size == 1 and loop.device_config.device.type == "cpu" and (loop.total_steps() or MIN_STEPS) >= MIN_STEPS:
            seconds = duration.training_seconds(loop)
            if seconds is not None and seconds >= MIN_SECONDS:
                job.callback.on_note(
                    f"Training takes about {duration.format_minutes(seconds)} on this CPU, without validations"
                )

    def loop(self, job: Job) -> Loop:
        """The training loop of a run, after checks that weights and batches fit into memory."""
        config, group, device_config = job.config, job.group, pick_device_config(job.config, job.group)
        train, batch_sampler = read_training(self.task, job)
        is_compiled = self._is_compiled(config, device_config)
        equal_shapes = self.task.equal_shapes(config, batch_sampler) if is_compiled else None
        batch_sampler = equal_shapes or batch_sampler
        build = self.task.build(config, job.tokenizer)
        num_parameters = memory.check_weights(build, config.train, device_config.device, group)
        torch.manual_seed(config.seed)
        model = build().to(device_config.device)
        if config.train.init_from is not None and not checkpoint.names(job.directory.path):
            built = BuiltRun(config, job.tokenizer)
            job.callback.on_note(load_initial_weights(model, built, job.init_run(), strict=config.train.init_strict))
        if config.train.init_embeddings is not None and not checkpoint.names(job.directory.path):
            job.callback.on_note(load_embeddings(model, job.tokenizer.by_name(), job.init_vectors()))
        if config.train.activation_checkpointing:
            checkpoint_activations(model)
        objective = make_objective(self.task, job, train, model.max_positions, device_config.device)
        self.task.bind(objective, job, partial(_initial_model, build, job, device_config.device))
        loss_module = LossModule(objective, model)
        has_equal_shapes = equal_shapes is not None
        is_recorded = (has_equal_shapes or not is_compiled) and can_record(
            loss_module, batch_sampler, config.train, device_config, has_equal_shapes=has_equal_shapes
        )
        plain_sampler = batch_sampler
        if is_recorded and not has_equal_shapes:
            batch_sampler = FewShapes(plain_sampler)
        largest_batch = self._largest_batch(loss_module, batch_sampler, config.seed, device_config)
        check_rows(batch_sampler.rows if objective.prepare is None else len(largest_batch(FULL)[0]), group)
        batch_bytes = memory.check_batch(loss_module, largest_batch, config.train, device_config)
        is_sharded = group.size > 1 and pick_strategy(config.train.parallel, num_parameters) == "fsdp"
        replica = Sharded(loss_module, group, device_config.device) if is_sharded else Replica(loss_module)
        optimizers = build_optimizers(model, model.muon_parameters(), config.train, group)
        if group.size > 1 and not is_sharded:
            has_unused = memory.has_unused_weights(loss_module, largest_batch, device_config)
            replica = Replicated(loss_module, group, has_unused=has_unused)
        if is_recorded and has_memory(batch_bytes, device_config.device):
            recorder = CudaRecorder(device_config.device)
            replica = GraphedReplica(loss_module, optimizers.weights, recorder, on_failure=job.callback.on_note)
        elif is_recorded:
            batch_sampler, is_recorded = plain_sampler, False
        if config.train.micro_batches % group.size:  # the processes share each micro-batch
            loss_module.group = group
        loop = Loop(
            loss_module,
            optimizers,
            batch_sampler,
            config=config.train,
            seed=config.seed,
            device_config=device_config,
            replica=replica,
        )
        loop.copies_state = memory.can_copy_state(loss_module, batch_bytes, config.train, device_config)
        if is_compiled:
            from weft.training.compilation import compile_training, plan  # imports parts of torch that few runs need

            compile_training(loop, plan(loop, has_equal_shapes=has_equal_shapes, is_recorded=is_recorded))
        loop.sample_writer = sample_outputs.sample_writer(job, model, device_config.device)
        return loop

    def _is_compiled(self, config: RunConfig, device_config: DeviceConfig) -> bool:
        setting = config.train.compile
        return device_config.device.type == "cuda" and self.task.compiles(config) if setting == "auto" else setting

    def _largest_batch(
        self, loss_module: LossModule, batch_sampler: BatchSampler[Any], seed: int, device_config: DeviceConfig
    ) -> memory.LargestBatch:
        """The batch that takes the most memory, after `prepare`."""
        if loss_module.objective.prepare is None:
            return batch_sampler.largest_batch
        with device_config.autocast():
            batch = device_config.to_device(batch_sampler.largest_batch())
            return partial(crop_batch, loss_module.prepare_batch(batch, seed=seed, step=0))

    def _resume(self, loop: Loop, job: Job, run_log: RunLogWriter | FollowerLog, start: Path) -> None:
        """Restore loop and logs from a checkpoint."""
        loop_checkpoint.restore(loop, start)
        self._check_best(loop, job)
        for note in run_log.restore(loop.train_state, checkpoint.read_metrics(start, loop.train_state)):
            job.callback.on_note(note)
        job.callback.on_note(f"resuming at step {loop.train_state.step}")

    def _check_best(self, loop: Loop, job: Job) -> None:
        """Refuse to resume if the best weights are missing, corrupted or wrong: the run may never reach their quality again."""
        train_state, run_dir = loop.train_state, job.directory
        if not train_state.best_step:
            return
        if not run_dir.weights.exists():
            raise ModelError(run_dir.weights, "the best weights are missing", RETRAIN_HINT)
        try:
            run_dir.read_weights(job.tokenizer.hash)
            step = run_dir.check_step(train_state)
        except ModelError as error:
            raise ModelError(error.where, error.problem, RETRAIN_HINT) from None
        if step > train_state.step:  # from a process that was killed before it could save: the next validation replaces them
            train_state.best, train_state.best_step = None, step

    def num_parameters(self, config: RunConfig, vocabulary: Any) -> int:
        """The number of parameters, counted without building the model in memory."""
        build = self.task.build(config, vocabulary)
        with meta_device():  # allocates no memory
            return sum(int(weight.numel()) for weight in build().parameters())

    def load(self, config: RunConfig, vocabulary: Any, run_dir: RunDir, device: str) -> Any:
        """The model of a run in eval mode, after checks that its weights match the configuration."""
        tensors = run_dir.read_weights(vocabulary.hash)  # first, because it verifies the checksum of resolved.toml
        build = self.task.build(config, vocabulary)
        with meta_device():  # allocates no memory, whatever the sizes in resolved.toml
            expected = build().state_dict()
        if mismatch := _mismatch(expected, tensors):
            raise ModelError(run_dir.weights, f"does not match resolved.toml: {mismatch}")
        model: nn.Module = build()
        model.load_state_dict(tensors)
        return model.to(pick_device(device)).eval()
