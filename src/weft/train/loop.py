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

from weft.data.order import Order, changed
from weft.errors import DivergedError, TrainingInterrupted
from weft.metrics.metric import Metric
from weft.nn.state import join, select
from weft.tensors import not_finite
from weft.train.average import Average
from weft.train.cursor import Cursor
from weft.train.learner import Learner
from weft.train.optimizers import Optimizers
from weft.train.schedules import Schedule, schedule
from weft.train.tables import TrainTable

SAVE_SECONDS = 60.0  # at most this much work is lost to a power cut
LINES = 200  # of metrics.jsonl in a run
B = TypeVar("B", bound=tuple[Any, ...])  # a batch: tensors (B, ...), None where one is not needed


class Journal(Protocol):
    """Where a run is written down; the run folder is one."""

    def log(self, record: dict[str, Any]) -> int:
        """Adds a line to metrics.jsonl and gives its new length."""

    def write_samples(self, records: Sequence[Mapping[str, Any]]) -> int:
        """Adds lines to samples.jsonl and gives its new length."""

    def save(self, loop: Loop) -> None:
        """Writes a checkpoint."""

    def keep_best(self, model: nn.Module, step: int) -> None:
        """Writes the weights that the run will be known by."""


class Watcher(Protocol):
    """Who looks at a run while it goes on; the command line's progress is one."""

    def step(self, loop: Loop, loss: float, seconds: float) -> None: ...

    def validated(self, loop: Loop, scores: dict[str, float]) -> None: ...

    def working(self, name: str, done: int, total: int) -> None: ...

    def stopping(self) -> bool: ...


class Place(NamedTuple):
    """Where and how numbers are computed."""

    device: torch.device
    precision: torch.dtype

    def moved(self, batch: B) -> B:
        return changed(batch, lambda part: part.to(self.device, non_blocking=True))

    def autocast(self) -> AbstractContextManager[Any]:
        if self.precision is torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.precision)


