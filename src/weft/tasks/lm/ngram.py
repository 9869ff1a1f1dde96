"""Training by counting: one pass over the corpus, no gradients."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from weft.errors import ConfigError
from weft.log import Log
from weft.metrics.lm import LANGUAGE_VALIDATION
from weft.models.ngram import FROM_FILE, NgramModel, fit
from weft.models.smoothing import SMOOTHINGS
from weft.tasks.lm.contexts import default_context
from weft.tasks.lm.scoring import surprisal
from weft.training import sample_outputs as samples

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.runs.job import Job
    from weft.runs.run_dir import RunDir
    from weft.text.tokenizers import Tokenizer


class NgramTrainer:
    """n-gram models."""

    by_steps, shape = False, None

    def num_parameters(self, config: RunConfig, vocabulary: Tokenizer) -> None:
        """As many as there are n-grams."""

    def check(self, config: RunConfig) -> None:
        """Any data and any table go together, but there is nothing to start from."""
        if config.train.init_from is not None:
            raise ConfigError("train.init_from", "an n-gram model is counted anew and starts from no weights", "drop it")

    def train(self, job: Job) -> None:
        import torch

        from weft.training import memory

        corpus, config = job.corpora["train"], job.config
        if config.model.smoothing == FROM_FILE:
            names = ", ".join(SMOOTHINGS)
            raise ConfigError(
                "model.smoothing", f"{FROM_FILE!r} is an imported model", f"to count one, choose another: {names}"
            )
        memory.check_counts(corpus, config.model.order, words=job.tokenizer.vocab_size)
        job.callback.on_progress("counting n-grams", 0, 1)
        began = time.perf_counter()
        model = fit(corpus.tokens, corpus.starts, config.model, size=job.tokenizer.vocab_size, vocabulary=job.tokenizer.hash)
        for note in model.notes:
            job.callback.on_note(note)
        seconds = time.perf_counter() - began
        scores = self._validated(model, job) or {}
        with Log(job.directory.path / "metrics.jsonl") as metrics, Log(job.directory.path / "timings.jsonl") as timings:
            metrics.restore()
            record = {"step": 1, "tokens": len(corpus.tokens), **{f"valid_{name}": value for name, value in scores.items()}}
            metrics.write(record)
            timings.write({"step": 1, "seconds": seconds})
        if (write := samples.sample_writer(job, model, torch.device("cpu"))) is not None:
            with Log(job.directory.path / samples.FILE) as written:
                written.keep(0)
                for text in write(model):
                    written.write({"step": 1, **text})
        job.directory.write_weights(model.arrays(), job.tokenizer.hash, 1)
        job.callback.on_fit(model.num_parameters, scores)

    def _validated(self, model: NgramModel, job: Job) -> dict[str, float] | None:
        valid, progress = job.columns("valid"), partial(job.callback.on_progress, "validating")
        if not valid:
            return None
        nats = surprisal(model, valid[0], default_context(job.config), device=None, progress=progress)
        return {LANGUAGE_VALIDATION[0].name: float(nats.mean(dtype=np.float64))}

    def load(self, config: RunConfig, tokenizer: Tokenizer, directory: RunDir, device: str) -> NgramModel:
        return NgramModel.from_arrays(directory.read_arrays(tokenizer.hash, logs=True), vocabulary=tokenizer.hash)
