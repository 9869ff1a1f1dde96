"""What a run costs: what it took to train, what it takes to keep and to use."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from weft.train.folder import RunFolder


class Cost(NamedTuple):
    """Of one run; None where its files don't say."""

    parameters: int
    seconds: float | None  # of training
    tokens_per_second: float | None  # in training
    peak_memory: int | None  # bytes, in training
    bytes: int  # of the weights, or counts, on disk
    decoding: float  # how many units a second, measured while the evidence was gathered
    unit: str  # of decoding: "lines/s", "tokens/s scored"


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl or timings.jsonl; a last one that is torn, or a file that is not there, is left out."""
    found = []
    with suppress(FileNotFoundError):
        for line in path.read_bytes().split(b"\n"):
            with suppress(ValueError, RecursionError):
                record = json.loads(line)
                found += [record] if isinstance(record, dict) else []
    return found


def cost(folder: RunFolder, parameters: int, *, decoding: float, unit: str) -> Cost:
    """The cost of the run in `folder`; what training took is in its timings.jsonl."""
    timings = read_log(folder.path / "timings.jsonl")
    last = timings[-1] if timings else {}
    # a run that was resumed has a line of each process, and each has its own peak
    peaks = [int(record["peak_memory"]) for record in timings if record.get("peak_memory")]
    return Cost(
        parameters=parameters,
        seconds=last.get("seconds"),
        tokens_per_second=last.get("tokens_per_second"),
        peak_memory=max(peaks, default=None),
        bytes=folder.weights.stat().st_size,
        decoding=decoding,
        unit=unit,
    )
