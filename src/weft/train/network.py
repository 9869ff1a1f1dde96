"""Training by gradients: from settings to a loop, from a run folder to a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from weft.config import no_such
from weft.data.order import Order
from weft.errors import ConfigError, ModelError
from weft.metrics.metric import metric_names
from weft.tasks.objective import Objective
from weft.train import checkpoint, memory, samples
from weft.train.device import pick_place
from weft.train.learner import Learner
from weft.train.loop import Loop, Place
from weft.train.optimizers import optimizers
from weft.train.warm import Made, start_from

AGAIN = "--fresh trains it again"

if TYPE_CHECKING:
    from weft.runs.folder import RunFolder
    from weft.runs.job import Job
    from weft.runs.settings import Settings
    from weft.train.journal import Journal


class Shape(Protocol):
    """What is particular to the networks of one task."""

    def check(self, settings: Settings) -> None:
        """Refuses tables that are right each for itself but not together."""

    def alike(self, settings: Settings) -> bool:
        """Whether compiling pays: batches of one shape, read by mixers that torch's compiler takes."""

    def build(self, settings: Settings, tokenizer: Any) -> Callable[[], Any]:
        """What makes the model, freshly initialised from torch's default generator."""

    def order(self, job: Job) -> Order[Any]: ...

    def task(self, job: Job, model: nn.Module) -> Objective:
        """The task on the run's data, which must fit the model."""


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


class Network:
    """Every model that is a torch module."""

    by_steps = True

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def check(self, settings: Settings) -> None:
        monitor = settings.train.monitor
        if monitor is not None and monitor not in (known := metric_names(settings.spec.validation)):
            raise ConfigError(f"train.monitor: {no_such('score', monitor, known)}")
        for option in ("patience", "monitor"):
            if getattr(settings.train, option) not in (None, "none") and settings.data.valid is None:
                raise ConfigError(
                    f"train.{option}: is about validations, but data.valid is not given; give it, or drop {option}"
                )
        samples.check(settings)
        self.shape.check(settings)

    @torch.inference_mode(False)  # gradients are kept, whatever the caller has switched off
    def train(self, job: Job) -> None:
        """From the newest checkpoint, or from the start."""
        loop = self.loop(job)
        journal = job.journal()
        try:
            if names := checkpoint.names(job.folder.path):
                self._resume(loop, job, journal, checkpoint.place(job.folder.path) / names[-1])
            else:
                journal.restore(loop.cursor)
            loop.run(journal, job.watcher)
        finally:
            journal.close()

    def _resume(self, loop: Loop, job: Job, journal: Journal, start: Path) -> None:
        """Everything as the checkpoint has it."""
        checkpoint.restore(loop, start)
        self._check_best(loop, job)
        for told in journal.restore(loop.cursor, checkpoint.read_metrics(start, loop.cursor)):
            job.watcher.note(told)
        job.watcher.note(f"resuming at step {loop.cursor.step}")

    def _check_best(self, loop: Loop, job: Job) -> None:
        """Refuse to go on where the weights that the run is known by are gone, damaged or others: it may never find as good
        ones again."""
        cursor, folder = loop.cursor, job.folder
        if not cursor.best_step:
            return
        if not folder.weights.exists():
            raise ModelError(f"{folder.weights}: is missing, and was written at an earlier step; {AGAIN}")
        try:
            folder.read_weights(job.tokenizer.hash)
            step = folder.check_step(cursor)
        except ModelError as error:
            raise ModelError(f"{error}; {AGAIN}") from None
        if step > cursor.step:  # of a process that was killed before it could save: the next validation takes its place
            cursor.best, cursor.best_step = None, step

    def loop(self, job: Job) -> Loop:
        settings, place, order = job.settings, pick_place(job.settings), self.shape.order(job)
        build = self.shape.build(settings, job.tokenizer)
        memory.check_weights(build, settings.train, place.device)
        torch.manual_seed(settings.seed)
        model = build().to(place.device)
        if settings.train.init_from is not None and not checkpoint.names(job.folder.path):
            made = Made(settings, job.tokenizer)
            job.watcher.note(start_from(model, made, job.origin(), loose=settings.train.init_loose))
        learner = Learner(self.shape.task(job, model), model)
        memory.check_batch(learner, self._largest(learner, order, settings.seed, place), settings.train, place)
        auto = place.device.type == "cuda" and self.shape.alike(settings)
        if settings.train.compile is True or (settings.train.compile == "auto" and auto):
            learner.compile()  # in place: saved names, and whoever explains, see the plain model
        steps = optimizers(model, model.matrices(), settings.train)
        loop = Loop(learner, steps, order, table=settings.train, seed=settings.seed, place=place)
        loop.writer = samples.writer(job, model, place.device)
        return loop

    def _largest(self, learner: Learner, order: Order[Any], seed: int, place: Place) -> Any:
        """The batch that takes the most memory, as it is learned from."""
        largest = order.largest()
        if learner.task.prepare is None:
            return largest
        with place.autocast():
            return learner.prepared(place.moved(largest), seed=seed, step=0)

    def parameters(self, settings: Settings, vocabulary: Any) -> int:
        build = self.shape.build(settings, vocabulary)
        with torch.device("meta"):  # no memory is taken for them
            return sum(int(weight.numel()) for weight in build().parameters())

    def load(self, settings: Settings, tokenizer: Any, folder: RunFolder, device: torch.device) -> Any:
        tensors = folder.read_weights(tokenizer.hash)  # first: what resolved.toml says is believed only if they know it
        build = self.shape.build(settings, tokenizer)
        with torch.device("meta"):  # takes no memory, whatever the sizes are that a stranger wrote
            wanted = build().state_dict()
        if misfit := _misfit(wanted, tensors):
            raise ModelError(f"{folder.weights}: does not fit resolved.toml: {misfit}")
        model: nn.Module = build()
        model.load_state_dict(tensors)
        return model.to(device).eval()
