"""Training by gradients: from settings to a loop, from a run folder to a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from weft.config import no_such
from weft.data.order import Order
from weft.errors import ConfigError, ModelError
from weft.tasks.task import Task
from weft.train import checkpoint, memory
from weft.train.device import pick_place
from weft.train.learner import Learner
from weft.train.loop import Loop
from weft.train.optimizers import optimizers
from weft.train.warm import Made, start_from

if TYPE_CHECKING:
    from weft.train.folder import RunFolder
    from weft.train.job import Job
    from weft.train.settings import Settings


class Shape(Protocol):
    """What is particular to the networks of one task."""

    @property
    def scores(self) -> tuple[str, ...]:
        """What validation measures; the first decides, unless train.monitor names another."""

    def check(self, settings: Settings) -> None:
        """Refuses tables that are right each for itself but not together."""

    def alike(self, settings: Settings) -> bool:
        """Whether compiling pays: batches of one shape, read by mixers that torch's compiler takes."""

    def build(self, settings: Settings, tokenizer: Any) -> Callable[[], Any]:
        """What makes the model, freshly initialised from torch's default generator."""

    def order(self, job: Job) -> Order[Any]: ...

    def task(self, job: Job, model: nn.Module) -> Task:
        """The task on the run's data, which must fit the model."""

    def ready(self, model: Any, settings: Settings, tokenizer: Any, device: torch.device) -> Any:
        """A trained model as those who use it want it."""


class Network:
    """Every model that is a torch module."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def check(self, settings: Settings) -> None:
        monitor = settings.train.monitor
        if monitor is not None and monitor not in self.shape.scores:
            raise ConfigError(f"train.monitor: {no_such('score', monitor, self.shape.scores)}")
        for option in ("patience", "monitor"):
            if getattr(settings.train, option) not in (None, "none") and settings.data.valid is None:
                raise ConfigError(
                    f"train.{option}: is about validations, but data.valid is not given; give it, or drop {option}"
                )
        self.shape.check(settings)

    @torch.inference_mode(False)  # gradients are kept, whatever the caller has switched off
    def train(self, job: Job) -> None:
        """From the newest checkpoint, or from the start."""
        loop = self.loop(job)
        journal = job.journal()
        try:
            folder, faults = checkpoint.newest(job.folder.path)
            for fault in faults:
                job.watcher.note(fault if folder is None else f"{fault}; the checkpoint before it is used")
            if folder is None and faults:
                job.watcher.note("no checkpoint is whole: training starts again from the first step")
            if folder is not None:
                checkpoint.restore(loop, folder)
                self._check_best(loop, job.folder)
                job.watcher.note(f"resuming at step {loop.cursor.step}")
            journal.metrics.cut(loop.cursor.metrics)
            loop.run(journal, job.watcher)
        finally:
            journal.close()

    def _check_best(self, loop: Loop, folder: RunFolder) -> None:
        """Refuse to go on where the weights that the run is known by are gone: it may never find as good ones again."""
        if not folder.weights.is_file() and (loop.cursor.done or loop.cursor.best is not None):
            raise ModelError(f"{folder.weights}: is missing, and was written at an earlier step; --fresh trains it again")

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
        memory.check_batch(learner, order.largest(), settings.train, place)
        auto = place.device.type == "cuda" and self.shape.alike(settings)
        if settings.train.compile is True or (settings.train.compile == "auto" and auto):
            learner.compile()  # in place: saved names, and whoever explains, see the plain model
        steps = optimizers(model, model.matrices(), settings.train)
        return Loop(learner, steps, order, table=settings.train, seed=settings.seed, place=place)

    def load(self, settings: Settings, tokenizer: Any, folder: RunFolder, device: torch.device) -> Any:
        tensors = folder.read_weights(tokenizer.hash)  # first: what resolved.toml says is believed only if they know it
        model: nn.Module = self.shape.build(settings, tokenizer)()
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise ModelError(f"{folder.weights}: does not fit resolved.toml: {reason}") from None
        return self.shape.ready(model.to(device).eval(), settings, tokenizer, device)
