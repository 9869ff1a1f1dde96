"""What a run is seen to do, task by task: its scores, and of each item what was read, said and meant.

Shapes: N items, F classes of frequency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from weft.data.corpus import Corpus, open_corpus
from weft.errors import ModelError
from weft.metrics.items import Items, Score
from weft.metrics.language import block_size, language_scores
from weft.metrics.masked import masked_scores
from weft.runs.eval_data import Files, held_source, own_or_gone
from weft.runs.folder import RunFolder
from weft.runs.run import AnyRun
from weft.tasks.lm.objective import items as language_items
from weft.tasks.masked_lm.objective import hidden_items
from weft.tasks.seq2seq.data import pairs as pairs_of
from weft.tasks.spec import Progress
from weft.tasks.tagging.data import words
from weft.tasks.tagging.predict import in_line

Watch = Callable[[int, int], None]
FREQUENCIES = (1, 10, 100, 1_000, 10_000)  # occurrences in training where the next class begins


class How(NamedTuple):
    """How runs are measured: all of a comparison in one way, or their scores would not compare."""

    tokenize: str | None = None  # how BLEU splits outputs; None: as suits them
    context: str | None = None  # what a language model predicts a token from; None: its whole past


HOW = How()


class Observed(NamedTuple):
    """What is kept of a run's work on a test set."""

    scores: list[Score]
    items: Items
    inputs: list[str]
    references: list[str]
    lengths: np.ndarray  # int64 (N,)
    unit: str  # of what was decoded: "lines/s"
    units: int  # how many of those there were
    frequencies: Mapping[str, np.ndarray] = {}  # statistics (N, F) by how frequent a token or a word was in training
    rarest: np.ndarray | None = None  # int64 (N,): occurrences in training of the rarest token of an input
    item: str = "item"  # what one is: "line", "block of about 100 bytes"
    unknown: float = 0.0  # the share of tokens, of a language model's text, that are <unk>


def _trained(folder: RunFolder, name: str, size: int) -> np.ndarray | None:
    """int64 (V,): how often each token occurs in what a run was trained on; None where that is not there any more."""
    with suppress(ModelError):
        found: np.ndarray = np.bincount(open_corpus(folder.data, name, check=False).tokens, minlength=size)
        return found
    return None


def _classed(values: Mapping[str, np.ndarray], items: np.ndarray, occurrences: np.ndarray, size: int) -> dict[str, np.ndarray]:
    """Statistics of tokens (T,), summed by item (T,) and class of frequency: (size, F) each."""
    places = items * (len(FREQUENCIES) + 1) + np.digitize(occurrences, FREQUENCIES)
    shape = (size, len(FREQUENCIES) + 1)
    return {name: np.bincount(places, each, shape[0] * shape[1]).reshape(shape) for name, each in values.items()}


def text_block(corpus: Corpus) -> int:
    """The bytes of an item of running text; bytes, and not tokens, for runs may have tokenizers of their own."""
    return block_size(int(corpus.marks[-1, 2]))


