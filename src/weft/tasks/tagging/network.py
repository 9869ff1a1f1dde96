"""Training taggers: what the training of networks must know of them."""

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
from weft.tasks.tagging.data import learned_tags, sentence_lengths, tags_of, words
from weft.tasks.tagging.files import Sentence
from weft.tasks.tagging.objective import TaggingTask
from weft.text.labels import LabelVocabulary
from weft.training.neural import NetworkTask, Progress

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.text.label_tokenizer import LabelTokenizer


@dataclass(frozen=True)
class TaggedExamples(Sentences):
    """Sentences, and where their words and tags are written."""

    source: Dataset[Sentence]


def moves(labels: LabelVocabulary) -> torch.Tensor | None:
    """Which tag may follow which; None where any may."""
    scheme = scheme_of(labels.names)
    return None if scheme is None else torch.from_numpy(allowed(labels.names, scheme))


class TaggingBuilder(NetworkTask[TaggedExamples]):
    """Networks that say what each word of a sentence is."""

    def build(self, config: RunConfig, vocabulary: LabelTokenizer) -> Callable[[], Tagger]:
        return lambda: tagger(
            config.model,
            vocab_size=vocabulary.tokenizer.vocab_size + 1,
            char_vocab_size=1 if vocabulary.char_tokenizer is None else vocabulary.char_tokenizer.vocab_size + 1,
            num_tags=vocabulary.labels.size,
            max_positions=config.data.max_length,
            allowed_transitions=moves(vocabulary.labels),
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
        """Tags to learn from are mended; those that are measured by stay as they are."""
        spelled = columns[1] if len(columns) > 1 else None
        sentences = learned_tags(dataset)[0] if learned else tags_of(dataset)
        numbers = [vocabulary.labels.index(tag) for tag in sentences]
        tags = np.array([-1 if number is None else number for number in numbers], np.int64)
        edges = np.concatenate([[0], np.cumsum(sentence_lengths(dataset))]).astype(np.int64)
        return TaggedExamples(columns[0], spelled, edges, tags, dataset)

    def objective(
        self,
        config: RunConfig,
        vocabulary: LabelTokenizer,
        train: TaggedExamples | None,
        valid: TaggedExamples | None,
        device: torch.device,
    ) -> TaggingTask:
        gold, training_words = list[tuple[str, ...]](), list[np.ndarray]()
        if valid is not None:
            seen = set() if train is None else set(words(train.source).texts())
            for sentence in valid.source.records():
                gold.append(sentence.tags)
                training_words.append(np.array([word in seen for word in sentence.words]))
            self._check_monitor(config, vocabulary.labels, training_words)
        return TaggingTask(valid=valid, gold=gold, known=training_words, labels=vocabulary.labels, device=device)

    def _check_monitor(self, config: RunConfig, labels: LabelVocabulary, known: list[np.ndarray]) -> None:
        """Refuse to be decided by a score that the data does not have."""
        monitor = config.train.monitor
        if monitor is None:
            return
        needs = metrics_of(config.spec.validation, [monitor])[monitor].needs
        if needs == "spans_both" and scheme_of(labels.names) is None:
            raise ConfigError("train.monitor", f"{monitor!r} needs tags that mark spans", "use 'token_accuracy'")
        if needs == "oov" and all(words.all() for words in known):
            raise ConfigError(
                "train.monitor", f"{monitor!r} needs out-of-vocabulary words in data.valid", "use 'token_accuracy'"
            )
