"""The loss of a run's network on held-out data, whatever the task, piece by piece: to see what it costs to change the network.

What is read is fixed once, gaps of masked language models among it, so that two losses differ by the change alone. Nothing is
smoothed, dropped or balanced, as it may be in training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.data.corpus import Corpus, write_corpus
from weft.data.grouped import in_groups
from weft.data.opening import opened
from weft.data.order import by_length, changed, strided
from weft.data.tag_order import Sentences
from weft.data.text_order import Labelled
from weft.errors import DataError, UsageError
from weft.models.encoder import Text
from weft.models.tagger import Words
from weft.runs.eval_data import Files, first_split, held_source
from weft.tasks.classification.data import labels_of
from weft.tasks.classification.network import targets, unseen
from weft.tasks.lm.network import default_context
from weft.tasks.lm.scoring import check_positions
from weft.tasks.masked_lm.network import masking
from weft.tasks.masked_lm.objective import SEED, check_longest, masked, texts
from weft.tasks.qa.network import answer_tokens, with_places
from weft.tasks.qa.order import Passages
from weft.tasks.seq2seq.data import fit_side
from weft.tasks.seq2seq.order import PairBatch, pairs_by_length
from weft.tasks.tagging.data import learned_tags, refuse_long, sentence_lengths
from weft.tasks.tagging.data import words as words_of

BATCH = 4096  # positions read at once


class Portion(NamedTuple):
    """Some of the data."""

    nats: Callable[[], Tensor]  # summed; gradients flow from here
    items: int  # that are predicted: tokens, texts, words, windows
    size: int  # tokens read


def _source(run: Any, data: Files | None) -> Any:
    """The files of `data`, read as the run's own are, or its own validation data."""
    if data is not None:
        return held_source(run.folder, run.settings, data)
    return first_split(run.folder, run.settings, ("valid",))[1]


