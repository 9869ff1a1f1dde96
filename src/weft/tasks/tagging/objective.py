"""The task of taggers: say what each word of a sentence is.

Shapes: N sentences, B rows, W words, K tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from weft.data.batching import map_tensors
from weft.data.bucketing import by_length
from weft.data.corpus import lines_of
from weft.data.tag_batching import Sentences, TagBatch
from weft.metrics.metric import values
from weft.metrics.tagging import TAGS, Tags, scheme_of, tag_items, types_of
from weft.models.tagger import TaggerInput
from weft.text.label_tokenizer import LabelTokenizer
from weft.text.labels import LabelVocabulary
from weft.training.objective import Loss, ProgressCallback

BATCH = 8192  # tokens read at once


def tags_of(model: Any, data: Sentences, device: torch.device, progress: ProgressCallback | None = None) -> list[np.ndarray]:
    """The best tags of each sentence, by their numbers."""
    tags: list[np.ndarray] = [np.zeros(0, np.int64)] * (len(data.edges) - 1)
    sizes, done = np.diff(data.edges), 0
    for members, batch in by_length(data, batch_tokens=BATCH):
        words = map_tensors(TaggerInput(*batch[:-1]), lambda part: part.to(device))
        for index, row in zip(members.tolist(), model.tag(words).cpu().numpy(), strict=True):
            tags[index] = row[: sizes[index]]
        done += len(members)
        if progress is not None:
            progress(done, len(tags))
    return tags


class TaggingTask:
    """Nats of each sentence's tags."""

    unit = "word"
    inner_steps, prepare = 0, None

    def __init__(
        self, *, valid: Sentences | None, gold: Tags, known: Sequence[np.ndarray], labels: LabelVocabulary, device: torch.device
    ) -> None:
        self.valid, self.gold, self.known = valid, gold, known  # known: of each word, whether training had it
        self.labels, self.device = labels, device
        self.types = types_of(labels.names) if scheme_of(labels.names) else ()
        decides = "span_f1" if self.types else "token_accuracy"
        self.monitors = sorted(TAGS, key=lambda metric: metric.name != decides)

    def loss(self, model: Any, batch: TagBatch, carry: None) -> Loss:
        nats = model.loss(TaggerInput(*batch[:-1]), batch.tags)
        return Loss(nats.sum(), batch.word_mask.sum(), None, batch.token_mask.sum())

    def validate(self, model: Any, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        """Scores of the validation sentences: first that of spans, where tags mark them."""
        if self.valid is None:
            return None
        names = self.labels.names
        predicted = [[names[tag] for tag in row.tolist()] for row in tags_of(model, self.valid, self.device, progress)]
        scores = tag_items(predicted, self.gold, np.arange(len(predicted)), known=self.known, types=self.types)
        return values(scores, self.monitors)


class WordTagger:
    """A tagger that reads words."""

    def __init__(self, model: Any, read: LabelTokenizer, *, device: torch.device) -> None:
        self.model, self.read, self.device = model, read, device

    @property
    def max_length(self) -> int | None:
        """How many tokens a sentence may have, <s> and </s> counted; None where it may have any number."""
        max_length: int | None = self.model.max_positions
        return max_length

    def lengths(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """int64 (N,): the tokens of each sentence, <s> and </s> counted."""
        sizes = self.read.tokenizer.encode_concatenated([word for sentence in sentences for word in sentence])[1]
        edges = np.cumsum([0, *(len(sentence) for sentence in sentences)])
        counts: np.ndarray = 2 + np.diff(np.append(0, np.cumsum(sizes))[edges])
        return counts

    def sentences(self, given: Sequence[Sequence[str]]) -> Sentences:
        """Sentences as model input; their unknown tags are 0."""
        words = [word for sentence in given for word in sentence]
        edges = np.cumsum([0, *(len(sentence) for sentence in given)])
        letters = None if self.read.char_tokenizer is None else lines_of(self.read.char_tokenizer, words)
        return Sentences(lines_of(self.read.tokenizer, words), letters, edges, np.zeros(len(words), np.int64))

    @torch.inference_mode()
    def tag(self, sentences: Sequence[Sequence[str]], progress: ProgressCallback | None = None) -> list[list[str]]:
        """A tag for each word of each sentence."""
        if not any(sentences):
            return [[] for _ in sentences]
        data, names = self.sentences(sentences), self.read.labels.names
        return [[names[tag] for tag in row.tolist()] for row in tags_of(self.model, data, self.device, progress)]
