"""Networks of like size: the width at which a kind has about so many parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from weft.comparison.applicable_options import everywhere, try_config
from weft.errors import ConfigError

# fine steps where one more is a large share of the whole; coarse ones where processors like round numbers
HIDDEN_SIZES = (*range(2, 128, 2), *range(128, 512, 4), *range(512, 4096, 8), *range(4096, 65537, 64))
TOLERANCE = 64  # widths that are looked at for one that the heads divide


class SizedConfig(NamedTuple):
    values: dict[str, Any]  # a run file
    hidden_size: int
    parameters: int


def match_num_params(values: Mapping[str, Any], target: int, tokenizer: Any, *, base: Path) -> SizedConfig:
    """The run file with the width whose number of parameters is nearest to `target`."""
    last: list[ConfigError] = []

    def at(index: int) -> SizedConfig | None:
        changed = everywhere(values, "width", HIDDEN_SIZES[index])
        config = try_config(changed, base=base)
        if isinstance(config, ConfigError):
            last.append(config)
            return None
        found = config.preset.estimator.num_parameters(config, tokenizer)
        return None if found is None else SizedConfig(changed, HIDDEN_SIZES[index], found)

    def first(indices: range) -> SizedConfig | None:
        return next((found for found in map(at, indices) if found is not None), None)

    low, high = 0, len(HIDDEN_SIZES)
    while low < high:  # parameters grow with the width: halve the list until one side has too few and the other enough
        middle = (low + high) // 2
        found = first(range(middle, min(middle + TOLERANCE, len(HIDDEN_SIZES))))
        if found is not None and found.parameters < target:
            low = HIDDEN_SIZES.index(found.hidden_size) + 1
        else:
            high = middle
    above = first(range(low, min(low + TOLERANCE, len(HIDDEN_SIZES))))
    below = first(range(low - 1, max(-1, low - 1 - TOLERANCE), -1))
    near = [found for found in (below, above) if found is not None]
    if not near:
        raise ConfigError("--match-params", f"no width fits: {last[-1] if last else 'the model has none'}")
    return min(near, key=lambda found: abs(found.parameters - target))
