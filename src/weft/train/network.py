"""Training by gradients: from settings to a loop, from a run folder to a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from weft.data.order import Lines, Order, Streams, Windows
from weft.errors import ConfigError, ModelError, UsageError
from weft.models.language import LanguageModel, language_model
from weft.nn.mixers import COMPILED
from weft.tasks.surprisal import Context, check_positions
from weft.train import checkpoint, memory
from weft.train.learner import Learner
from weft.train.loop import Loop, Place
from weft.train.optimizers import optimizers

if TYPE_CHECKING:
    from weft.text.tokenizers import Tokenizer
    from weft.train.folder import RunFolder
    from weft.train.job import Job
    from weft.train.settings import Settings


def pick_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("train.device: 'cuda' was asked for, but torch sees no GPU; use 'auto' or 'cpu'")
    return torch.device(name)


def pick_place(settings: Settings) -> Place:
    """bf16 where a GPU has it, float32 elsewhere, unless the run file says so."""
    device, wanted = pick_device(settings.train.device), settings.train.precision
    if wanted == "auto":
        wanted = "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"
    return Place(device, torch.bfloat16 if wanted == "bfloat16" else torch.float32)


def default_context(settings: Settings) -> Context:
    """Lines by themselves; running text by a moving window where attention limits the view or positions were learned within
    windows, by a carried state elsewhere."""
    window = settings.data.window
    if settings.data.read == "lines":
        return Context("reset", window)
    attends = getattr(settings.model, "mixer", None) == "attention"
    placed = settings.data.read == "windows" and getattr(settings.model, "positions", "none") != "none"
    return Context("stride", window, window) if attends or placed else Context("carry", window)


class Network:
    """Every model that is a torch module."""

    def check(self, settings: Settings) -> None:
        if settings.train.patience != "none" and settings.data.valid is None:
            raise ConfigError("train.patience: counts validations, but data.valid is not given; give it, or drop patience")
        if settings.data.read == "stream" and settings.model.positions == "learned":
            raise ConfigError("model.positions: 'learned' has a last position, but data.read='stream' runs on; use 'rotary'")

    def build(self, settings: Settings, tokenizer: Tokenizer) -> Callable[[], LanguageModel]:
        return lambda: language_model(
            settings.model, words=tokenizer.size, window=settings.data.window, vocabulary=tokenizer.hash
        )

    def order(self, job: Job) -> Order:
        corpus, data, settings = job.corpora["train"], job.settings.data, job.settings
        rows = max(1, settings.train.batch_tokens // data.window)
        match data.read:
            case "lines":
                return Lines(corpus, batch_tokens=settings.train.batch_tokens, seed=settings.seed)
            case "stream":
                return Streams(corpus, window=data.window, rows=rows)
        return Windows(corpus, window=data.window, stride=data.stride or data.window, rows=rows, seed=settings.seed)

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
        settings, place, order = job.settings, pick_place(job.settings), self.order(job)
        build = self.build(settings, job.tokenizer)
        memory.check_weights(build, settings.train, place.device)
        torch.manual_seed(settings.seed)
        model = build().to(place.device)
        task = job.task(carries=settings.data.read == "stream")
        for corpus in job.corpora.values():
            check_positions(model.longest, corpus, task.context)
        learner = Learner(task, model)
        memory.check_batch(learner, order.largest(), settings.train, place)
        auto = place.device.type == "cuda" and settings.model.mixer in COMPILED
        if settings.train.compile is True or (settings.train.compile == "auto" and auto):
            learner.compile()  # in place: saved names, and whoever explains, see the plain model
        steps = optimizers(model, model.matrices(), settings.train)
        return Loop(learner, steps, order, table=settings.train, seed=settings.seed, place=place)

    def load(self, settings: Settings, tokenizer: Tokenizer, folder: RunFolder, device: torch.device) -> LanguageModel:
        tensors = folder.read_weights(tokenizer.hash)  # first: what resolved.toml says is believed only if they know it
        model = self.build(settings, tokenizer)()
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise ModelError(f"{folder.weights}: does not fit resolved.toml: {reason}") from None
        return model.to(device).eval()
