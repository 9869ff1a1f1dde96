"""Training taggers: what the training of networks must know of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from weft.data.dataset import Dataset
from weft.data.grouped import ExampleOrder
from weft.data.tag_order import Sentences, TagBatch
from weft.errors import ConfigError
from weft.metrics.metric import metrics_of
from weft.metrics.spans import allowed, scheme_of
from weft.models.tagger import Tagger, tagger
from weft.tasks.tagging.data import learned_tags, sentence_lengths, tags_of, words
from weft.tasks.tagging.files import Sentence
from weft.tasks.tagging.objective import TaggingTask
from weft.text.labels import Labels
from weft.train.device import pick_device

if TYPE_CHECKING:
    from weft.runs.job import Job
    from weft.runs.settings import Settings
    from weft.text.labelled_tokens import LabelledTokens


def sentences(job: Job, split: str, source: Dataset[Sentence]) -> Sentences:
    """A split as tokens and numbers of tags."""
    labels = job.tokenizer.labels
    given = learned_tags(source)[0] if split == "train" else tags_of(source)
    numbers = [labels.index(tag) for tag in given]
    tags = np.array([-1 if number is None else number for number in numbers], np.int64)
    edges = np.concatenate([[0], np.cumsum(sentence_lengths(source))]).astype(np.int64)
    return Sentences(job.corpora[f"{split}.words"], job.corpora.get(f"{split}.letters"), edges, tags)


def moves(labels: Labels) -> torch.Tensor | None:
    """Which tag may follow which; None where any may."""
    scheme = scheme_of(labels.names)
    return None if scheme is None else torch.from_numpy(allowed(labels.names, scheme))


class Tagging:
    """Networks that say what each word of a sentence is."""

    def check(self, settings: Settings) -> None:
        if settings.train.label_smoothing:
            raise ConfigError(
                f"train.label_smoothing={settings.train.label_smoothing:g}: tags are learned as they are given; drop it"
            )

    def alike(self, settings: Settings) -> bool:
        return False

    def build(self, settings: Settings, tokenizer: LabelledTokens) -> Callable[[], Tagger]:
        return lambda: tagger(
            settings.model,
            words=tokenizer.tokenizer.size + 1,
            letters=1 if tokenizer.letters is None else tokenizer.letters.size + 1,
            tags=tokenizer.labels.size,
            longest=settings.data.longest,
            allowed=moves(tokenizer.labels),
        )

    def order(self, job: Job) -> ExampleOrder[TagBatch]:
        train, source = job.settings.train, job.settings.datasets["train"]
        return ExampleOrder(sentences(job, "train", source), batch_tokens=train.batch_tokens, seed=job.settings.seed)

    def task(self, job: Job, model: nn.Module) -> TaggingTask:
        valid, right, known = None, list[tuple[str, ...]](), list[np.ndarray]()
        if "valid.words" in job.corpora:
            sources = job.settings.datasets
            seen, valid = set(words(sources["train"]).texts()), sentences(job, "valid", sources["valid"])
            for sentence in sources["valid"].records():
                right.append(sentence.tags)
                known.append(np.array([word in seen for word in sentence.words]))
            self._check_monitor(job, known)
        return TaggingTask(
            valid=valid, right=right, known=known, labels=job.tokenizer.labels, device=pick_device(job.settings.train.device)
        )

    def _check_monitor(self, job: Job, known: list[np.ndarray]) -> None:
        """Refuse to be decided by a score that the data does not have."""
        monitor = job.settings.train.monitor
        if monitor is None:
            return
        needs = metrics_of(job.settings.spec.validation, [monitor])[monitor].needs
        if needs == "spans_both" and scheme_of(job.tokenizer.labels.names) is None:
            raise ConfigError(f"train.monitor: {monitor!r} is about spans, but the tags mark none; use 'token_accuracy'")
        if needs == "oov" and all(words.all() for words in known):
            raise ConfigError(f"train.monitor: {monitor!r} is about new words, but data.valid has none; use 'token_accuracy'")
