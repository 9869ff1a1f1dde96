"""Training by counting: one pass over the corpus, no gradients."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from weft.errors import ConfigError
from weft.log import Log
from weft.metrics.language import LANGUAGE_VALIDATION
from weft.models.ngram import FROM_FILE, NgramModel, estimate
from weft.models.smoothing import SMOOTHINGS
from weft.tasks.lm.contexts import default_context
from weft.tasks.lm.scoring import surprisal
from weft.train import samples

if TYPE_CHECKING:
    from weft.runs.folder import RunFolder
    from weft.runs.job import Job
    from weft.runs.settings import Settings
    from weft.text.tokenizers import Tokenizer


class Counting:
    """n-gram models."""

    by_steps, shape = False, None

    def parameters(self, settings: Settings, vocabulary: Tokenizer) -> None:
        """As many as there are n-grams."""

    def check(self, settings: Settings) -> None:
        """Any data and any table go together, but there is nothing to start from."""
        if settings.train.init_from is not None:
            raise ConfigError("train.init_from: an n-gram model is counted anew and starts from no weights; drop it")

    def train(self, job: Job) -> None:
        import torch

        from weft.train import memory

        corpus, settings = job.corpora["train"], job.settings
        if settings.model.smoothing == FROM_FILE:
            names = ", ".join(SMOOTHINGS)
            raise ConfigError(f"model.smoothing: {FROM_FILE!r} is an imported model; to count one, choose another: {names}")
        memory.check_counts(corpus, settings.model.order, words=job.tokenizer.size)
        job.watcher.working("counting n-grams", 0, 1)
        began = time.perf_counter()
        model = estimate(corpus.tokens, corpus.starts, settings.model, size=job.tokenizer.size, vocabulary=job.tokenizer.hash)
        for note in model.notes:
            job.watcher.note(note)
        seconds = time.perf_counter() - began
        scores = self._validated(model, job) or {}
        with Log(job.folder.path / "metrics.jsonl") as metrics, Log(job.folder.path / "timings.jsonl") as timings:
            metrics.restore()
            record = {"step": 1, "tokens": len(corpus.tokens), **{f"valid_{name}": value for name, value in scores.items()}}
            metrics.write(record)
            timings.write({"step": 1, "seconds": seconds})
        if (write := samples.writer(job, model, torch.device("cpu"))) is not None:
            with Log(job.folder.path / samples.FILE) as written:
                written.keep(0)
                for text in write(model):
                    written.write({"step": 1, **text})
        job.folder.write_weights(model.arrays(), job.tokenizer.hash, 1)
        job.watcher.counted(model.parameters, scores)

    def _validated(self, model: NgramModel, job: Job) -> dict[str, float] | None:
        valid, watch = job.columns("valid"), partial(job.watcher.working, "validating")
        if not valid:
            return None
        nats = surprisal(model, valid[0], default_context(job.settings), device=None, watch=watch)
        return {LANGUAGE_VALIDATION[0].name: float(nats.mean(dtype=np.float64))}

    def load(self, settings: Settings, tokenizer: Tokenizer, folder: RunFolder, device: str) -> NgramModel:
        return NgramModel.from_arrays(folder.read_arrays(tokenizer.hash, logs=True), vocabulary=tokenizer.hash)
