"""Networks of equal size: the hidden size at which a network has about a target number of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from weft.comparison.applicable_options import try_config, with_model_option
from weft.errors import ConfigError

# fine steps for small sizes; multiples of 8 and 64 for large ones, which hardware prefers
HIDDEN_SIZES = (*range(2, 128, 2), *range(128, 512, 4), *range(512, 4096, 8), *range(4096, 65537, 64))
MAX_TRIES = 64  # hidden sizes to try until one is valid: num_heads must divide it


class SizedConfig(NamedTuple):
    values: dict[str, Any]  # a run file
    hidden_size: int
    num_parameters: int


def match_num_params(values: Mapping[str, Any], target: int, tokenizer: Any, *, base: Path) -> SizedConfig:
    """The run file with the hidden size whose number of parameters is nearest to `target`."""
    errors: list[ConfigError] = []

    def try_size(index: int) -> SizedConfig | None:
        changed = with_model_option(values, "hidden_size", HIDDEN_SIZES[index])
        config = try_config(changed, base=base)
        if isinstance(config, ConfigError):
            errors.append(config)
            return None
        count = config.preset.estimator.num_parameters(config, tokenizer)
        return None if count is None else SizedConfig(changed, HIDDEN_SIZES[index], count)

    def first_valid(indices: range) -> SizedConfig | None:
        return next((config for config in map(try_size, indices) if config is not None), None)

    low, high = 0, len(HIDDEN_SIZES)
    while low < high:  # the count grows with the hidden size: binary search
        middle = (low + high) // 2
        config = first_valid(range(middle, min(middle + MAX_TRIES, len(HIDDEN_SIZES))))
        if config is not None and config.num_parameters < target:
            low = HIDDEN_SIZES.index(config.hidden_size) + 1
        else:
            high = middle
    above = first_valid(range(low, min(low + MAX_TRIES, len(HIDDEN_SIZES))))
    below = first_valid(range(low - 1, max(-1, low - 1 - MAX_TRIES), -1))
    candidates = [config for config in (below, above) if config is not None]
    if not candidates:
        raise ConfigError("match_params", f"no hidden size works: {errors[-1] if errors else 'the model has none'}")
    return min(candidates, key=lambda config: abs(config.num_parameters - target))