class Loop:
    """Carries a learner from the cursor to the end of its budget."""

    def __init__(
        self, learner: Learner, optimizers: Optimizers, order: Order[Any], *, table: TrainTable, seed: int, place: Place
    ) -> None:
        self.learner, self.optimizers, self.order = learner, optimizers, order
        self.table, self.seed, self.place = table, seed, place
        self.cursor, self.carry = Cursor(), None
        self.batch: tuple[Any, ...] | None = None  # that was prepared, for the updates that are still made from it
        self.average = None if table.average == "none" else Average(optimizers.names, decay=table.average)
        self.factor: Schedule = schedule(table.schedule, warmup=table.warmup)
        self.rate = 0.0  # the learning rate of the latest update
        self.writer: Callable[[Any], list[dict[str, Any]]] | None = None  # writes text at each validation, where that is wanted
        self.samples: list[dict[str, Any]] = []  # what it wrote last

    # ---- how far

    def total_steps(self) -> int | None:
        """How many updates the budget allows, where that is known."""
        if self.table.steps is not None:
            return self.table.steps
        if self.table.epochs is not None:
            return max(1, round(self.table.epochs * self.order.batches(0))) * self.learner.updates
        return None

    def progress(self, *, ahead: float = 0.0) -> float:
        """From 0 to 1; with `ahead=0.5`, in the middle of the next update."""
        cursor, steps = self.cursor, self.total_steps()
        if steps is not None:
            return (cursor.step + ahead) / steps
        if self.table.tokens is not None:
            each_step = cursor.tokens / cursor.step if cursor.step else self.table.batch_tokens
            return (cursor.tokens + ahead * each_step) / self.table.tokens
        return cursor.seconds / (60.0 * (self.table.minutes or 1.0))

    # ---- one update

    def between(self) -> bool:
        """Whether the next update has a batch of its own: what was prepared is not saved."""
        return self.cursor.step % self.learner.updates == 0

    def next_batch(self) -> tuple[Any, ...]:
        """The batch of the next update: that of the order, or the one that was prepared from it."""
        if self.between() or self.batch is None:
            batch: tuple[Any, ...] = self.order.batch(self.cursor.epoch, self.cursor.index)
            if self.learner.task.prepare is None:
                return batch
            with self.place.autocast():
                self.batch = self.learner.prepared(self.place.moved(batch), seed=self.seed, step=self.cursor.step)
        return self.batch

    def micros(self, batch: B) -> Iterator[tuple[B, Any]]:
        """The batch in `accumulate` parts, each with its rows of the carry."""
        moved = self.place.moved(batch)
        rows = torch.arange(moved[0].size(0), device=self.place.device)
        for part in rows.chunk(self.table.accumulate):
            if len(part) == len(rows):
                yield moved, self.carry
            else:
                yield changed(moved, partial(torch.index_select, dim=0, index=part)), select(self.carry, part)

    def gradients(self, batch: tuple[Any, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of the batch's mean loss, in place; its nats, its count, and its tokens, summed."""
        total = torch.zeros(
            (), dtype=torch.float64 if self.place.device.type == "cpu" else torch.float32, device=self.place.device
        )
        count, carries = torch.zeros((), dtype=torch.long, device=self.place.device), []
        tokens = torch.zeros_like(count)
        for micro, carry in self.micros(batch):
            with self.place.autocast():
                loss = self.learner(micro, carry)
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
        cursor = self.cursor
        if self.order.anew(cursor.index):
            self.carry = None
        batch = self.next_batch()
        seed_step(self.seed, cursor.step, self.place.device)
        before = self.carry
        total, count, tokens = self.gradients(batch)
        weights = self.optimizers.weights
        norm = torch.nn.utils.get_total_norm([w.grad for w in weights if w.grad is not None])
        nats, size = total.item(), norm.item()
        if not (math.isfinite(nats) and math.isfinite(size)):  # both: an infinite loss may have a gradient of 1
            self.carry = before
            self._diverged(nats, size)
        if self.table.clip != "none":
            torch.nn.utils.clip_grads_with_norm_(weights, self.table.clip, norm)
        self._note_norm(size)
        progress = self.progress(ahead=0.5)
        factor = self.factor(progress)
        self.rate = self.table.lr * factor
        self.optimizers.step(factor, progress)
        self.optimizers.clear()
        if self.average is not None:
            self.average.follow(cursor.step + 1)
        return nats, int(count), int(tokens)

    def _note_norm(self, norm: float) -> None:
        """Adds a step to what the next line of metrics.jsonl says of gradients. The number is on the host already, for the test
        of divergence: nothing more is read from the device."""
        cursor = self.cursor
        cursor.norm_sum, cursor.norm_max = cursor.norm_sum + norm, max(cursor.norm_max, norm)
        cursor.norm_steps += 1
        cursor.clipped += self.table.clip != "none" and norm > self.table.clip

    def _diverged(self, nats: float, norm: float) -> None:
        cursor = self.cursor
        what, seen = ("norm of the gradient", norm) if math.isfinite(nats) else ("loss", nats)
        batch = self.order.describe(cursor.epoch, cursor.index)
        raise DivergedError(
            f"step {cursor.step + 1}: the {what} is {seen} in batch {cursor.index} of epoch {cursor.epoch} ({batch}); "
            f"no update was made and the last checkpoint is kept; lower train.lr or train.clip, or look at those lines"
        )

    def _refuse_infinite(self) -> None:
        """No weights are saved that can't be used: after the last update nobody else looks at them."""
        if (name := not_finite(self.learner.model.state_dict())) is not None:
            raise DivergedError(
                f"step {self.cursor.step}: {name} holds NaN or infinity after the update; "
                f"the last checkpoint is kept; lower train.lr or train.clip"
            )

    # ---- the run

    def run(self, journal: Journal, watcher: Watcher) -> None:
        """Train until the budget or the patience is spent; raises TrainingInterrupted, having saved, when the watcher
        wants it. What is to be saved while a prepared batch is in use is saved after the last update from it."""
        cursor, saved = self.cursor, time.monotonic()
        due, stopping = False, False
        while not cursor.done:
            began = time.perf_counter()
            line, check = self._due(LINES), self._due(self.table.validations)
            nats, count, tokens = self.update()
            self._advance(nats, count, tokens)
            cursor.seconds += time.perf_counter() - began
            ended = self.progress() >= 1.0
            if ended or self._due(LINES) > line or cursor.step == 1:
                self._log_training(journal)
            watcher.step(self, nats / max(1, count), time.perf_counter() - began)
            validated = ended or self._due(self.table.validations) > check
            if validated:
                with nullcontext() if self.average is None else self.average.shown():
                    self._validate(journal, watcher)
                cursor.done = ended or (self.table.patience != "none" and cursor.waited >= self.table.patience)
            stopping = watcher.stopping() or stopping
            due = due or validated or stopping or time.monotonic() - saved > SAVE_SECONDS
            if not (self.between() or cursor.done):
                continue
            if due:
                self._refuse_infinite()
                journal.save(self)
                saved, due = time.monotonic(), False
            if stopping and not cursor.done:
                raise TrainingInterrupted

    def _due(self, parts: int) -> int:
        """How many of `parts` equal parts of the budget are over."""
        return math.floor(min(1.0, self.progress()) * parts + 1e-9)

    def _advance(self, nats: float, count: int, tokens: int) -> None:
        cursor = self.cursor
        cursor.step, cursor.tokens = cursor.step + 1, cursor.tokens + tokens
        cursor.logged, cursor.counted = cursor.logged + nats, cursor.counted + count
        if not self.between():
            return
        cursor.index += 1
        if cursor.index == self.order.batches(cursor.epoch):
            cursor.epoch, cursor.index = cursor.epoch + 1, 0

    def _log_training(self, journal: Journal) -> None:
        cursor = self.cursor
        loss = cursor.logged / max(1, cursor.counted)
        name = "train_loss" if self.table.label_smoothing else f"train_nats_per_{self.learner.task.unit}"
        gradients = {
            "grad_norm": cursor.norm_sum / max(1, cursor.norm_steps),
            "grad_norm_max": cursor.norm_max,
            "learning_rate": self.rate,
            "clipped_steps": cursor.clipped,
        }
        record = {"step": cursor.step, "epoch": cursor.epoch, "tokens": cursor.tokens, name: loss, **gradients}
        cursor.metrics = journal.log(record)
        cursor.logged, cursor.counted = 0.0, 0
        cursor.norm_sum, cursor.norm_max, cursor.norm_steps, cursor.clipped = 0.0, 0.0, 0, 0

    def _validate(self, journal: Journal, watcher: Watcher) -> None:
        cursor = self.cursor
        self.learner.model.eval()
        with torch.no_grad(), self.place.autocast():
            scores = self.learner.task.validate(self.learner.model, partial(watcher.working, "validating"))
        self.learner.model.train()
        if scores is None:  # nothing to choose by: the run is known by its latest weights
            self._refuse_infinite()
            cursor.best_step = cursor.step
            journal.keep_best(self.learner.model, cursor.step)
            self._write_samples(journal)
            return
        decides = self._deciding(scores)
        value = scores.get(decides.name, math.nan)
        if not math.isfinite(value):  # nothing is better or worse than NaN: there would be no choosing any more
            raise DivergedError(
                f"step {cursor.step}: the {decides.name} of the validation data is {value}; "
                f"the last checkpoint is kept; lower train.lr or train.clip"
            )
        self._refuse_infinite()
        cursor.metrics = journal.log({"step": cursor.step, **{f"valid_{name}": value for name, value in scores.items()}})
        if cursor.best is None or decides.is_better(value, cursor.best):
            cursor.best, cursor.best_step, cursor.waited = value, cursor.step, 0
            journal.keep_best(self.learner.model, cursor.step)
        else:
            cursor.waited += 1
        self._write_samples(journal)
        watcher.validated(self, scores)

    def _deciding(self, scores: Mapping[str, float]) -> Metric:
        """What chooses weights: the metric that train.monitor names, else the first that was measured."""
        named = [metric for metric in self.learner.task.monitors if metric.name == self.table.monitor]
        return next(metric for metric in named or self.learner.task.monitors if named or metric.name in scores)

    def _write_samples(self, journal: Journal) -> None:
        if self.writer is None:
            return
        self.learner.model.eval()
        with torch.no_grad(), self.place.autocast():
            self.samples = [{"step": self.cursor.step, **record} for record in self.writer(self.learner.model)]
        self.learner.model.train()
        self.cursor.samples = journal.write_samples(self.samples)


def seed_step(seed: int, step: int, device: torch.device) -> None:
    """Dropout follows from seed and step alone: nothing random is saved, and what happens in between changes nothing."""
    mixed = (seed * 1_000_003 + step) % 2**63
    torch.default_generator.manual_seed(mixed)  # torch.manual_seed would format a stack trace each time
    if device.type == "cuda":
        torch.cuda.manual_seed(mixed)
