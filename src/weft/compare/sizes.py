"""Networks of like size: the width at which a kind has about so many parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from weft.compare.fitting import everywhere, tried
from weft.errors import ConfigError

# fine steps where one more is a large share of the whole; coarse ones where processors like round numbers
WIDTHS = (*range(2, 128, 2), *range(128, 512, 4), *range(512, 4096, 8), *range(4096, 65537, 64))
NEAR = 64  # widths that are looked at for one that the heads divide


class Sized(NamedTuple):
    values: dict[str, Any]  # a run file
    width: int
    parameters: int


def sized(values: Mapping[str, Any], target: int, tokenizer: Any, *, base: Path) -> Sized:
    """The run file with the width whose number of parameters is nearest to `target`."""
    last: list[ConfigError] = []

    def at(index: int) -> Sized | None:
        changed = everywhere(values, "width", WIDTHS[index])
        settings = tried(changed, base=base)
        if isinstance(settings, ConfigError):
            last.append(settings)
            return None
        found = settings.preset.estimator.parameters(settings, tokenizer)
        return None if found is None else Sized(changed, WIDTHS[index], found)

    def first(indices: range) -> Sized | None:
        return next((found for found in map(at, indices) if found is not None), None)

    low, high = 0, len(WIDTHS)
    while low < high:  # parameters grow with the width: halve the list until one side has too few and the other enough
        middle = (low + high) // 2
        found = first(range(middle, min(middle + NEAR, len(WIDTHS))))
        if found is not None and found.parameters < target:
            low = WIDTHS.index(found.width) + 1
        else:
            high = middle
    above = first(range(low, min(low + NEAR, len(WIDTHS))))
    below = first(range(low - 1, max(-1, low - 1 - NEAR), -1))
    near = [found for found in (below, above) if found is not None]
    if not near:
        raise ConfigError(f"--params: no width fits: {last[-1] if last else 'the model has none'}")
    return min(near, key=lambda found: abs(found.parameters - target))
