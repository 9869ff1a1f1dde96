"""What a search may change of a model that is counted or solved in one go, and which values it may try."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.comparison.applicable_options import leaves, with_option
from weft.runs.config import RunConfig
from weft.tasks.spec import SearchDimension


def own_dimensions(config: RunConfig, fixed: Sequence[str] = ()) -> dict[str, Any]:
    """What the run file has of the options that are searched."""
    known = leaves(config.to_dict()["model"])
    choices = [one for one in config.preset.choices if one.option not in fixed and _fits(one, known)]
    return {one.option: known.get(one.option) for one in choices}


def _fits(choice: SearchDimension, known: Mapping[str, Any]) -> bool:
    return choice.requires is None or known.get(choice.requires[0]) == choice.requires[1]


def sample_config(config: RunConfig, fixed: Sequence[str], random: np.random.Generator) -> dict[str, Any]:
    """A value of each option, in an order that is always the same: the generator decides all of them."""
    known, chosen = leaves(config.to_dict()["model"]), dict[str, Any]()
    for one in config.preset.choices:
        value = one.values[int(random.integers(len(one.values)))]  # thrown whether it is used or not
        if one.option not in fixed and _fits(one, {**known, **chosen}):
            chosen[one.option] = value
    return chosen


def changed(values: Mapping[str, Any], config: RunConfig, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The run file with what was drawn, without what means nothing beside it."""
    known, new = {**leaves(config.to_dict()["model"]), **chosen}, dict(values)
    for one in config.preset.choices:
        if one.option in chosen:
            new = with_option(new, f"model.{one.option}", chosen[one.option])
        elif not _fits(one, known) and one.option in leaves(new["model"]):
            new = with_option(new, f"model.{one.option}", None)
    return new
