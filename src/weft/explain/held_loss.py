"""The loss of a run's network on held-out data, whatever the task, piece by piece: to see what it costs to change the network.

What is read is fixed once, gaps of masked language models among it, so that two losses differ by the change alone. Nothing is
smoothed, dropped or balanced, as it may be in training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.data.corpus import Corpus, write_corpus
from weft.data.grouped import by_length as examples_by_length
from weft.data.order import by_length, changed, strided
from weft.data.pair_order import pairs_by_length
from weft.data.pairs import fit
from weft.data.tag_order import Sentences
from weft.data.tagged import refuse_long
from weft.data.text_order import Labelled
from weft.errors import DataError, UsageError
from weft.explain.inputs import network
from weft.models.encoder import Text
from weft.models.tagger import Words
from weft.tasks.masking import SEED, check_longest, masked, texts
from weft.tasks.surprisal import check_positions
from weft.tasks.tagging import learned_tags
from weft.train.classification import targets, unseen
from weft.train.held import Files, held_source
from weft.train.language import default_context
from weft.train.masked import masking

BATCH = 4096  # positions read at once
Told = Callable[[int, int], None]


class Portion(NamedTuple):
    """Some of the data."""

    nats: Callable[[], Tensor]  # summed; gradients flow from here
    count: int  # of what is predicted: tokens, texts, words
    size: int  # tokens read


def _source(run: Any, data: Files | None) -> Any:
    """The files of `data`, read as the run's own are, or its own validation data."""
    if data is not None:
        return held_source(run.folder, run.settings, data)
    own = run.settings.sources()
    if "valid" not in own:
        raise UsageError(f"{run.folder.path}: the run has no validation data; give --data FILE")
    return own["valid"]


