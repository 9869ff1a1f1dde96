"""Neural taggers: model, encoded data and training objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from weft.data.corpus import Corpus
from weft.data.dataset import Dataset
from weft.data.tag_batching import Sentences
from weft.errors import ConfigError
from weft.metrics.metric import metrics_of
from weft.metrics.tagging import allowed, scheme_of
from weft.models.tagger import Tagger, tagger
from weft.tasks.tagging.data import sentence_lengths, tags_of, training_tags, words
from weft.tasks.tagging.files import Sentence
from weft.tasks.tagging.objective import TaggingObjective
from weft.text.labels import LabelVocabulary
from weft.training.distillation import check_teacher_length
from weft.training.neural import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.runs.run import AnyRun
    from weft.text.label_tokenizer import LabelTokenizer


@dataclass(frozen=True)
class TaggedExamples(Sentences):
    """Encoded sentences, and the data set that they come from."""

    source: Dataset[Sentence]


def allowed_transitions(labels: LabelVocabulary) -> torch.Tensor | None:
    """Mask of the tag transitions that the tagging scheme allows, (K + 1, K + 1); None if tags are not span tags."""
    scheme = scheme_of(labels.names)
    return None if scheme is None else torch.from_numpy(allowed(labels.names, scheme))


class TaggingBuilder(NetworkTask[TaggedExamples]):
    """Builds the network, data and objective of tagging."""

    def build(self, config: RunConfig, vocabulary: LabelTokenizer) -> Callable[[], Tagger]:
        return lambda: tagger(
            config.model,
            vocab_size=vocabulary.tokenizer.vocab_size + 1,
            char_vocab_size=1 if vocabulary.char_tokenizer is None else vocabulary.char_tokenizer.vocab_size + 1,
            num_tags=vocabulary.labels.size,
            max_positions=config.data.max_length,
            allowed_transitions=allowed_transitions(vocabulary.labels),
        )

    def encode(
        self,
        config: RunConfig,
        vocabulary: LabelTokenizer,
        dataset: Dataset[Sentence],
        columns: Sequence[Corpus],
        *,
        learned: bool,
        progress: Progress | None = None,
    ) -> TaggedExamples:
        """Encode sentences. Invalid span tags are repaired for training, but not for evaluation."""
        chars = columns[1] if len(columns) > 1 else None
        tags = training_tags(dataset)[0] if learned else tags_of(dataset)
        tag_ids = [-1 if (tag_id := vocabulary.labels.index(tag)) is None else tag_id for tag in tags]
        edges = np.concatenate([[0], np.cumsum(sentence_lengths(dataset))]).astype(np.int64)
        return TaggedExamples(columns[0], chars, edges, np.array(tag_ids, np.int64), dataset)

    def objective(
        self,
        config: RunConfig,
        vocabulary: LabelTokenizer,
        train: TaggedExamples | None,
        valid: TaggedExamples | None,
        device: torch.device,
    ) -> TaggingObjective:
        gold, is_known = list[tuple[str, ...]](), list[np.ndarray]()
        if valid is not None:
            training_words = set() if train is None else set(words(train.source).texts())
            for sentence in valid.source.records():
                gold.append(sentence.tags)
                is_known.append(np.array([word in training_words for word in sentence.words]))
            self._check_monitor(config, vocabulary.labels, is_known)
        return TaggingObjective(valid=valid, gold=gold, is_known=is_known, labels=vocabulary.labels, device=device)

    def _check_monitor(self, config: RunConfig, labels: LabelVocabulary, is_known: list[np.ndarray]) -> None:
        """Raise if the data cannot provide the monitored metric."""
        monitor = config.train.monitor
        if monitor is None:
            return
        statistic = metrics_of(config.spec.validation_suites, [monitor])[monitor].requires
        if statistic == "spans_correct" and scheme_of(labels.names) is None:
            raise ConfigError("train.monitor", f"{monitor!r} needs tags that mark spans", "use 'token_accuracy'")
        if statistic == "oov" and all(row.all() for row in is_known):
            raise ConfigError(
                "train.monitor", f"{monitor!r} needs out-of-vocabulary words in data.valid", "use 'token_accuracy'"
            )

    def check_teacher(self, config: RunConfig, vocabulary: LabelTokenizer, run: AnyRun) -> None:
        super().check_teacher(config, vocabulary, run)
        check_teacher_length(config, run, "max_length")
