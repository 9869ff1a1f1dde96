"""The training loop: batches, gradients, optimizer steps, validation and checkpoints, independent of task and model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from weft.data.batching import BatchSampler
from weft.data.prefetch import Prefetcher
from weft.errors import TrainingInterrupted
from weft.parallel.shards import local
from weft.training.config import TrainConfig
from weft.training.data_parallel import Replica
from weft.training.device_config import DeviceConfig as DeviceConfig
from weft.training.divergence import check_finite, detect_divergence, diverged, diverged_step
from weft.training.ema import EMA
from weft.training.expert_log import ExpertLog
from weft.training.group_timing import GroupTiming, agree
from weft.training.log_line import LogLine
from weft.training.loop_protocols import Copy, LoopCallback, RunLog
from weft.training.loss_module import LossModule
from weft.training.micro_batches import join_parts, micro_batches
from weft.training.objective import monitored_metric
from weft.training.optimizers import Optimizers
from weft.training.schedules import Schedule, schedule
from weft.training.seeding import seed_step as seed_step
from weft.training.step_values import GradientScale, LaunchedStep, StepStart, StepValues
from weft.training.train_state import TrainState

SAVE_SECONDS = 60.0  # time between checkpoints: the most work that a crash can lose
LOG_LINES = 200  # number of lines with training losses in metrics.jsonl


class Loop:
    """Trains a model from its training state to the end of the budget."""

    asynchronous_devices: Sequence[str] = (
        "cuda",
    )  # device types that compute behind the host, which then should not wait for them

    def __init__(
        self,
        loss_module: LossModule,
        optimizers: Optimizers,
        batch_sampler: BatchSampler[Any],
        *,
        config: TrainConfig,
        seed: int,
        device_config: DeviceConfig,
        replica: Replica | None = None,
    ) -> None:
        self.loss_module, self.optimizers, self.batch_sampler = loss_module, optimizers, batch_sampler
        self.config, self.seed, self.device_config = config, seed, device_config
        self.group, self.replica = device_config.group, replica or Replica(loss_module)
        self.timing = GroupTiming(self.group, self.replica, device_config.device)
        self.train_state = TrainState()
        self.carry: Any = None  # model state that is carried over to the next batch, of the rows of this process
        self.batch: tuple[Any, ...] | None = None  # the latest prepared batch
        self.expert_log = ExpertLog()
        self.ema = None if config.ema_decay == 0 else EMA(optimizers.names, decay=config.ema_decay)
        self.lr_schedule: Schedule = schedule(config.lr_schedule, warmup=config.warmup_ratio)
        self.lr = 0.0  # the learning rate of the latest step
        self.loss = 0.0  # the mean loss of the latest step whose numbers were read
        self.launched: LaunchedStep | None = None  # the latest step, if its numbers are to be read during the next one
        # a budget in tokens may end with any step, and generating with weights that are not finite can stop a GPU
        is_independent = config.max_tokens is None and loss_module.objective.prepare is None
        self.defers = device_config.device.type in self.asynchronous_devices and is_independent
        self.kernels: Callable[[], AbstractContextManager[Any]] = nullcontext  # selects kernels of the forward pass
        self.sample_writer: Callable[[Any], list[dict[str, Any]]] | None = None  # generates samples
        self.samples: list[dict[str, Any]] = []  # the latest samples
        self.copies_state = True  # whether there is memory for a copy of everything that a checkpoint has
        self.copies: list[Copy] = []  # for checkpoints: the next optimizer step waits for them
        self.checked_step = -1  # the last step whose weights were found to be finite

    # ---- progress

    def total_steps(self) -> int | None:
        """The number of steps in the budget; None if it is in tokens or minutes."""
        if self.config.max_steps is not None:
            return self.config.max_steps
        if self.config.max_epochs is not None:
            return max(1, round(self.config.max_epochs * self.batch_sampler.batches(0))) * self.loss_module.steps_per_batch
        return None

    def progress(self, *, ahead: float = 0.0) -> float:
        """The fraction of the budget that is used, from 0 to 1; with `ahead=0.5`, in the middle of the next step."""
        train_state, steps = self.train_state, self.total_steps()
        if steps is not None:
            return (train_state.step + ahead) / steps
        if self.config.max_tokens is not None:
            tokens_per_step = train_state.tokens / train_state.step if train_state.step else self.config.batch_tokens
            return (train_state.tokens + ahead * tokens_per_step) / self.config.max_tokens
        return (train_state.seconds + train_state.validation_seconds) / (60.0 * (self.config.max_minutes or 1.0))

    # ---- one step

    def needs_batch(self) -> bool:
        """Whether the next step uses a new batch. Prepared batches are not saved, so only then a checkpoint can be written."""
        return self.train_state.step % self.loss_module.steps_per_batch == 0

    def next_batch(self) -> tuple[Any, ...]:
        """The batch of the next step: from the sampler, or prepared from the sampler's batch."""
        if self.needs_batch() or self.batch is None:
            batch: tuple[Any, ...] = self.batch_sampler.batch(self.train_state.epoch, self.train_state.batch_index)
            if self.loss_module.objective.prepare is None:
                return batch
            moved = self.device_config.to_device(batch)
            with self.device_config.autocast(), self.replica.whole_model() as model:
                self.batch = self.loss_module.prepare_batch(moved, seed=self.seed, step=self.train_state.step, model=model)
        return self.batch

    @contextmanager
    def forward_context(self) -> Iterator[None]:
        """Precision and kernels of a forward pass."""
        with self.device_config.autocast(), self.kernels():
            yield

    def summed_gradients(self, batch: tuple[Any, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the gradients of the summed loss of a batch and store them in the weights.

        Returns:
            The summed loss in nats, the number of items that it is averaged over, and the number of tokens.
        """
        device, carries = self.device_config.device, []
        total = torch.zeros((), dtype=torch.float64 if device.type == "cpu" else torch.float32, device=device)
        count = torch.zeros((), dtype=torch.long, device=device)
        tokens = torch.zeros_like(count)
        self.expert_log.clear()
        if self.loss_module.objective.augment is not None:
            batch = self.loss_module.objective.augment(self.device_config.to_device(batch))
        parts = list(micro_batches(batch, self.carry, self.config.micro_batches, self.group))
        for part in parts:
            if part.number > 0:
                seed_step(self.seed, self.train_state.step, device, part.number)
            loss = self.replica.accumulate(
                self.device_config.to_device(part.batch),
                part.carry,
                part.counts,
                is_last=part is parts[-1],
                autocast=self.forward_context,
            )
            total, count = total + loss.total.detach(), count + loss.count
            tokens = tokens + (loss.count if loss.tokens is None else loss.tokens)
            self.expert_log.add(loss)
            carries += [loss.carry] if part.counts else []
        self.carry = join_parts(carries)
        if self.group.size > 1:
            total, count, tokens = self.group.sum_(torch.stack([total.double(), count.double(), tokens.double()]))
            self.expert_log.sum_(self.group)
        return total, count, tokens

    def _local_gradients(self) -> list[Tensor]:
        return [local(weight.grad) for weight in self.optimizers.weights if weight.grad is not None]

    def _gradient_norm(self, factor: Tensor) -> Tensor:
        """The norm of the summed gradients, which `factor` turns into means. On a GPU, which is not waited for, it may overflow
        where that of the means would not."""
        gradients = self._local_gradients()
        norm = torch.nn.utils.get_total_norm(gradients)
        if not self.defers and norm.isinf():  # squares of sums may overflow where those of means do not
            norm = torch.nn.utils.get_total_norm([gradient * factor for gradient in gradients]) / factor
        if not self.optimizers.is_sharded:
            return norm
        return self.group.sum_(norm.double().square()).sqrt().to(norm.dtype)  # each process has some rows

    def train_step(self) -> None:
        """Make one optimizer step, and move the training state behind it."""
        if self.batch_sampler.resets_state(self.train_state.batch_index):
            self.carry = None
        batch = self.next_batch()
        seed_step(self.seed, self.train_state.step, self.device_config.device)
        start = StepStart.of(self.train_state, self.carry)
        total, count, tokens = self.summed_gradients(batch)
        # divided by the total count, not per micro-batch or process: equal to the gradient of one large batch
        factor = self.replica.gradient_factor / count.float().clamp(min=1)
        scale = GradientScale.of(total, factor, self._gradient_norm(factor), self.config.max_grad_norm)
        launched = LaunchedStep(start, (total, count, tokens, scale.norm))
        if self.defers:
            # the step before is read while a GPU computes this one: if it diverged, it changed nothing, nor does this one
            self._finish_latest()
            self.launched = launched
            self._update(scale)
        else:
            values = self._read(launched)
            torch._foreach_div_(self._local_gradients(), scale.divisor)
            self._update(None)
            self._record(values)
        self._advance()

    def _read(self, step: LaunchedStep) -> StepValues:
        """The numbers of a step. If it diverged, the training state is set back to where it was before it."""
        values, self.launched = step.read(), None
        if values.is_finite:
            return values
        train_state = self.train_state
        train_state.step, train_state.epoch, train_state.batch_index, self.carry = step.start
        raise diverged_step(step.start, values, self.batch_sampler.describe(train_state.epoch, train_state.batch_index))

    def _record(self, values: StepValues) -> None:
        self.loss = values.loss
        values.add_to(self.train_state, self.config.max_grad_norm)

    def _finish(self, step: LaunchedStep) -> None:
        self._record(self._read(step))
        step.after()

    def _finish_latest(self) -> None:
        if self.launched is not None:
            self._finish(self.launched)

    def _read_latest(self) -> None:
        """Wait for the latest step: nothing is validated or saved before its numbers are known."""
        if self.launched is not None:
            start = time.perf_counter()
            self._finish_latest()
            self.train_state.seconds = self._leader_time(self.train_state.seconds + time.perf_counter() - start)

    def _update(self, scale: GradientScale | None) -> None:
        """Change the weights with the gradients, which `scale` turns into clipped means; None: they are that already."""
        progress = self.progress(ahead=0.5)
        factor = self.lr_schedule(progress)
        self.lr = self.config.lr * factor
        while self.copies:
            self.copies.pop().wait()
        self.optimizers.step(factor, progress, scale)
        self.optimizers.zero_grad()
        if self.ema is not None:
            self.ema.update(self.train_state.step + 1)

    def _advance(self) -> None:
        """Move the training state behind a step."""
        train_state = self.train_state
        train_state.step += 1
        if not self.needs_batch():
            return
        train_state.batch_index += 1
        if train_state.batch_index == self.batch_sampler.batches(train_state.epoch):
            train_state.epoch, train_state.batch_index = train_state.epoch + 1, 0

    def _check_finite(self) -> None:
        if self.ema is None and self.checked_step == self.train_state.step:  # for the best weights of this step
            return
        check_finite(self.loss_module.model.state_dict(), self.train_state.step, self.group)
        self.checked_step = self.train_state.step

    # ---- the run

    def run(self, run_log: RunLog, callback: LoopCallback) -> None:
        """Train until the budget or the patience is used up. If a checkpoint is due before the last step of a prepared batch,
        it is written after that step.

        Raises:
            TrainingInterrupted: The callback requested a stop; a checkpoint was saved.
            DivergedError: The loss, a gradient or a weight is NaN or infinite. On a GPU it is raised up to one step later.
            ResourceError: A checkpoint could not be written; the one before is intact.
        """
        try:
            with self._prefetching():
                self._run(run_log, callback)
        finally:
            run_log.finish()  # a write that failed came before any other error

    @contextmanager
    def _prefetching(self) -> Iterator[None]:
        """Context manager in which a thread makes batches ahead, if the device computes behind the host."""
        if self.device_config.device.type not in self.asynchronous_devices:
            yield
            return
        sampler = self.batch_sampler
        with closing(Prefetcher(sampler, self.device_config.pin)) as self.batch_sampler:
            try:
                yield
            finally:
                self.batch_sampler = sampler

    def _run(self, run_log: RunLog, callback: LoopCallback) -> None:
        train_state, last_save = self.train_state, time.monotonic()
        save_due, should_stop, is_first = False, False, True
        while not train_state.done:
            run_log.raise_error()
            start = time.perf_counter()
            log_lines, validations = self._completed(LOG_LINES), self._completed(self.config.num_validations)
            self.train_step()
            seconds = time.perf_counter() - start
            self.timing.add(seconds)
            train_state.seconds = self._leader_time(train_state.seconds + seconds)
            is_last = self.progress() >= 1.0
            is_logged = is_last or self._completed(LOG_LINES) > log_lines or train_state.step == 1
            validated = is_last or self._completed(self.config.num_validations) > validations
            if validated or is_first:
                self._read_latest()
            if is_logged:
                self._log_training(run_log)
            if is_first:
                run_log.reserve(self)
                is_first = False
            callback.on_step(self, self.loss, time.perf_counter() - start)
            if validated:
                self._validate(run_log, callback)
                is_last = self.progress() >= 1.0  # a validation takes part of a budget in minutes
                train_state.done = is_last or (
                    self.config.patience > 0 and train_state.validations_without_improvement >= self.config.patience
                )
            is_late = time.monotonic() - last_save > SAVE_SECONDS
            should_stop, is_late = agree(self.group, should_stop=callback.should_stop() or should_stop, is_late=is_late)
            save_due = save_due or validated or should_stop or is_late
            if not (self.needs_batch() or train_state.done):
                continue
            if save_due:
                self._read_latest()
                self._check_finite()
                run_log.save(self)
                last_save, save_due = time.monotonic(), False
            if should_stop and not train_state.done:
                raise TrainingInterrupted("", "training was interrupted")

    def _leader_time(self, seconds: float) -> float:
        """A duration, by the clock of the first process if the budget depends on it."""
        return seconds if self.config.max_minutes is None else self.group.from_leader(seconds)

    def _completed(self, parts: int) -> int:
        """The number of complete parts, if the budget is divided into `parts` equal parts."""
        return math.floor(min(1.0, self.progress()) * parts + 1e-9)

    def _log_training(self, run_log: RunLog) -> None:
        """Write a line to metrics.jsonl, as soon as the numbers of the latest step are known."""
        train_state, name = self.train_state, "train_smoothed_loss" if self.config.label_smoothing else "train_loss"
        if self.launched is not None and self.expert_log.counts:
            self._read_latest()  # the next step replaces the load of the experts
        line = LogLine(train_state.step, train_state.epoch, name, self.lr, self.expert_log.record())
        if self.launched is None:
            line.write(train_state, run_log)
        else:
            self.launched.after = partial(line.write, train_state, run_log)

    def _validate(self, run_log: RunLog, callback: LoopCallback) -> None:
        """Score the validation data, with averaged weights if there are any."""
        start = time.perf_counter()
        with nullcontext() if self.ema is None else self.ema.applied(), self.replica.whole_model() as model:
            self.timing.summarize()
            self._select_weights(model, run_log, callback)
        seconds = self.train_state.validation_seconds + time.perf_counter() - start
        self.train_state.validation_seconds = self._leader_time(seconds)

    def _select_weights(self, model: nn.Module, run_log: RunLog, callback: LoopCallback) -> None:
        """Score the validation data, and keep the weights if the monitored metric is the best so far."""
        train_state = self.train_state
        model.eval()
        with torch.no_grad(), self.device_config.autocast(), detect_divergence(self.train_state.step):
            scores = self.loss_module.objective.validate(model, partial(callback.on_progress, "validating"))
        model.train()
        if scores is None:  # no metric to select by: the latest weights are the result of the run
            self._check_finite()
            train_state.best_step = train_state.step
            run_log.keep_best(self, model)
            self._write_samples(model, run_log)
            return
        monitored = monitored_metric(self.loss_module.objective, self.config.monitor, scores)
        value = scores.get(monitored.name, math.nan)
        if not math.isfinite(value):  # nothing compares with NaN, so no weights could be selected any more
            raise diverged(train_state.step, f"validation {monitored.name} is {value}")
        self._check_finite()
        train_state.metrics = run_log.log(
            {"step": train_state.step, **{f"valid_{name}": value for name, value in scores.items()}}
        )
        is_best = train_state.best is None or monitored.is_better(value, train_state.best)
        if is_best or self.config.keep == "last":
            train_state.best, train_state.best_step, train_state.validations_without_improvement = value, train_state.step, 0
            run_log.keep_best(self, model)
        else:
            train_state.validations_without_improvement += 1
        self._write_samples(model, run_log)
        callback.on_validation(self, scores)

    def _write_samples(self, model: nn.Module, run_log: RunLog) -> None:
        if self.sample_writer is None or not self.group.leads:
            return
        model.eval()
        with torch.no_grad(), self.device_config.autocast(), detect_divergence(self.train_state.step):
            self.samples = [{"step": self.train_state.step, **record} for record in self.sample_writer(model)]
        model.train()
        self.train_state.samples = run_log.write_samples(self.samples)
