"""The search space of models that are fitted in one pass: which options a search may change, and their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.comparison.applicable_options import leaves, with_option
from weft.runs.config import RunConfig
from weft.tasks.spec import SearchDimension


def own_values(config: RunConfig, fixed: Sequence[str] = ()) -> dict[str, Any]:
    """The run file's values of the options that are searched."""
    known = leaves(config.to_dict()["model"])
    choices = [
        dimension for dimension in config.preset.search_space if dimension.option not in fixed and _applies(dimension, known)
    ]
    return {dimension.option: known.get(dimension.option) for dimension in choices}


def _applies(choice: SearchDimension, known: Mapping[str, Any]) -> bool:
    return choice.requires is None or known.get(choice.requires[0]) == choice.requires[1]


def sample_config(config: RunConfig, fixed: Sequence[str], random: np.random.Generator) -> dict[str, Any]:
    """Draw a value of each option, always in the same order, so that the generator determines all of them."""
    known, chosen = leaves(config.to_dict()["model"]), dict[str, Any]()
    for dimension in config.preset.search_space:
        value = dimension.values[int(random.integers(len(dimension.values)))]  # drawn even if it is not used
        if dimension.option not in fixed and _applies(dimension, {**known, **chosen}):
            chosen[dimension.option] = value
    return chosen


def with_choices(values: Mapping[str, Any], config: RunConfig, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The run file with the drawn values, without options that do not apply to them."""
    known, new = {**leaves(config.to_dict()["model"]), **chosen}, dict(values)
    for dimension in config.preset.search_space:
        if dimension.option in chosen:
            new = with_option(new, f"model.{dimension.option}", chosen[dimension.option])
        elif not _applies(dimension, known) and dimension.option in leaves(new["model"]):
            new = with_option(new, f"model.{dimension.option}", None)
    return new