def _language(run: Any, source: Any, place: Path) -> Iterator[Portion]:
    window = run.settings.data.window
    corpus = opened(write_corpus(source, run.vocabulary, place, "data"), run.folder.path, run.vocabulary)
    context = default_context(run.settings)
    check_positions(run.model.longest, corpus, context)

    def nats(tokens: Tensor, real: Tensor) -> Tensor:
        tokens, real = tokens.to(run.device), real.to(run.device)
        found: Tensor = run.model.loss(tokens[:, :-1], tokens[:, 1:])[0]
        return found.masked_fill(~real, 0.0).sum()

    lines, rows, stride = corpus.starts is not None, max(1, BATCH // window), context.stride or window
    for part in by_length(corpus, batch_tokens=BATCH) if lines else strided(corpus, window=window, stride=stride, rows=rows):
        # the last window of running text was moved back to be full: what another one has read is left out
        real = torch.arange(part.tokens.size(1) - 1) >= torch.from_numpy(part.first)[:, None]
        real = real if part.keep is None else real & part.keep[:, 1:]
        yield Portion(partial(nats, part.tokens, real), int(real.sum()), int(real.sum()))


def _masking(run: Any, source: Any, place: Path) -> Iterator[Portion]:
    corpus = write_corpus(source, run.vocabulary, place, "data")
    check_longest(run.model.longest, corpus)
    how, generator = masking(run.settings, run.vocabulary), torch.Generator().manual_seed(SEED)

    def nats(text: Text, shown: Tensor, chosen: Tensor) -> Tensor:
        seen = Text(shown.to(run.device), text.keep.to(run.device))
        found: Tensor = run.model.loss(seen, text.tokens.to(run.device), chosen.to(run.device)).sum()
        return found

    for read in texts(corpus, window=run.settings.data.window, batch_tokens=BATCH):
        shown, chosen = masked(read.text.tokens, read.text.keep, how, generator)
        yield Portion(partial(nats, read.text, shown, chosen), int(chosen.sum()), int(read.text.keep.sum()))


def _classification(run: Any, source: Any, place: Path) -> Iterator[Portion]:
    """Of texts whose label training saw."""
    model, labels, data = run.model, run.vocabulary.labels, run.settings.data
    columns = [
        write_corpus(source.column(str(at)), run.vocabulary.tokenizer, place, f"data.{at}") for at in range(len(data.columns()))
    ]
    right = labels_of(source)
    numbers = targets(right, labels, several=data.multi)
    read = Labelled(columns, numbers, unseen(right, labels), data.longest)

    def nats(members: np.ndarray) -> Tensor:
        batch = changed(read.batch(members), lambda part: part.to(run.device))
        found: Tensor = model.head.loss(model(Text(batch.tokens, batch.keep, batch.segments)), batch.labels).sum()
        return found

    known = np.flatnonzero(numbers.min(axis=1) >= 0)
    for group in in_groups(read.lengths()[known], batch_tokens=BATCH):
        members = known[group]
        yield Portion(partial(nats, members), len(members), int(read.lengths()[members].sum()))


def _tagging(run: Any, source: Any, place: Path) -> Iterator[Portion]:
    """Of sentences whose tags training saw."""
    model, tokens = run.model, run.vocabulary
    words = write_corpus(words_of(source), tokens.tokenizer, place, "words")
    refuse_long(words, source, longest=run.settings.data.longest)
    letters = None if tokens.letters is None else write_corpus(words_of(source), tokens.letters, place, "letters")
    numbers = [tokens.labels.index(tag) for tag in learned_tags(source)[0]]
    tags = np.array([-1 if number is None else number for number in numbers], np.int64)
    edges = np.concatenate([[0], np.cumsum(sentence_lengths(source))]).astype(np.int64)
    read = Sentences(words, letters, edges, tags)

    def nats(members: np.ndarray) -> Tensor:
        batch = changed(read.batch(members), lambda part: part.to(run.device))
        found: Tensor = model.loss(Words(*batch[:-1]), batch.tags).sum()
        return found

    known = np.array(
        [at for at, (low, high) in enumerate(pairwise(edges.tolist())) if high > low and tags[low:high].min() >= 0]
    )
    for group in in_groups(read.lengths()[known], batch_tokens=BATCH):
        members = known[group]
        yield Portion(partial(nats, members), int(np.diff(edges)[members].sum()), int(read.lengths()[members].sum()))


def _translation(run: Any, source: Any, place: Path) -> Iterator[Portion]:
    if len(run.members) > 1 or run.lm is not None:
        raise UsageError("loss: several models say something together; measure one run")
    model, data, sides = run.members[0].model, run.settings.data, list[Corpus]()
    for which in ("source", "target"):
        corpus = write_corpus(source.column(which), getattr(run.vocabulary, which), place, which)
        sides.append(fit_side(corpus, source, which, longest=data.longest, truncate=data.truncate))

    def nats(batch: PairBatch) -> Tensor:
        batch = changed(batch, lambda part: part.to(run.device))
        state = model.encode(batch.source, batch.source_keep)
        found: Tensor = model.loss(batch.tokens[:, :-1], batch.tokens[:, 1:], state)[0]
        return found.masked_fill(~batch.keep[:, 1:], 0.0).sum()

    for _, batch in pairs_by_length(sides[0], sides[1], batch_tokens=BATCH):
        written = int(batch.keep[:, 1:].sum())
        yield Portion(partial(nats, batch), written, written + int(batch.source_keep.sum()))


def _answering(run: Any, source: Any, place: Path) -> Iterator[Portion]:
    """Of windows; where an answer is not whole in one, it has none there."""
    model, data, tokenizer = run.model, run.settings.data, run.vocabulary
    asked, about = (write_corpus(source.column(name), tokenizer, place, name) for name in ("questions", "passages"))
    spans = [answer_tokens(record, places) for record, places in with_places(source.records(), tokenizer)]
    read = Passages(asked, about, np.array(spans, np.int64).reshape(-1, 2), data.longest, data.stride)

    def nats(members: np.ndarray) -> Tensor:
        batch = changed(read.batch(members), lambda part: part.to(run.device))
        found: Tensor = model.head.loss(model(Text(batch.tokens, batch.keep, batch.segments)), batch.spans).sum()
        return found

    for members in in_groups(read.lengths(), batch_tokens=BATCH):
        yield Portion(partial(nats, members), len(members), int(read.lengths()[members].sum()))


READERS: dict[str, Callable[[Any, Any, Path], Iterator[Portion]]] = {
    "lm": _language,
    "masked-lm": _masking,
    "classify": _classification,
    "tag": _tagging,
    "translate": _translation,
    "span": _answering,
}


def portions(run: Any, data: Files | None, place: Path, *, tokens: int, seed: int = 0) -> list[Portion]:
    """About `tokens` tokens of the data, drawn from all of it by chance but always the same; what must be written goes to
    `place`."""
    found = list(READERS[run.settings.task](run, _source(run, data), place))
    order = np.random.default_rng(seed).permutation(len(found)).tolist()
    chosen, size = list[Portion](), 0
    for at in order:
        if size < tokens:
            chosen.append(found[at])
            size += found[at].size
    if not sum(one.items for one in chosen):
        raise DataError("data: has nothing to measure the loss with; is it empty, or are its labels all new?")
    return chosen


@torch.inference_mode()
def loss(parts: Iterable[Portion]) -> float:
    """Nats a token, text, word or window."""
    found = [(one.nats().double().item(), one.items) for one in parts]
    return sum(nats for nats, _ in found) / sum(items for _, items in found)
