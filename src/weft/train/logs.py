"""The lines of metrics.jsonl and timings.jsonl as they are read back: numbers by name, and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from weft import files
from weft.errors import ModelError, ResourceError

LONGEST_LINE = 1 << 20  # bytes; a line that weft writes has a few hundred
LONGEST_FILE = 256 << 20
_LARGEST = 1 << 53  # whole numbers beyond it are no counts


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or value is None:
        return True
    if isinstance(value, int):
        return abs(value) <= _LARGEST
    return isinstance(value, float) and math.isfinite(value)


def _is_record(value: Any) -> bool:
    """Whether it is what a run logs: a step, and numbers."""
    if not isinstance(value, dict) or not all(map(_is_number, value.values())):
        return False
    step = value.get("step")
    return isinstance(step, int) and not isinstance(step, bool) and step >= 0


def _lines(path: Path) -> Iterator[bytes]:
    files.refuse_device(path)
    try:
        if path.stat().st_size > LONGEST_FILE:
            raise ModelError(f"{path}: is larger than {LONGEST_FILE >> 20} MB; no log of a run is")
        with path.open("rb") as file:
            while line := file.readline(LONGEST_LINE):
                yield line
    except FileNotFoundError:
        return
    except OSError as error:
        raise ResourceError(f"{path}: can't be read: {error.strerror}") from None


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records of a log, up to a line that a killed process left torn; none where there is no log. A line that no run has
    written is refused by its number."""
    found: list[dict[str, Any]] = []
    for line in _lines(path):
        try:
            record = json.loads(line)
        except RecursionError:
            record = None
        except ValueError:
            break
        if not _is_record(record):
            raise ModelError(f"{path}: line {len(found) + 1} is no record of a run; the file is damaged")
        found.append(record)
    return found
