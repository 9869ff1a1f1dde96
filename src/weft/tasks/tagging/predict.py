"""Prediction, evaluation and embedding with taggers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.errors import DataError
from weft.metrics.tagging import Span, TaggingSetup, scheme_of, spans, tag_items, tag_scores, types_of
from weft.runs.eval_data import eval_source, no_known_labels, own_source_or_none
from weft.tasks import embedding
from weft.tasks.embedding import EmbeddingOutput
from weft.tasks.invalid_inputs import mark_invalid, process_valid, read_texts
from weft.tasks.label_report import tag_report
from weft.tasks.spec import (
    Evaluation,
    Files,
    InvalidInput,
    LabelOptions,
    Options,
    Progress,
    ProgressCallback,
    phase,
    raise_first_invalid,
    scores_by_name,
)
from weft.tasks.tagging.compare import item_predictions, join_tags
from weft.tasks.tagging.data import words
from weft.text.label_tokenizer import LabelTokenizer

if TYPE_CHECKING:
    from weft.runs.run import Run
    from weft.tasks.tagging.objective import WordTagger

Sentence = str | Sequence[str]


class TagPrediction(NamedTuple):
    """The words of a sentence, their tags, and the spans of span tags."""

    words: list[str]
    tags: list[str]
    spans: list[Span]


class TaggerPredictor:
    """Applies a tagger to sentences."""

    def __init__(self, run: Run[Sentence, TagPrediction]) -> None:
        self.run, self.directory, self.config = run, run.directory, run.config
        self.tokenizer: LabelTokenizer = run.vocabulary

    @cached_property
    def model(self) -> WordTagger:
        """The network with its tokenizers."""
        from weft.tasks.tagging.objective import WordTagger

        return WordTagger(self.run.model, self.tokenizer, device=self.run.device, group=self.run.group)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.tokenizer.labels.names

    def words(self, sentences: Sequence[Sentence]) -> list[list[str]]:
        return raise_first_invalid([_words(sentence) for sentence in sentences])

    def long(self, sentences: Sequence[Sequence[str]]) -> dict[int, str]:
        """Index and problem of the sentences that are too long for the model."""
        max_length = self.model.max_length
        if max_length is None:
            return {}
        lengths = self.model.lengths(sentences)
        return {
            int(index): f"{lengths[index]:,} tokens exceed the model's limit of {max_length}; split it"
            for index in np.flatnonzero(lengths > max_length)
        }

    def invalid_inputs(self, sentences: Sequence[Sentence]) -> dict[int, str]:
        """Index and problem of the sentences that cannot be tagged."""
        return self.long(self.words(sentences))

    def predict(self, sentences: Sequence[Sequence[str]], progress: ProgressCallback | None) -> list[TagPrediction]:
        """The predictions for valid sentences."""
        has_spans = scheme_of(self.labels) is not None
        return [
            TagPrediction(list(words), tags, sorted(spans(tags), key=lambda span: span.start) if has_spans else [])
            for words, tags in zip(sentences, self.model.tag(sentences, progress), strict=True)
        ]

    def evaluate(self, data: Files | None, *, strict: bool, progress: ProgressCallback | None) -> Evaluation:
        """Evaluate the tagger on files, or on the run's own data."""
        source = eval_source(self.directory, self.config, data)
        sentences = list(source.records())
        if strict:
            self._refuse_unseen(source, sentences)
        counts = Counter(tag for sentence in sentences for tag in sentence.tags)
        if all(self.tokenizer.labels.index(tag) is None for tag in counts):
            fix = f"{'; '.join(source.summary.files.notes)}; set data.tag_column to another column"
            raise no_known_labels(source, counts, self.labels, self.directory, unit="tags", fix=fix)
        all_words, gold = [sentence.words for sentence in sentences], [sentence.tags for sentence in sentences]
        if problems := self.long(all_words):
            raise DataError(source.location(min(problems)), problems[min(problems)])
        predicted = self.model.tag(all_words, progress)
        scheme = scheme_of(self.labels)
        types = types_of(self.labels) if scheme else ()
        items = tag_items(predicted, gold, np.arange(len(sentences)), known=self._is_known(sentences), types=types)
        items = replace(items, outputs=list(map(join_tags, predicted)))
        scores = scores_by_name(tag_scores(items, TaggingSetup(self.tokenizer.labels.hash, scheme)))
        unseen = Counter({tag: count for tag, count in counts.items() if self.tokenizer.labels.index(tag) is None})
        details = partial(item_predictions, self.run, sentences, items)
        report = tag_report(self.labels, items, [join_tags(tags).split() for tags in gold])
        return Evaluation(scores, items, details, "sentences/s", len(sentences), report, unseen)

    def _refuse_unseen(self, source: Any, sentences: Sequence[Any]) -> None:
        """Raise if a tag is not in the training data."""
        for index, sentence in enumerate(sentences):
            for tag in sentence.tags:
                if self.tokenizer.labels.index(tag) is None:
                    raise DataError(source.location(index), f"tag {tag!r} is not in the training data of {self.directory.path}")

    def _is_known(self, sentences: Sequence[Any]) -> list[np.ndarray] | None:
        """For each word, whether it is in the training data; None if the training data is not available."""
        train = own_source_or_none(self.directory, self.config, "train")
        if train is None:
            return None
        training_words = set(words(train).texts())
        return [np.array([word in training_words for word in sentence.words], dtype=bool) for sentence in sentences]


def _words(sentence: Any) -> list[str] | InvalidInput:
    """The words of a sentence, which is a string or a list of words."""
    texts = read_texts(sentence)
    if isinstance(texts, InvalidInput):
        return texts
    return texts[0].split() if isinstance(sentence, str) else list(texts)


def predict(
    run: Run[Sentence, TagPrediction], sentences: Sequence[Sentence], options: Options, progress: Progress | None
) -> list[TagPrediction | InvalidInput]:
    predictor: TaggerPredictor = run.predictor
    rows = mark_invalid([_words(sentence) for sentence in sentences], predictor.long)
    return process_valid(rows, lambda valid: predictor.predict(valid, phase(progress, "predicting")))


def evaluate(
    run: Run[Sentence, TagPrediction], data: Files | None, options: LabelOptions, progress: Progress | None
) -> Evaluation:
    predictor: TaggerPredictor = run.predictor
    return predictor.evaluate(data, strict=options.strict, progress=phase(progress, "evaluating"))


def embed(
    run: Run[Sentence, TagPrediction], sentences: Sequence[Sentence], pool: str, progress: Progress | None
) -> EmbeddingOutput:
    """Sentence embeddings; sentences that are too long for the model are truncated."""
    embedding.check_pooling(pool)
    predictor: TaggerPredictor = run.predictor
    rows = predictor.words(sentences)
    long = predictor.long(rows)
    for index in long:
        rows[index] = embedding.first_words(predictor.tokenizer.tokenizer, rows[index], run.model.max_positions)
    truncated = np.zeros(len(rows), dtype=bool)
    truncated[list(long)] = True
    data, report = predictor.model.sentences(rows), phase(progress, "embedding")
    vectors = embedding.embed_words(run.model.encoder, data, pooling=pool, device=run.device, progress=report)
    return EmbeddingOutput(vectors, truncated)