def _language(run: Any, source: Any, place: Path) -> Iterator[Portion]:
    model, device, window = network(run), run.device, run.settings.data.window
    corpus = write_corpus(source, run.tokenizer, place, "data")
    check_positions(run.model.longest, corpus, default_context(run.settings))
    lines = corpus.starts is not None
    rows = max(1, BATCH // window)
    for part in by_length(corpus, batch_tokens=BATCH) if lines else strided(corpus, window=window, stride=window, rows=rows):
        fresh = torch.arange(part.tokens.size(1) - 1) >= torch.from_numpy(part.first)[:, None]
        real = fresh if part.keep is None else fresh & part.keep[:, 1:]

        def nats(tokens: Tensor = part.tokens, real: Tensor = real) -> Tensor:
            tokens, real = tokens.to(device), real.to(device)
            found: Tensor = model.loss(tokens[:, :-1], tokens[:, 1:])[0]  # type: ignore[operator, union-attr]
            return found.masked_fill(~real, 0.0).sum()

        yield Portion(nats, int(real.sum()), int(real.sum()))


def _masking(run: Any, source: Any, place: Path) -> Iterator[Portion]:
    model, device = run.model, run.device
    corpus = write_corpus(source, run.tokenizer, place, "data")
    check_longest(model.longest, corpus)
    how, generator = masking(run.settings, run.tokenizer), torch.Generator().manual_seed(SEED)
    for read in texts(corpus, window=run.settings.data.window, batch_tokens=BATCH):
        shown, chosen = masked(read.text.tokens, read.text.keep, how, generator)

        def nats(text: Text = read.text, shown: Tensor = shown, chosen: Tensor = chosen) -> Tensor:
            seen = Text(shown.to(device), text.keep.to(device))
            found: Tensor = model.loss(seen, text.tokens.to(device), chosen.to(device)).sum()
            return found

        yield Portion(nats, int(chosen.sum()), int(read.text.keep.sum()))


def _classification(run: Any, source: Any, place: Path) -> Iterator[Portion]:
    """Of texts whose label training saw."""
    model, device, labels, data = run.model.model, run.device, run.tokenizer.labels, run.settings.data
    columns = [write_corpus(source.side(at), run.tokenizer.tokenizer, place, f"data.{at}") for at in range(len(data.columns()))]
    right = source.labels()
    read = Labelled(columns, targets(right, labels, several=data.multi), unseen(right, labels), data.longest)
    for _, batch in examples_by_length(read, batch_tokens=BATCH):
        known = batch.labels.amin(1) >= 0

        def nats(batch: Any = changed(batch, lambda part, known=known: part[known])) -> Tensor:
            batch = changed(batch, lambda part: part.to(device))
            found: Tensor = model.head.loss(model(Text(batch.tokens, batch.keep, batch.segments)), batch.labels).sum()
            return found

        if known.any():
            yield Portion(nats, int(known.sum()), int(batch.keep[known].sum()))


def _tagging(run: Any, source: Any, place: Path) -> Iterator[Portion]:
    """Of sentences whose tags training saw."""
    model, device, read = run.model.model, run.device, run.tokenizer
    words = write_corpus(source.words(), read.tokenizer, place, "words")
    refuse_long(words, source, longest=run.settings.data.longest)
    letters = None if read.letters is None else write_corpus(source.words(), read.letters, place, "letters")
    numbers = [read.labels.index(tag) for tag in learned_tags(source)[0]]
    tags = np.array([-1 if number is None else number for number in numbers], np.int64)
    edges = np.concatenate([[0], np.cumsum(source.sentence_lengths())]).astype(np.int64)
    for _, batch in examples_by_length(Sentences(words, letters, edges, tags), batch_tokens=BATCH):
        known = batch.tags.amin(1) >= 0

        def nats(batch: Any = changed(batch, lambda part, known=known: part[known])) -> Tensor:
            batch = changed(batch, lambda part: part.to(device))
            found: Tensor = model.loss(Words(*batch[:-1]), batch.tags).sum()
            return found

        if known.any():
            yield Portion(nats, int(batch.real[known].sum()), int(batch.keep[known].sum()))


def _translation(run: Any, source: Any, place: Path) -> Iterator[Portion]:
    if len(run.members) > 1 or run.lm is not None:
        raise UsageError("loss: several models say something together; measure one run")
    model, device, data = run.members[0].model, run.device, run.settings.data
    sides = list[Corpus]()
    for which in ("source", "target"):
        side = source.side(which)
        corpus = write_corpus(side, getattr(run.tokenizer, which), place, which)
        sides.append(fit(corpus, side, longest=data.longest, truncate=data.truncate))
    for _, batch in pairs_by_length(*sides, batch_tokens=BATCH):

        def nats(batch: Any = batch) -> Tensor:
            batch = changed(batch, lambda part: part.to(device))
            state = model.encode(batch.source, batch.source_keep)
            found: Tensor = model.loss(batch.tokens[:, :-1], batch.tokens[:, 1:], state)[0]
            return found.masked_fill(~batch.keep[:, 1:], 0.0).sum()

        yield Portion(nats, int(batch.keep[:, 1:].sum()), int(batch.keep[:, 1:].sum() + batch.source_keep.sum()))


READERS: dict[str, Callable[[Any, Any, Path], Iterator[Portion]]] = {
    "lm": _language,
    "masked-lm": _masking,
    "classify": _classification,
    "tag": _tagging,
    "translate": _translation,
}


def portions(run: Any, data: Files | None, place: Path, *, tokens: int, seed: int = 0) -> list[Portion]:
    """About `tokens` tokens of the data, drawn from all of it by chance but always the same; what must be written goes to
    `place`."""
    if run.settings.task not in READERS:
        raise UsageError(f"loss: {run.folder.path} is a run of task {run.settings.task!r}; measured are: {', '.join(READERS)}")
    found = list(READERS[run.settings.task](run, _source(run, data), place))
    order = np.random.default_rng(seed).permutation(len(found)).tolist()
    chosen, size = list[Portion](), 0
    for at in order:
        if size < tokens:
            chosen.append(found[at])
            size += found[at].size
    if not sum(one.count for one in chosen):
        raise DataError("data: has nothing to measure the loss with; is it empty, or are its labels all new?")
    return chosen


@torch.inference_mode()
def loss(parts: Iterable[Portion]) -> float:
    """Nats a token, text or word."""
    found = [(one.nats().double().item(), one.count) for one in parts]
    return sum(nats for nats, _ in found) / sum(count for _, count in found)
