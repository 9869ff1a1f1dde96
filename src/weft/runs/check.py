"""`weft.check`: find problems in the data of a run file before training."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from weft.config import Overrides, read_run_file
from weft.data.check import check_data
from weft.data.findings import Finding
from weft.runs.recommend import recommend_if_readable


def check(run_file: str | Path | Mapping[str, Any], *, overrides: Overrides = ()) -> list[Finding]:
    """Read the data of a run file and report problems that would make a run silently worse.

    Args:
        run_file: A path, or the run file as a dict.
        overrides: Options to change, as in `weft.train`.

    Returns:
        The findings, errors first. Each has `severity`, `name`, `split`, `count`, `message`, `locations`, `examples` and `fix`.

    Raises:
        ConfigError: The run file or an override is invalid.

    Example:
        >>> for finding in weft.check("run.toml"):
        ...     print(finding.severity, finding.split, finding.message)
    """
    values, base, _ = read_run_file(run_file, overrides)
    config = recommend_if_readable(values, base=base).config
    plan = config.spec.data.check(config)
    return list(check_data(config.datasets, cache(plan.tokenizers), plan.options, plan.more).findings)
