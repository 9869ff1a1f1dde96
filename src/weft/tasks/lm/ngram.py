"""Fits n-gram models in one pass over the corpus, without gradients."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.data.corpus import Corpus
from weft.errors import ConfigError, ResourceError
from weft.log import Log
from weft.metrics.lm import LANGUAGE_VALIDATION
from weft.models.ngram import FROM_FILE, NgramModel, estimate_memory, fit
from weft.models.smoothing import SMOOTHINGS
from weft.resources import format_bytes, free_memory
from weft.tasks.lm.contexts import default_context
from weft.tasks.lm.scoring import surprisal
from weft.training import sample_outputs

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.runs.job import Job
    from weft.runs.run_dir import RunDir
    from weft.text.tokenizers import Tokenizer


def _check_memory(corpus: Corpus, order: int, *, vocab_size: int) -> None:
    """Refuse a text whose n-grams do not fit into memory while they are counted and smoothed."""
    available = free_memory()
    tokens, starts = corpus.in_memory()
    needed = estimate_memory(tokens, starts, order=order, vocab_size=vocab_size, available_bytes=available)
    if needed > available:
        raise ResourceError(
            "model.order",
            f"counting {order}-grams of {len(corpus.tokens):,} tokens needs about {format_bytes(needed)},"
            f" {format_bytes(available)} are free",
            "lower model.order or use less text",
        )


def _write_samples(job: Job, model: NgramModel) -> None:
    """Write samples.jsonl. Sampling uses torch."""
    import torch

    write = sample_outputs.sample_writer(job, model, torch.device("cpu"))
    with Log(job.directory.path / sample_outputs.FILE) as log:
        log.truncate(0)
        for record in write(model) if write is not None else ():
            log.write({"step": 1, **record})


class NgramTrainer:
    """The estimator of n-gram models."""

    by_steps, network_task = False, None

    def uses_torch(self, config: RunConfig) -> bool:
        return False

    def num_parameters(self, config: RunConfig, vocabulary: Tokenizer) -> None:
        """None: the number of n-grams depends on the data."""

    def check(self, config: RunConfig) -> None:
        """Check the options: an n-gram model has no weights to initialize."""
        if config.train.init_from is not None:
            raise ConfigError("train.init_from", "not used with n-gram models", "remove it")
        if config.train.distill_from is not None:
            raise ConfigError("train.distill_from", "n-gram models cannot learn from teachers", "use a network")

    def train(self, job: Job) -> None:
        corpus, config = job.columns("train")[0], job.config
        if config.model.smoothing == FROM_FILE:
            problem = f"{FROM_FILE!r} is only for imported models"
            raise ConfigError("model.smoothing", problem, f"choose from {', '.join(SMOOTHINGS)}")
        tokenizer = job.tokenizer
        _check_memory(corpus, config.model.order, vocab_size=tokenizer.vocab_size)
        job.callback.on_progress("counting n-grams", 0, 1)
        start = time.perf_counter()
        tokens, starts = corpus.in_memory()
        model = fit(tokens, starts, config.model, vocab_size=tokenizer.vocab_size, vocabulary=tokenizer.hash)
        for note in model.notes:
            job.callback.on_note(note)
        seconds = time.perf_counter() - start
        scores = self._validate(model, job) or {}
        with Log(job.directory.path / "metrics.jsonl") as metrics, Log(job.directory.path / "timings.jsonl") as timings:
            metrics.restore()
            record = {"step": 1, "tokens": len(corpus.tokens), **{f"valid_{name}": value for name, value in scores.items()}}
            metrics.write(record)
            timings.write({"step": 1, "seconds": seconds})
        if config.train.num_samples:
            _write_samples(job, model)
        job.directory.write_weights(model.arrays(), tokenizer.hash, 1)
        job.callback.on_fit(model.num_parameters, scores)

    def _validate(self, model: NgramModel, job: Job) -> dict[str, float] | None:
        valid, progress = job.columns("valid"), partial(job.callback.on_progress, "validating")
        if not valid:
            return None
        nll = surprisal(model, valid[0], default_context(job.config), device=None, progress=progress)
        return {LANGUAGE_VALIDATION[0].name: float(nll.mean(dtype=np.float64))}

    def load(self, config: RunConfig, vocabulary: Tokenizer, directory: RunDir, device: str) -> NgramModel:
        return NgramModel.from_arrays(directory.read_arrays(vocabulary.hash, logs=True), vocabulary=vocabulary.hash)

    def chosen_options(self, model: NgramModel) -> dict[str, Any]:
        return {}
