"""What a run will need, worked out before anything large is allocated."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import nn

from weft.data.batch import WHOLE, changed
from weft.data.corpus import Corpus
from weft.errors import ResourceError
from weft.machine import free, peak, size
from weft.models.ngram import bytes_ahead
from weft.train.learner import Learner
from weft.train.loop import Place
from weft.train.tables import TrainTable

AnyBatch = tuple[Any, ...]  # tensors with rows first
Widest = Callable[[Fraction], AnyBatch]  # the largest batch, with its rows shortened to a share of their positions

FIRST = 1024  # positions of a row that are run without asking
# What a process takes for what is alive: the C library's allocator keeps pieces between others that it can't use, of a small
# batch about as much again. The allocator of a GPU keeps next to nothing, and says so when there is no more.
KEPT, KEPT_MOST = {"cpu": 1.3, "cuda": 1.0}, {"cpu": 250_000_000, "cuda": 0}
MOMENTS = {"adamw": 2, "muon": 2, "sgd": 1}  # tensors an optimiser keeps for each weight, at most


def check_weights(build: Callable[[], nn.Module], table: TrainTable, device: torch.device) -> int:
    """Refuse a model whose weights, gradients, averages and optimiser do not fit; the number of its parameters."""
    with torch.device("meta"):
        weights = sum(weight.numel() for weight in build().parameters())
    averages = "" if table.average == "none" else ", averages"
    needed = weights * 4 * (2 + bool(averages) + MOMENTS[table.optimizer])
    if needed > (there := free(device)):
        raise ResourceError(
            f"model: {weights} parameters need {size(needed)} for weights, gradients{averages} and {table.optimizer}, "
            f"but {size(there)} are free; lower model.width or model.layers"
        )
    return weights


def check_counts(corpus: Corpus, order: int, *, words: int) -> int:
    """Refuse a text whose n-grams do not fit while they are counted and smoothed; the bytes that they need."""
    there = free(torch.device("cpu"))
    needed = bytes_ahead(corpus.tokens, corpus.starts, order=order, size=words, room=there)
    if needed > there:
        raise ResourceError(
            f"model.order: n-grams of up to {order} of {len(corpus.tokens)} tokens need about {size(needed)} to be counted, "
            f"but {size(there)} are free; lower model.order, or give less text"
        )
    return needed


def check_batch(learner: Learner, widest: Widest, table: TrainTable, place: Place) -> int:
    """Refuse a batch whose activations and gradients do not fit, by running a few of its rows; the bytes it takes at most.

    Of long rows first a part is run, and then more, as far as that is needed to know: what is refused is refused before it
    takes the memory.
    """
    batch = widest(WHOLE)
    width = max(part.size(1) for part in batch if part is not None and part.dim() > 1)
    rows = -(-len(batch[0]) // table.accumulate)
    length, weights = min(width, FIRST), 4 * sum(weight.numel() for weight in learner.parameters())
    later = weights * (MOMENTS[table.optimizer] + (table.average != "none"))  # what the first update adds and keeps
    # of a batch in parts, the gradients of those before are there all the while
    held = weights if rows < len(batch[0]) else 0
    while True:
        here = batch_bytes(learner, changed(widest(Fraction(length, width)), lambda part: part[:rows]), place)
        grows, there = max(0, here - weights), max(0, free(place.device) - later)  # gradients are as large as ever
        # what a row takes grows with its length at least, and with its square at most
        alive = (here - grows + grows * width**power // length**power for power in (1, 2))
        needed, most = (held + _taken(each, place.device.type) for each in alive)
        if needed > there:
            cure = f"lower train.batch_tokens, or raise train.accumulate from {table.accumulate}"
            raise ResourceError(
                f"train.batch_tokens: {rows} rows of {width - 1} tokens need about {size(needed)} for activations and "
                f"gradients, but {size(there)} are free; {cure if rows > 1 else 'lower data.window, or cut the longest lines'}"
            )
        if most <= there:
            return most
        length = min(width, 2 * length, max(length + 1, int(length * (there / here) ** 0.5)))


def _taken(alive: int, device: str) -> int:
    """Bytes that a process takes for so many that are alive."""
    return int(KEPT[device] * alive) + min(alive, KEPT_MOST[device])


def batch_bytes(learner: Learner, batch: AnyBatch, place: Place) -> int:
    """The most bytes alive at once on the way there and back, gradients of weights among them.

    Where a state is carried, the batch is read on top of one: attention sees the window before it as well.
    """
    weights = [weight for weight in learner.parameters() if weight.requires_grad]

    def there_and_back(rows: int) -> None:
        some = place.moved(changed(batch, lambda part: part[:rows]))
        with torch.no_grad(), place.autocast():
            carry = learner(some, None).carry
        with place.autocast():
            total = learner(some, carry).total
        torch.autograd.grad(total, weights, allow_unused=True)  # leaves no gradient behind

    return peak(there_and_back, len(batch[0]))
