"""The one training loop: batches in order, gradients, updates, validation, checkpoints. It knows no task and no model."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from weft.data.batching import BatchSampler, map_tensors
from weft.errors import DivergedError, TrainingInterrupted
from weft.metrics.metric import Metric
from weft.nn.state import join, select
from weft.tensors import not_finite
from weft.training.config import TrainConfig
from weft.training.ema import EMA
from weft.training.loss_module import LossModule
from weft.training.optimizers import Optimizers
from weft.training.schedules import Schedule, schedule
from weft.training.train_state import TrainState

SAVE_SECONDS = 60.0  # at most this much work is lost to a power cut
LINES = 200  # of metrics.jsonl in a run
B = TypeVar("B", bound=tuple[Any, ...])  # a batch: tensors (B, ...), None where one is not needed


class RunLog(Protocol):
    """Where a run is written down; the run folder is one."""

    def log(self, record: dict[str, Any]) -> int:
        """Adds a line to metrics.jsonl and gives its new length."""

    def write_samples(self, records: Sequence[Mapping[str, Any]]) -> int:
        """Adds lines to samples.jsonl and gives its new length."""

    def save(self, loop: Loop) -> None:
        """Writes a checkpoint."""

    def keep_best(self, model: nn.Module, step: int) -> None:
        """Writes the weights that the run will be known by."""


class LoopCallback(Protocol):
    """Who looks at a run while it goes on; the command line's progress is one."""

    def on_step(self, loop: Loop, loss: float, seconds: float) -> None: ...

    def on_validation(self, loop: Loop, scores: dict[str, float]) -> None: ...

    def on_progress(self, name: str, done: int, total: int) -> None: ...

    def should_stop(self) -> bool: ...


class DeviceConfig(NamedTuple):
    """Where and how numbers are computed."""

    device: torch.device
    precision: torch.dtype

    def to_device(self, batch: B) -> B:
        return map_tensors(batch, lambda part: part.to(self.device, non_blocking=True))

    def autocast(self) -> AbstractContextManager[Any]:
        if self.precision is torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.precision)


