"""`weft.check`: what is wrong with the data of a run file, before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from weft.config import Overrides, read_run_file
from weft.data.check import check_data
from weft.data.findings import Finding
from weft.runs.resolve import resolve


def check(run_file: str | Path | Mapping[str, Any], *, overrides: Overrides = ()) -> list[Finding]:
    """Read the data of a run file, and report what ruins runs silently.

    Args:
        run_file: A path, or the run file as a dict.
        overrides: Options to change, as in `weft.training`.

    Returns:
        What was found, errors first; each has `severity`, `split`, `what`, `where`, `examples` and `cure`.

    Raises:
        ConfigError: The run file or an override is wrong.

    Example:
        >>> for finding in weft.check("run.toml"):
        ...     print(finding.severity, finding.split, finding.what)
    """
    values, base, _ = read_run_file(run_file, overrides)
    config = resolve(values, base=base)
    plan, tokenizers = config.spec.data.check(config)
    return list(check_data(config.datasets, cache(tokenizers), plan).findings)
