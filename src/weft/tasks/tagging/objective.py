"""Tagging: training loss, validation and batched inference.

Shapes: N sentences, B rows, W words, K tags.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from weft.data.batching import map_tensors
from weft.data.bucketing import by_length
from weft.data.corpus import corpus_from_lines
from weft.data.tag_batching import Sentences, TagBatch
from weft.metrics.metric import values
from weft.metrics.tagging import TAGS, Tags, scheme_of, tag_items, types_of
from weft.models.tagger import TaggerInput
from weft.parallel.group import ALONE, Group
from weft.parallel.sharing import share, sum_arrays
from weft.text.label_tokenizer import LabelTokenizer
from weft.text.labels import LabelVocabulary
from weft.training.distillation import Outputs
from weft.training.objective import Loss, ProgressCallback

BATCH_TOKENS = 8192  # in inference, with padding


def predict_tags(
    model: Any, data: Sentences, device: torch.device, progress: ProgressCallback | None = None, group: Group = ALONE
) -> list[np.ndarray]:
    """Tag IDs of the best tag sequence of each sentence. The processes of a group share the work."""
    tags, lengths, done = np.zeros(int(data.edges[-1]), np.int64), np.diff(data.edges), 0
    for members, batch in share(by_length(data, batch_tokens=BATCH_TOKENS), group):
        inputs = map_tensors(TaggerInput(*batch[:-1]), lambda part: part.to(device))
        for index, row in zip(members.tolist(), model.tag(inputs).cpu().numpy(), strict=True):
            tags[data.edges[index] : data.edges[index + 1]] = row[: lengths[index]]
        done += len(members) * group.size
        if progress is not None:
            progress(min(done, len(lengths)), len(lengths))
    return np.split(sum_arrays(tags, group), data.edges[1:-1])


class TaggingObjective:
    """Negative log-likelihood of the tags of each sentence."""

    unit = "word"
    inner_steps, prepare, augment = 0, None, None
    group = ALONE  # the processes that share a validation

    def __init__(
        self,
        *,
        valid: Sentences | None,
        gold: Tags,
        is_known: Sequence[np.ndarray],
        labels: LabelVocabulary,
        device: torch.device,
    ) -> None:
        self.valid, self.gold = valid, gold
        self.is_known = is_known  # for each word of `valid`, whether it is in the training data
        self.labels, self.device = labels, device
        self.types = types_of(labels.names) if scheme_of(labels.names) else ()
        default = "span_f1" if self.types else "token_accuracy"
        self.monitors = sorted(TAGS, key=lambda metric: metric.name != default)  # the default monitor first

    def loss(self, model: Any, batch: TagBatch, carry: None) -> Loss:
        losses = model.loss(TaggerInput(*batch[:-1]), batch.tags)
        return Loss(losses.sum(), batch.word_mask.sum(), None, batch.token_mask.sum())

    def outputs(self, model: Any, batch: TagBatch, carry: None) -> Outputs:
        y = model(TaggerInput(*batch[:-1]))
        losses, log_probs = model.head.loss(y, batch.tags, batch.word_mask), model.head.log_marginals(y, batch.word_mask)
        return Outputs(log_probs, Loss(losses.sum(), batch.word_mask.sum(), None, batch.token_mask.sum()), batch.word_mask)

    def validate(self, model: Any, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        """Scores on the validation data, the default monitor first."""
        if self.valid is None:
            return None
        names = self.labels.names
        rows = predict_tags(model, self.valid, self.device, progress, self.group)
        predicted = [[names[tag] for tag in row.tolist()] for row in rows]
        items = tag_items(predicted, self.gold, np.arange(len(predicted)), known=self.is_known, types=self.types)
        return values(items, self.monitors)


class WordTagger:
    """A tagger together with its tokenizers."""

    def __init__(self, model: Any, vocabulary: LabelTokenizer, *, device: torch.device, group: Group = ALONE) -> None:
        self.model, self.vocabulary, self.device, self.group = model, vocabulary, device, group

    @property
    def max_length(self) -> int | None:
        """Maximum number of tokens of a sentence, including <s> and </s>; None if there is no limit."""
        max_length: int | None = self.model.max_positions
        return max_length

    def lengths(self, sentences: Sequence[Sequence[str]]) -> np.ndarray:
        """int64 (N,): number of tokens of each sentence, including <s> and </s>."""
        sizes = self.vocabulary.tokenizer.encode_concatenated([word for sentence in sentences for word in sentence])[1]
        edges = np.cumsum([0, *(len(sentence) for sentence in sentences)])
        counts: np.ndarray = 2 + np.diff(np.append(0, np.cumsum(sizes))[edges])
        return counts

    def sentences(self, sentences: Sequence[Sequence[str]]) -> Sentences:
        """Encode sentences as model input. All tags are 0, because they are unknown."""
        words = [word for sentence in sentences for word in sentence]
        edges = np.cumsum([0, *(len(sentence) for sentence in sentences)])
        char_tokenizer = self.vocabulary.char_tokenizer
        chars = None if char_tokenizer is None else corpus_from_lines(char_tokenizer, words)
        return Sentences(corpus_from_lines(self.vocabulary.tokenizer, words), chars, edges, np.zeros(len(words), np.int64))

    @torch.inference_mode()
    def tag(self, sentences: Sequence[Sequence[str]], progress: ProgressCallback | None = None) -> list[list[str]]:
        """The tags of each sentence."""
        if not any(sentences):
            return [[] for _ in sentences]
        data, names = self.sentences(sentences), self.vocabulary.labels.names
        tags = predict_tags(self.model, data, self.device, progress, self.group)
        return [[names[tag] for tag in row.tolist()] for row in tags]
