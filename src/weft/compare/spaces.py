"""What a search may change of a model that is counted or solved in one go, and which values it may try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.compare.fitting import leaves, with_option
from weft.runs.settings import Settings


class Choice(NamedTuple):
    option: str  # of [model], such as "features.ngrams"
    values: Sequence[Any]
    beside: tuple[str, Any] | None = None  # it means something only where another option has this value


SPACES: Mapping[str, Sequence[Choice]] = {
    "naive-bayes": (
        Choice("alpha", (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)),
        Choice("events", ("multinomial", "bernoulli")),
        Choice("features.ngrams", ([1, 1], [1, 2], [1, 3])),
        Choice("features.binary", (False, True), ("events", "multinomial")),
        Choice("features.tfidf", (False, True), ("events", "multinomial")),
    ),
    "regression": (
        Choice("C", (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)),
        Choice("features.ngrams", ([1, 1], [1, 2], [1, 3])),
        Choice("features.sublinear", (False, True)),
        Choice("features.min_count", (1, 2)),
    ),
    "ngram": (
        Choice("order", (2, 3, 4, 5, 6, 7, 8)),
        Choice("smoothing", ("kneser-ney", "back-off", "add-delta")),
        Choice("delta", (0.001, 0.01, 0.1, 0.5), ("smoothing", "add-delta")),
    ),
}


def own(settings: Settings, fixed: Sequence[str] = ()) -> dict[str, Any]:
    """What the run file has of the options that are searched."""
    known = leaves(settings.to_dict()["model"])
    return {one.option: known.get(one.option) for one in SPACES[settings.kind] if one.option not in fixed and _fits(one, known)}


def _fits(choice: Choice, known: Mapping[str, Any]) -> bool:
    return choice.beside is None or known.get(choice.beside[0]) == choice.beside[1]


def draw(settings: Settings, fixed: Sequence[str], random: np.random.Generator) -> dict[str, Any]:
    """A value of each option, in an order that is always the same: the generator decides all of them."""
    known, chosen = leaves(settings.to_dict()["model"]), dict[str, Any]()
    for one in SPACES[settings.kind]:
        value = one.values[int(random.integers(len(one.values)))]  # thrown whether it is used or not
        if one.option not in fixed and _fits(one, {**known, **chosen}):
            chosen[one.option] = value
    return chosen


def changed(values: Mapping[str, Any], settings: Settings, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The run file with what was drawn, without what means nothing beside it."""
    known, new = {**leaves(settings.to_dict()["model"]), **chosen}, dict(values)
    for one in SPACES[settings.kind]:
        if one.option in chosen:
            new = with_option(new, f"model.{one.option}", chosen[one.option])
        elif not _fits(one, known) and one.option in leaves(new["model"]):
            new = with_option(new, f"model.{one.option}", None)
    return new
