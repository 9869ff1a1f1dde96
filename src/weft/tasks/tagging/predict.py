"""What a tagger says of the words of sentences: predictions, scores, vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
    scores_by_name,
)
from weft.tasks.tagging.compare import in_line, item_predictions
from weft.tasks.tagging.data import words
from weft.text.label_tokenizer import LabelTokenizer
from weft.text.reading import check_text

if TYPE_CHECKING:
    from weft.runs.run import Run
    from weft.tasks.tagging.objective import WordTagger

Sentence = str | Sequence[str]


class TagPrediction(NamedTuple):
    """A sentence, a tag for each of its words, and the spans that the tags mark."""

    words: list[str]
    tags: list[str]
    spans: list[Span]


class TaggerReader:
    """A tagger that reads sentences: what a run says of their words."""

    def __init__(self, run: Run[Sentence, TagPrediction]) -> None:
        self.run, self.directory, self.config = run, run.directory, run.config
        self.tokenizer: LabelTokenizer = run.vocabulary

    @cached_property
    def model(self) -> WordTagger:
        """What tags words: `tag`."""
        from weft.tasks.tagging.objective import WordTagger

        return WordTagger(self.run.model, self.tokenizer, device=self.run.device)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.tokenizer.labels.names

    def words(self, sentences: Sequence[Sentence]) -> list[list[str]]:
        return [
            check_text(sentence, f"line {index}").split()
            if isinstance(sentence, str)
            else [check_text(word, f"line {index}") for word in sentence]
            for index, sentence in enumerate(sentences, 1)
        ]

    def long(self, sentences: Sequence[Sequence[str]]) -> dict[int, str]:
        max_length = self.model.max_length
        if max_length is None:
            return {}
        lengths = self.model.lengths(sentences)
        return {
            int(index): f"{lengths[index]:,} tokens exceed the model's limit of {max_length}; split it"
            for index in np.flatnonzero(lengths > max_length)
        }

    def _refuse(self, problems: Mapping[int, str], place: Callable[[int], str]) -> None:
        if problems:
            raise DataError(place(min(problems)), f"{problems[min(problems)]}")

    def invalid_inputs(self, sentences: Sequence[Sentence]) -> dict[int, str]:
        """Which sentences can't be tagged, by their number from 0, and why: some models have positions up to a number only."""
        return self.long(self.words(sentences))

    def predict(self, read: Sequence[Sequence[str]], progress: ProgressCallback | None) -> list[TagPrediction]:
        """Sentences that can be read, tagged."""
        marks = scheme_of(self.labels) is not None
        return [
            TagPrediction(list(words), tags, sorted(spans(tags), key=lambda span: span.start) if marks else [])
            for words, tags in zip(read, self.model.tag(read, progress), strict=True)
        ]

    def evaluate(self, data: Files | None, *, strict: bool, progress: ProgressCallback | None) -> Evaluation:
        """Scores, and what they were made from, sentence by sentence."""
        source = eval_source(self.directory, self.config, data)
        sentences = list(source.records())
        if strict:
            self._refuse_unseen(source, sentences)
        counts = Counter(tag for sentence in sentences for tag in sentence.tags)
        if all(self.tokenizer.labels.index(tag) is None for tag in counts):
            fix = f"{'; '.join(source.summary.files.notes)}; set data.tag_column for another"
            raise no_known_labels(source, counts, self.labels, self.directory, unit="tags", fix=fix)
        self._refuse(self.long([sentence.words for sentence in sentences]), source.location)
        predicted = self.model.tag([sentence.words for sentence in sentences], progress)
        training_words = self._known(sentences)
        scheme = scheme_of(self.labels)
        types = types_of(self.labels) if scheme else ()
        items = tag_items(
            predicted, [sentence.tags for sentence in sentences], np.arange(len(sentences)), known=training_words, types=types
        )
        scores = tag_scores(items, TaggingSetup(self.tokenizer.labels.hash, scheme))
        unseen = Counter({tag: count for tag, count in counts.items() if self.tokenizer.labels.index(tag) is None})
        items_with_outputs = replace(items, outputs=list(map(in_line, predicted)))
        observed, gold = (
            partial(item_predictions, self.run, sentences, items_with_outputs),
            [in_line(sentence.tags).split() for sentence in sentences],
        )
        report = tag_report(self.labels, items_with_outputs, gold)
        return Evaluation(scores_by_name(scores), items_with_outputs, observed, "sentences/s", len(sentences), report, unseen)

    def _refuse_unseen(self, source: Any, given: Sequence[Any]) -> None:
        for index, sentence in enumerate(given):
            for tag in sentence.tags:
                if self.tokenizer.labels.index(tag) is None:
                    raise DataError(source.location(index), f"tag {tag!r} is not in the training data of {self.directory.path}")

    def _known(self, given: Sequence[Any]) -> list[np.ndarray] | None:
        """Of each word, whether training had it; None where the training text is not there any more."""
        train = own_source_or_none(self.directory, self.config, "train")
        if train is None:
            return None
        seen = set(words(train).texts())
        return [np.array([word in seen for word in sentence.words], dtype=bool) for sentence in given]


def _words(given: Any) -> list[str] | InvalidInput:
    """The words of a sentence, which is a string or a list of words."""
    texts = read_texts(given)
    if isinstance(texts, InvalidInput):
        return texts
    return texts[0].split() if isinstance(given, str) else list(texts)


def predict(
    run: Run[Sentence, TagPrediction], sentences: Sequence[Sentence], options: Options, progress: Progress | None
) -> list[TagPrediction | InvalidInput]:
    reader: TaggerReader = run.predictor
    read = mark_invalid([_words(sentence) for sentence in sentences], reader.long)
    return process_valid(read, lambda valid: reader.predict(valid, phase(progress, "predicting")))


def evaluate(
    run: Run[Sentence, TagPrediction], data: Files | None, options: LabelOptions, progress: Progress | None
) -> Evaluation:
    reader: TaggerReader = run.predictor
    return reader.evaluate(data, strict=options.strict, progress=phase(progress, "evaluating"))


def embed(
    run: Run[Sentence, TagPrediction], sentences: Sequence[Sentence], pool: str, progress: Progress | None
) -> EmbeddingOutput:
    """A sentence that is too long for the model loses its last words."""
    embedding.check_pooling(pool)
    reader: TaggerReader = run.predictor
    read = reader.words(sentences)
    long = reader.long(read)
    for index in long:
        read[index] = embedding.first_words(reader.tokenizer.tokenizer, read[index], run.model.max_positions)
    truncated = np.zeros(len(read), dtype=bool)
    truncated[list(long)] = True
    data = reader.model.sentences(read)
    return EmbeddingOutput(
        embedding.embed_words(run.model.encoder, data, pooling=pool, device=run.device, progress=phase(progress, "embedding")),
        truncated,
    )
