"""The training loop: batches, gradients, optimizer steps, validation and checkpoints, independent of task and model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from weft.data.batching import BatchSampler, map_tensors
from weft.errors import DivergedError, ModelError, TrainingInterrupted
from weft.metrics.metric import Metric
from weft.parallel.group import ALONE, Group
from weft.parallel.shards import local, whole
from weft.tensors import not_finite
from weft.training.config import TrainConfig
from weft.training.data_parallel import Replica
from weft.training.ema import EMA
from weft.training.expert_log import ExpertLog
from weft.training.group_timing import GroupTiming
from weft.training.loop_protocols import Copy, LoopCallback, RunLog
from weft.training.loss_module import LossModule
from weft.training.micro_batches import join_parts, micro_batches
from weft.training.optimizers import Optimizers
from weft.training.schedules import Schedule, schedule
from weft.training.seeding import seed_step as seed_step
from weft.training.train_state import TrainState

SAVE_SECONDS = 60.0  # time between checkpoints: the most work that a crash can lose
LOG_LINES = 200  # number of lines with training losses in metrics.jsonl
B = TypeVar("B", bound=tuple[Any, ...])  # a batch: a tuple of tensors (B, ...) or None


class DeviceConfig(NamedTuple):
    """Device and precision of the computation, and the processes that share it."""

    device: torch.device
    precision: torch.dtype
    group: Group = ALONE  # the processes that train together

    def to_device(self, batch: B) -> B:
        return map_tensors(batch, lambda part: part.to(self.device, non_blocking=True))

    def autocast(self) -> AbstractContextManager[Any]:
        if self.precision is torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.precision)


class Loop:
    """Trains a model from its training state to the end of the budget."""

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

    def gradients(self, batch: tuple[Any, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the gradients of the mean loss of a batch and store them in the weights.

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
            with self.replica.backward(is_last=part is parts[-1]):
                with self.device_config.autocast():
                    loss = self.replica(self.device_config.to_device(part.batch), part.carry, part.counts)
                torch.autograd.backward(loss.to_minimize())
            total, count = total + loss.total.detach(), count + loss.count
            tokens = tokens + (loss.count if loss.tokens is None else loss.tokens)
            self.expert_log.add(loss)
            carries += [loss.carry] if part.counts else []
        self.carry = join_parts(carries)
        if self.group.size > 1:
            total, count, tokens = self.group.sum_(torch.stack([total.double(), count.double(), tokens.double()]))
            self.expert_log.sum_(self.group)
        # divided by the total count, not per micro-batch or process: equal to the gradient of one large batch
        self._scale_gradients(self.replica.gradient_factor / count.float().clamp(min=1))
        return total, count, tokens

    def _scale_gradients(self, factor: Tensor) -> None:
        torch._foreach_mul_([local(w.grad) for w in self.optimizers.weights if w.grad is not None], factor)

    def train_step(self) -> tuple[float, int, int]:
        """Make one optimizer step. Returns the summed loss in nats, the number of items and the number of tokens."""
        train_state = self.train_state
        if self.batch_sampler.resets_state(train_state.batch_index):
            self.carry = None
        batch = self.next_batch()
        seed_step(self.seed, train_state.step, self.device_config.device)
        carry = self.carry
        total, count, tokens = self.gradients(batch)
        weights = self.optimizers.weights
        norm = whole(torch.nn.utils.get_total_norm([w.grad for w in weights if w.grad is not None]))
        total_loss, grad_norm = total.item(), norm.item()
        if not (math.isfinite(total_loss) and math.isfinite(grad_norm)):  # an infinite loss may have a finite gradient
            self.carry = carry
            self._raise_diverged(total_loss, grad_norm)
        if self.config.max_grad_norm > 0:
            self._scale_gradients((self.config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        self._record_norm(grad_norm)
        progress = self.progress(ahead=0.5)
        factor = self.lr_schedule(progress)
        self.lr = self.config.lr * factor
        while self.copies:
            self.copies.pop().wait()
        self.optimizers.step(factor, progress)
        self.optimizers.zero_grad()
        if self.ema is not None:
            self.ema.update(train_state.step + 1)
        return total_loss, int(count), int(tokens)

    def _record_norm(self, norm: float) -> None:
        """Add the gradient norm of a step to the statistics of the next line of metrics.jsonl."""
        train_state = self.train_state
        train_state.norm_sum, train_state.norm_max = train_state.norm_sum + norm, max(train_state.norm_max, norm)
        train_state.norm_steps += 1
        train_state.clipped += 0 < self.config.max_grad_norm < norm

    def _raise_diverged(self, total_loss: float, norm: float) -> None:
        state = self.train_state
        name, value = ("gradient norm", norm) if math.isfinite(total_loss) else ("loss", total_loss)
        batch = self.batch_sampler.describe(state.epoch, state.batch_index)
        raise DivergedError(
            f"step {state.step + 1}",
            f"{name} is {value} (epoch {state.epoch}, batch {state.batch_index}: {batch}); the last checkpoint is intact",
            "lower train.lr or train.max_grad_norm",
        )

    def _check_finite(self) -> None:
        """Refuse to save NaN or infinite weights: the last step changes them after its check of loss and gradients."""
        if self.ema is None and self.checked_step == self.train_state.step:  # for the best weights of this step
            return
        parts = {name: local(tensor) for name, tensor in self.loss_module.model.state_dict().items()}
        # each process may hold other parts
        if (name := next(filter(None, self.group.gather(not_finite(parts))), None)) is not None:
            raise DivergedError(
                f"step {self.train_state.step}",
                f"{name} has NaN or infinite values; the last checkpoint is intact",
                "lower train.lr or train.max_grad_norm",
            )
        self.checked_step = self.train_state.step

    @contextmanager
    def _detect_divergence(self) -> Iterator[None]:
        """Decoding with huge but finite weights can compute NaN."""
        try:
            yield
        except ModelError as error:
            raise DivergedError(
                f"step {self.train_state.step}",
                f"{error.problem}; the last checkpoint is intact",
                "lower train.lr or train.max_grad_norm",
            ) from error

    # ---- the run

    def run(self, run_log: RunLog, callback: LoopCallback) -> None:
        """Train until the budget or the patience is used up. If a checkpoint is due before the last step of a prepared batch,
        it is written after that step.

        Raises:
            TrainingInterrupted: The callback requested a stop; a checkpoint was saved.
            DivergedError: The loss, a gradient or a weight is NaN or infinite.
            ResourceError: A checkpoint could not be written; the one before is intact.
        """
        try:
            self._run(run_log, callback)
        finally:
            run_log.finish()  # a write that failed came before any other error

    def _run(self, run_log: RunLog, callback: LoopCallback) -> None:
        train_state, last_save = self.train_state, time.monotonic()
        save_due, should_stop, is_first = False, False, True
        while not train_state.done:
            run_log.raise_error()
            start = time.perf_counter()
            log_lines, validations = self._completed(LOG_LINES), self._completed(self.config.num_validations)
            total_loss, count, tokens = self.train_step()
            self._advance(total_loss, count, tokens)
            seconds = time.perf_counter() - start
            self.timing.add(seconds)
            train_state.seconds = self._leader_time(train_state.seconds + seconds)
            if is_first:
                run_log.reserve(self)
                is_first = False
            is_last = self.progress() >= 1.0
            if is_last or self._completed(LOG_LINES) > log_lines or train_state.step == 1:
                self._log_training(run_log)
            callback.on_step(self, total_loss / max(1, count), time.perf_counter() - start)
            validated = is_last or self._completed(self.config.num_validations) > validations
            if validated:
                self._validate(run_log, callback)
                is_last = self.progress() >= 1.0  # a validation takes part of a budget in minutes
                train_state.done = is_last or (
                    self.config.patience > 0 and train_state.validations_without_improvement >= self.config.patience
                )
            should_stop, is_late = self._agree(
                callback.should_stop() or should_stop, time.monotonic() - last_save > SAVE_SECONDS
            )
            save_due = save_due or validated or should_stop or is_late
            if not (self.needs_batch() or train_state.done):
                continue
            if save_due:
                self._check_finite()
                run_log.save(self)
                last_save, save_due = time.monotonic(), False
            if should_stop and not train_state.done:
                raise TrainingInterrupted("", "training was interrupted")

    def _agree(self, should_stop: bool, is_late: bool) -> tuple[bool, bool]:
        """Whether any process should stop, and whether a checkpoint is late by the clock of the first process."""
        if self.group.size == 1:
            return should_stop, is_late
        stops, late = self.group.sum_(torch.tensor([should_stop, is_late and self.group.leads], dtype=torch.float64)).tolist()
        return stops > 0, late > 0

    def _leader_time(self, seconds: float) -> float:
        """A duration, by the clock of the first process if the budget depends on it."""
        return seconds if self.config.max_minutes is None else self.group.from_leader(seconds)

    def _completed(self, parts: int) -> int:
        """The number of complete parts, if the budget is divided into `parts` equal parts."""
        return math.floor(min(1.0, self.progress()) * parts + 1e-9)

    def _advance(self, total_loss: float, count: int, tokens: int) -> None:
        """Move the training state behind a step."""
        train_state = self.train_state
        train_state.step, train_state.tokens = train_state.step + 1, train_state.tokens + tokens
        train_state.logged, train_state.counted_tokens = train_state.logged + total_loss, train_state.counted_tokens + count
        if not self.needs_batch():
            return
        train_state.batch_index += 1
        if train_state.batch_index == self.batch_sampler.batches(train_state.epoch):
            train_state.epoch, train_state.batch_index = train_state.epoch + 1, 0

    def _log_training(self, run_log: RunLog) -> None:
        """Write the mean loss and gradient norm since the last line to metrics.jsonl."""
        train_state = self.train_state
        loss = train_state.logged / max(1, train_state.counted_tokens)
        name = "train_smoothed_loss" if self.config.label_smoothing else "train_loss"
        gradients = {
            "grad_norm": train_state.norm_sum / max(1, train_state.norm_steps),
            "grad_norm_max": train_state.norm_max,
            "learning_rate": self.lr,
            "clipped_steps": train_state.clipped,
        }
        record = {"step": train_state.step, "epoch": train_state.epoch, "tokens": train_state.tokens, name: loss, **gradients}
        record |= self.expert_log.record()
        train_state.metrics = run_log.log(record)
        train_state.logged, train_state.counted_tokens = 0.0, 0
        train_state.norm_sum, train_state.norm_max, train_state.norm_steps, train_state.clipped = 0.0, 0.0, 0, 0

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
        with torch.no_grad(), self.device_config.autocast(), self._detect_divergence():
            scores = self.loss_module.objective.validate(model, partial(callback.on_progress, "validating"))
        model.train()
        if scores is None:  # no metric to select by: the latest weights are the result of the run
            self._check_finite()
            train_state.best_step = train_state.step
            run_log.keep_best(self, model)
            self._write_samples(model, run_log)
            return
        monitored = self._monitored_metric(scores)
        value = scores.get(monitored.name, math.nan)
        if not math.isfinite(value):  # nothing compares with NaN, so no weights could be selected any more
            raise DivergedError(
                f"step {train_state.step}",
                f"validation {monitored.name} is {value}; the last checkpoint is intact",
                "lower train.lr or train.max_grad_norm",
            )
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

    def _monitored_metric(self, scores: Mapping[str, float]) -> Metric:
        """The metric that selects weights: train.monitor, or the first that was computed."""
        for metric in self.loss_module.objective.monitors:
            if metric.name == self.config.monitor:
                return metric
        return next(metric for metric in self.loss_module.objective.monitors if metric.name in scores)

    def _write_samples(self, model: nn.Module, run_log: RunLog) -> None:
        if self.sample_writer is None or not self.group.leads:
            return
        model.eval()
        with torch.no_grad(), self.device_config.autocast(), self._detect_divergence():
            self.samples = [{"step": self.train_state.step, **record} for record in self.sample_writer(model)]
        model.train()
        self.train_state.samples = run_log.write_samples(self.samples)
