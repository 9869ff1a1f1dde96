"""The search space of models that are fitted in one pass: which options a search may change, and their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.comparison.applicable_options import flatten_options, with_option
from weft.runs.config import RunConfig
from weft.tasks.spec import SearchDimension


def initial_values(config: RunConfig, fixed: Sequence[str] = ()) -> dict[str, Any]:
    """The run file's values of the options that are searched."""
    options = flatten_options(config.to_dict()["model"])
    dimensions = [
        dimension for dimension in config.preset.search_space if dimension.option not in fixed and _applies(dimension, options)
    ]
    return {dimension.option: options.get(dimension.option) for dimension in dimensions}


def _applies(dimension: SearchDimension, options: Mapping[str, Any]) -> bool:
    return dimension.requires is None or options.get(dimension.requires[0]) == dimension.requires[1]


def sample_config(config: RunConfig, fixed: Sequence[str], random: np.random.Generator) -> dict[str, Any]:
    """Draw a value of each option, always in the same order, so that the generator determines all of them."""
    options, chosen = flatten_options(config.to_dict()["model"]), dict[str, Any]()
    for dimension in config.preset.search_space:
        value = dimension.values[int(random.integers(len(dimension.values)))]  # drawn even if it is not used
        if dimension.option not in fixed and _applies(dimension, {**options, **chosen}):
            chosen[dimension.option] = value
    return chosen


def with_choices(values: Mapping[str, Any], config: RunConfig, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The run file with the drawn values, without options that do not apply to them."""
    options, new = {**flatten_options(config.to_dict()["model"]), **chosen}, dict(values)
    for dimension in config.preset.search_space:
        if dimension.option in chosen:
            new = with_option(new, f"model.{dimension.option}", chosen[dimension.option])
        elif not _applies(dimension, options) and dimension.option in flatten_options(new["model"]):
            new = with_option(new, f"model.{dimension.option}", None)
    return new
