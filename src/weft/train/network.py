"""Training by gradients: from settings to a loop, from a run folder to a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from weft.data.batch import cropped
from weft.data.corpus import Corpus
from weft.data.grouped import ExampleOrder, Examples
from weft.data.order import Order
from weft.errors import ModelError
from weft.train import checkpoint, memory, samples, saving
from weft.train.device import pick_device, pick_place
from weft.train.learner import Learner
from weft.train.loop import Loop, Place
from weft.train.objective import Objective
from weft.train.optimizers import optimizers
from weft.train.warm import Made, start_from

AGAIN = "--fresh trains it again"
E = TypeVar("E", bound=Examples[Any])
Progress = Callable[[str, int, int], None]  # what is going on, how much of it is done, how much there is

if TYPE_CHECKING:
    from weft.runs.folder import RunFolder
    from weft.runs.job import Job
    from weft.runs.settings import Settings
    from weft.train.journal import Journal


class NetworkTask(Protocol[E]):
    """What is particular to the networks of one task. What most have in common is written here: networks inherit it."""

    def build(self, settings: Settings, vocabulary: Any) -> Callable[[], Any]:
        """What makes the model, freshly initialised from torch's default generator."""

    def encode(
        self,
        settings: Settings,
        vocabulary: Any,
        dataset: Any,
        columns: Sequence[Corpus],
        *,
        learned: bool,
        progress: Progress | None = None,
    ) -> E:
        """A data set, and its columns as tokens, as examples: as training learns from it, or as it is measured by."""

    def objective(
        self, settings: Settings, vocabulary: Any, train: E | None, valid: E | None, device: torch.device
    ) -> Objective:
        """What is learned from `train` and measured on `valid`; without `train` the plain loss, in which nothing is smoothed or
        balanced."""

    def compiles(self, settings: Settings) -> bool:
        """Whether compiling pays: batches of one shape, read by mixers that torch's compiler takes."""
        return False

    def notes(self, settings: Settings, train: E) -> Sequence[str]:
        """What is to be said of the training data before the first step."""
        return ()

    def check_lengths(self, settings: Settings, columns: Sequence[Corpus], longest: int | None) -> None:
        """Refuses, before the first token, texts that pass the last position that a network can read."""
        return None

    def order(self, settings: Settings, train: E) -> Order[Any]:
        """The order in which training reads its examples: those of like length together."""
        return ExampleOrder(train, batch_tokens=settings.train.batch_tokens, seed=settings.seed)


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
    settings, learned = job.settings, split == "train"

    def progress(name: str, done: int, total: int) -> None:
        job.watcher.working(f"{name} of {split}", done, total)

    dataset, columns = settings.datasets[split], job.columns(split)
    return shape.encode(settings, job.tokenizer, dataset, columns, learned=learned, progress=progress)


def read_training(shape: NetworkTask[E], job: Job) -> tuple[E, Order[Any]]:
    """The training data as examples, and the order in which they are read."""
    train = _encode(shape, job, "train")
    for note in shape.notes(job.settings, train):
        job.watcher.note(note)
    return train, shape.order(job.settings, train)


def make_objective(shape: NetworkTask[E], job: Job, train: E, longest: int | None) -> Objective:
    """What is learned, on data that fits a network that reads so many positions."""
    settings = job.settings
    for split in settings.datasets:
        shape.check_lengths(settings, job.columns(split), longest)
    device = pick_device(settings.train.device)
    valid = _encode(shape, job, "valid") if job.columns("valid") else None
    return shape.objective(settings, job.tokenizer, train, valid, device)


class Network:
    """How every model that is a torch module is trained and loaded."""

    def __init__(self, shape: NetworkTask[Any]) -> None:
        self.shape = shape

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
        saving.restore(loop, start)
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
        settings, place = job.settings, pick_place(job.settings)
        train, order = read_training(self.shape, job)
        build = self.shape.build(settings, job.tokenizer)
        memory.check_weights(build, settings.train, place.device)
        torch.manual_seed(settings.seed)
        model = build().to(place.device)
        if settings.train.init_from is not None and not checkpoint.names(job.folder.path):
            made = Made(settings, job.tokenizer)
            job.watcher.note(start_from(model, made, job.origin(), loose=settings.train.init_loose))
        learner = Learner(make_objective(self.shape, job, train, model.longest), model)
        memory.check_batch(learner, self._widest(learner, order, settings.seed, place), settings.train, place)
        auto = place.device.type == "cuda" and self.shape.compiles(settings)
        if settings.train.compile is True or (settings.train.compile == "auto" and auto):
            learner.compile()  # in place: saved names, and whoever explains, see the plain model
        steps = optimizers(model, model.matrices(), settings.train)
        loop = Loop(learner, steps, order, table=settings.train, seed=settings.seed, place=place)
        loop.writer = samples.writer(job, model, place.device)
        return loop

    def _widest(self, learner: Learner, order: Order[Any], seed: int, place: Place) -> memory.Widest:
        """The batch that takes the most memory, as it is learned from."""
        if learner.task.prepare is None:
            return order.largest
        with place.autocast():
            return partial(cropped, learner.prepared(place.moved(order.largest()), seed=seed, step=0))

    def parameters(self, settings: Settings, vocabulary: Any) -> int:
        build = self.shape.build(settings, vocabulary)
        with torch.device("meta"):  # no memory is taken for them
            return sum(int(weight.numel()) for weight in build().parameters())

    def load(self, settings: Settings, tokenizer: Any, folder: RunFolder, device: str) -> Any:
        tensors = folder.read_weights(tokenizer.hash)  # first: what resolved.toml says is believed only if they know it
        build = self.shape.build(settings, tokenizer)
        with torch.device("meta"):  # takes no memory, whatever the sizes are that a stranger wrote
            wanted = build().state_dict()
        if misfit := _misfit(wanted, tensors):
            raise ModelError(f"{folder.weights}: does not fit resolved.toml: {misfit}")
        model: nn.Module = build()
        model.load_state_dict(tensors)
        return model.to(pick_device(device)).eval()