class Loop:
    """Carries a learner from the cursor to the end of its budget."""

    def __init__(
        self,
        loss_module: LossModule,
        optimizers: Optimizers,
        batch_sampler: BatchSampler[Any],
        *,
        config: TrainConfig,
        seed: int,
        device_config: DeviceConfig,
    ) -> None:
        self.loss_module, self.optimizers, self.batch_sampler = loss_module, optimizers, batch_sampler
        self.config, self.seed, self.device_config = config, seed, device_config
        self.train_state, self.carry = TrainState(), None
        self.batch: tuple[Any, ...] | None = None  # that was prepared, for the updates that are still made from it
        self.ema = None if config.ema_decay == "none" else EMA(optimizers.names, decay=config.ema_decay)
        self.factor: Schedule = schedule(config.lr_schedule, warmup=config.warmup_ratio)
        self.rate = 0.0  # the learning rate of the latest update
        self.writer: Callable[[Any], list[dict[str, Any]]] | None = None  # writes text at each validation, where that is wanted
        self.samples: list[dict[str, Any]] = []  # what it wrote last

    # ---- how far

    def total_steps(self) -> int | None:
        """How many updates the budget allows, where that is known."""
        if self.config.max_steps is not None:
            return self.config.max_steps
        if self.config.max_epochs is not None:
            return max(1, round(self.config.max_epochs * self.batch_sampler.batches(0))) * self.loss_module.updates
        return None

    def progress(self, *, ahead: float = 0.0) -> float:
        """From 0 to 1; with `ahead=0.5`, in the middle of the next update."""
        train_state, steps = self.train_state, self.total_steps()
        if steps is not None:
            return (train_state.step + ahead) / steps
        if self.config.max_tokens is not None:
            each_step = train_state.tokens / train_state.step if train_state.step else self.config.batch_tokens
            return (train_state.tokens + ahead * each_step) / self.config.max_tokens
        return train_state.seconds / (60.0 * (self.config.max_minutes or 1.0))

    # ---- one update

    def between(self) -> bool:
        """Whether the next update has a batch of its own: what was prepared is not saved."""
        return self.train_state.step % self.loss_module.updates == 0

    def next_batch(self) -> tuple[Any, ...]:
        """The batch of the next update: that of the order, or the one that was prepared from it."""
        if self.between() or self.batch is None:
            batch: tuple[Any, ...] = self.batch_sampler.batch(self.train_state.epoch, self.train_state.batch_index)
            if self.loss_module.task.prepare is None:
                return batch
            with self.device_config.autocast():
                self.batch = self.loss_module.prepared(
                    self.device_config.to_device(batch), seed=self.seed, step=self.train_state.step
                )
        return self.batch

    def micro_batches(self, batch: B) -> Iterator[tuple[B, Any]]:
        """The batch in `accumulate` parts, each with its rows of the carry."""
        moved = self.device_config.to_device(batch)
        rows = torch.arange(moved[0].size(0), device=self.device_config.device)
        for part in rows.chunk(self.config.micro_batches):
            if len(part) == len(rows):
                yield moved, self.carry
            else:
                yield map_tensors(moved, partial(torch.index_select, dim=0, index=part)), select(self.carry, part)

    def gradients(self, batch: tuple[Any, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of the batch's mean loss, in place; its nats, its count, and its tokens, summed."""
        total = torch.zeros(
            (),
            dtype=torch.float64 if self.device_config.device.type == "cpu" else torch.float32,
            device=self.device_config.device,
        )
        count, carries = torch.zeros((), dtype=torch.long, device=self.device_config.device), []
        tokens = torch.zeros_like(count)
        for micro, carry in self.micro_batches(batch):
            with self.device_config.autocast():
                loss = self.loss_module(micro, carry)
            loss.total.backward()
            total, count = total + loss.total.detach(), count + loss.count
            tokens = tokens + (loss.count if loss.tokens is None else loss.tokens)
            carries.append(loss.carry)
        self.carry = carries[0]
        for carry in carries[1:]:
            self.carry = join(self.carry, carry)
        # one division by the count of everything: parts, processes and one large batch give the same gradient
        torch._foreach_mul_([w.grad for w in self.optimizers.weights if w.grad is not None], 1.0 / count.float())
        return total, count, tokens

    def update(self) -> tuple[float, int, int]:
        """One step of the optimiser; nats, count and tokens of its batch."""
        train_state = self.train_state
        if self.batch_sampler.resets_state(train_state.batch_index):
            self.carry = None
        batch = self.next_batch()
        seed_step(self.seed, train_state.step, self.device_config.device)
        before = self.carry
        total, count, tokens = self.gradients(batch)
        weights = self.optimizers.weights
        norm = torch.nn.utils.get_total_norm([w.grad for w in weights if w.grad is not None])
        nats, size = total.item(), norm.item()
        if not (math.isfinite(nats) and math.isfinite(size)):  # both: an infinite loss may have a gradient of 1
            self.carry = before
            self._diverged(nats, size)
        if self.config.max_grad_norm != "none":
            torch.nn.utils.clip_grads_with_norm_(weights, self.config.max_grad_norm, norm)
        self._note_norm(size)
        progress = self.progress(ahead=0.5)
        factor = self.factor(progress)
        self.rate = self.config.lr * factor
        self.optimizers.step(factor, progress)
        self.optimizers.clear()
        if self.ema is not None:
            self.ema.update(train_state.step + 1)
        return nats, int(count), int(tokens)

    def _note_norm(self, norm: float) -> None:
        """Adds a step to what the next line of metrics.jsonl says of gradients. The number is on the host already, for the test
        of divergence: nothing more is read from the device."""
        train_state = self.train_state
        train_state.norm_sum, train_state.norm_max = train_state.norm_sum + norm, max(train_state.norm_max, norm)
        train_state.norm_steps += 1
        train_state.clipped += self.config.max_grad_norm != "none" and norm > self.config.max_grad_norm

    def _diverged(self, nats: float, norm: float) -> None:
        train_state = self.train_state
        what, seen = ("norm of the gradient", norm) if math.isfinite(nats) else ("loss", nats)
        batch = self.batch_sampler.describe(train_state.epoch, train_state.batch_index)
        raise DivergedError(
            f"step {train_state.step + 1}",
            f"the {what} is {seen} in batch {train_state.batch_index} of epoch {train_state.epoch} ({batch}); no update was made and the last checkpoint is kept",
            "lower train.lr or train.max_grad_norm, or look at those lines",
        )

    def _check_finite(self) -> None:
        """No weights are saved that can't be used: after the last update nobody else looks at them."""
        if (name := not_finite(self.loss_module.model.state_dict())) is not None:
            raise DivergedError(
                f"step {self.train_state.step}",
                f"{name} holds NaN or infinity after the update; the last checkpoint is kept",
                "lower train.lr or train.max_grad_norm",
            )

    # ---- the run

    def run(self, run_log: RunLog, callback: LoopCallback) -> None:
        """Train until the budget or the patience is spent; raises TrainingInterrupted, having saved, when the watcher
        wants it. What is to be saved while a prepared batch is in use is saved after the last update from it."""
        train_state, saved = self.train_state, time.monotonic()
        due, stopping = False, False
        while not train_state.done:
            began = time.perf_counter()
            line, check = self._due(LINES), self._due(self.config.num_validations)
            nats, count, tokens = self.update()
            self._advance(nats, count, tokens)
            train_state.seconds += time.perf_counter() - began
            ended = self.progress() >= 1.0
            if ended or self._due(LINES) > line or train_state.step == 1:
                self._log_training(run_log)
            callback.on_step(self, nats / max(1, count), time.perf_counter() - began)
            validated = ended or self._due(self.config.num_validations) > check
            if validated:
                with nullcontext() if self.ema is None else self.ema.applied():
                    self._validate(run_log, callback)
                train_state.done = ended or (
                    self.config.patience != "none" and train_state.validations_without_improvement >= self.config.patience
                )
            stopping = callback.should_stop() or stopping
            due = due or validated or stopping or time.monotonic() - saved > SAVE_SECONDS
            if not (self.between() or train_state.done):
                continue
            if due:
                self._check_finite()
                run_log.save(self)
                saved, due = time.monotonic(), False
            if stopping and not train_state.done:
                raise TrainingInterrupted("", "training was interrupted")

    def _due(self, parts: int) -> int:
        """How many of `parts` equal parts of the budget are over."""
        return math.floor(min(1.0, self.progress()) * parts + 1e-9)

    def _advance(self, nats: float, count: int, tokens: int) -> None:
        train_state = self.train_state
        train_state.step, train_state.tokens = train_state.step + 1, train_state.tokens + tokens
        train_state.logged, train_state.counted_tokens = train_state.logged + nats, train_state.counted_tokens + count
        if not self.between():
            return
        train_state.batch_index += 1
        if train_state.batch_index == self.batch_sampler.batches(train_state.epoch):
            train_state.epoch, train_state.batch_index = train_state.epoch + 1, 0

    def _log_training(self, run_log: RunLog) -> None:
        train_state = self.train_state
        loss = train_state.logged / max(1, train_state.counted_tokens)
        name = "train_loss" if self.config.label_smoothing else f"train_nats_per_{self.loss_module.task.unit}"
        gradients = {
            "grad_norm": train_state.norm_sum / max(1, train_state.norm_steps),
            "grad_norm_max": train_state.norm_max,
            "learning_rate": self.rate,
            "clipped_steps": train_state.clipped,
        }
        record = {"step": train_state.step, "epoch": train_state.epoch, "tokens": train_state.tokens, name: loss, **gradients}
        train_state.metrics = run_log.log(record)
        train_state.logged, train_state.counted_tokens = 0.0, 0
        train_state.norm_sum, train_state.norm_max, train_state.norm_steps, train_state.clipped = 0.0, 0.0, 0, 0

    def _validate(self, run_log: RunLog, callback: LoopCallback) -> None:
        train_state = self.train_state
        self.loss_module.model.eval()
        with torch.no_grad(), self.device_config.autocast():
            scores = self.loss_module.task.validate(self.loss_module.model, partial(callback.on_progress, "validating"))
        self.loss_module.model.train()
        if scores is None:  # nothing to choose by: the run is known by its latest weights
            self._check_finite()
            train_state.best_step = train_state.step
            run_log.keep_best(self.loss_module.model, train_state.step)
            self._write_samples(run_log)
            return
        decides = self._deciding(scores)
        value = scores.get(decides.name, math.nan)
        if not math.isfinite(value):  # nothing is better or worse than NaN: there would be no choosing any more
            raise DivergedError(
                f"step {train_state.step}",
                f"the {decides.name} of the validation data is {value}; the last checkpoint is kept",
                "lower train.lr or train.max_grad_norm",
            )
        self._check_finite()
        train_state.metrics = run_log.log(
            {"step": train_state.step, **{f"valid_{name}": value for name, value in scores.items()}}
        )
        if train_state.best is None or decides.is_better(value, train_state.best):
            train_state.best, train_state.best_step, train_state.validations_without_improvement = value, train_state.step, 0
            run_log.keep_best(self.loss_module.model, train_state.step)
        else:
            train_state.validations_without_improvement += 1
        self._write_samples(run_log)
        callback.on_validation(self, scores)

    def _deciding(self, scores: Mapping[str, float]) -> Metric:
        """What chooses weights: the metric that train.monitor names, else the first that was measured."""
        named = [metric for metric in self.loss_module.task.monitors if metric.name == self.config.monitor]
        return next(metric for metric in named or self.loss_module.task.monitors if named or metric.name in scores)

    def _write_samples(self, run_log: RunLog) -> None:
        if self.writer is None:
            return
        self.loss_module.model.eval()
        with torch.no_grad(), self.device_config.autocast():
            self.samples = [{"step": self.train_state.step, **record} for record in self.writer(self.loss_module.model)]
        self.loss_module.model.train()
        self.train_state.samples = run_log.write_samples(self.samples)


def seed_step(seed: int, step: int, device: torch.device) -> None:
    """Dropout follows from seed and step alone: nothing random is saved, and what happens in between changes nothing."""
    mixed = (seed * 1_000_003 + step) % 2**63
    torch.default_generator.manual_seed(mixed)  # torch.manual_seed would format a stack trace each time
    if device.type == "cuda":
        torch.cuda.manual_seed(mixed)