def text_edges(corpus: Corpus) -> np.ndarray:
    """int64 (N + 1,): the tokens where items start, and the end: of lines, or of running text in blocks of whole lines, which
    are the same whatever the tokenizer."""
    if corpus.starts is not None:
        return np.asarray(corpus.starts)
    marks = np.asarray(corpus.marks)
    begins = np.flatnonzero(np.diff(marks[:, 2] // text_block(corpus)) > 0) + 1
    return np.unique(np.concatenate([[0], marks[begins, 0], [len(corpus.tokens)]]))


def _decoded(run: Any, corpus: Corpus, edges: np.ndarray) -> list[str]:
    return [run.vocabulary.decode(corpus.tokens[low:high].tolist()) for low, high in pairwise(edges.tolist())]


def _language(run: Any, data: Files | None, watch: Watch, context: str | None) -> Observed:
    nats, corpus = run.reader.nats(data, context=context, watch=watch)
    edges, tokens = text_edges(corpus), np.asarray(corpus.tokens).astype(np.int64)
    found, lengths, classed = language_items(nats, corpus, edges), np.diff(edges), {}
    counts = _trained(run.folder, "train", run.vocabulary.size)
    if counts is not None:
        owners = np.repeat(np.arange(len(lengths)), lengths)
        values = {"nats": nats.astype(np.float64), "tokens": np.ones(len(tokens))}
        classed = _classed(values, owners, counts[tokens], len(lengths))
    scores = language_scores(language_items(nats, corpus), run.reader.measured(context))
    inputs = _decoded(run, corpus, edges)
    each = round(int(corpus.marks[-1, 2]) / max(1, len(inputs)), -1)  # blocks are whole lines, so longer than was asked for
    item = f"block of about {each:,.0f} bytes" if corpus.starts is None else "line"
    unknown = float(np.mean(tokens == run.vocabulary.unk))
    return Observed(
        scores, found, inputs, [""] * len(inputs), lengths, "tokens/s scored", len(tokens), classed, item=item, unknown=unknown
    )


def _masked(run: Any, data: Files | None, watch: Watch) -> Observed:
    hidden, corpus = run.reader.nats(data, watch=watch)
    found, classed = hidden_items(hidden), {}
    lengths = found.statistics["tokens"].astype(np.int64)
    counts = _trained(run.folder, "train", run.vocabulary.size)
    if counts is not None:
        values = {"nats": hidden.nats, "tokens": np.ones(len(hidden.tokens))}
        classed = _classed(values, hidden.owners, counts[hidden.tokens], hidden.size)
    edges = np.append(0, np.cumsum(lengths)) if corpus.starts is None else np.asarray(corpus.starts)
    scores, inputs = masked_scores(found, run.reader.measured()), _decoded(run, corpus, edges)
    empty, item, total = [""] * len(inputs), "window" if corpus.starts is None else "line", int(lengths.sum())
    return Observed(scores, found, inputs, empty, lengths, "tokens/s filled", total, classed, item=item)


def told(watch: Watch) -> Progress:
    """Who is told of evaluating alone: reading and tokenizing are no decoding."""
    return lambda what, done, total: watch(done, total) if what == "evaluating" else None


def _labels(run: Any, data: Files | None, watch: Watch) -> Observed:
    evaluation = run.evaluate(data, progress=told(watch))
    scores, found = evaluation.scores, evaluation.items
    examples = list(held_source(run.folder, run.settings, data).records())
    columns = zip(*(example.texts for example in examples), strict=True)
    lengths = np.sum([run.vocabulary.tokenizer.encode_flat(column)[1] for column in columns], axis=0)
    inputs = [" | ".join(example.texts) for example in examples]
    references = [", ".join(example.labels) for example in examples]
    return Observed(scores, found, inputs, references, lengths, "texts/s", len(inputs), item="text")


def _tags(run: Any, data: Files | None, watch: Watch) -> Observed:
    evaluation = run.evaluate(data, progress=told(watch))
    scores, found = evaluation.scores, evaluation.items
    given = list(held_source(run.folder, run.settings, data).records())
    inputs, references = [" ".join(one.words) for one in given], [in_line(one.tags) for one in given]
    lengths = np.array([len(one.words) for one in given], np.int64)
    train, classed = own_or_gone(run.folder, run.settings, "train"), {}
    if train is not None:
        known = Counter(words(train).texts())
        occurrences = np.array([known[word] for one in given for word in one.words], np.int64)
        said = [tag for line in found.outputs or () for tag in line.split()]
        right = np.array([a == b for a, b in zip(said, " ".join(references).split(), strict=True)], np.float64)
        owners = np.repeat(np.arange(len(given)), lengths)
        classed = _classed({"right": right, "tokens": np.ones(len(right))}, owners, occurrences, len(given))
    return Observed(scores, found, inputs, references, lengths, "sentences/s", len(given), classed, item="sentence")


def _translation(run: Any, data: Files | None, watch: Watch, tokenize: str | None) -> Observed:
    evaluation = run.evaluate(data, tokenize=tokenize, progress=told(watch))
    scores, found = evaluation.scores, evaluation.items
    pairs = list(pairs_of(held_source(run.folder, run.settings, data)))
    inputs, tokenizer = [source for source, _ in pairs], run.vocabulary.source
    read = tokenizer.encode_batch(inputs)
    counts, rarest = _trained(run.folder, "train.source", tokenizer.size), None
    if counts is not None:  # an empty line has no token, and none that is rare
        rarest = np.array([counts[ids].min() if len(ids) else counts.max() for ids in read], np.int64)
    lengths = np.array([len(ids) for ids in read], np.int64)
    references = [target for _, target in pairs]
    return Observed(scores, found, inputs, references, lengths, "lines/s", len(pairs), rarest=rarest, item="line")


def _answers(run: Any, data: Files | None, watch: Watch) -> Observed:
    evaluation = run.evaluate(data, progress=told(watch))
    scores, found = evaluation.scores, evaluation.items
    records = list(held_source(run.folder, run.settings, data).records())
    lengths = run.vocabulary.encode_flat([record.passage for record in records])[1]
    references = [" / ".join(dict.fromkeys(answer.text for answer in record.answers)) for record in records]
    inputs = [f"{record.question} | {record.passage}" for record in records]
    return Observed(scores, found, inputs, references, lengths, "questions/s", len(records), item="question")


READERS: Mapping[str, Callable[[Any, Files | None, Watch], Observed]] = {
    "masked-lm": _masked,
    "classify": _labels,
    "tag": _tags,
    "span": _answers,
}


def observe(run: AnyRun, data: Files | None, watch: Watch, how: How = HOW) -> Observed:
    """What a run does on `data`, or on its own test or validation data."""
    if run.settings.task == "lm":
        return _language(run, data, watch, how.context)
    if run.settings.task == "translate":
        return _translation(run, data, watch, how.tokenize)
    return READERS[run.settings.task](run, data, watch)
