"""What a run costs: what it took to train, what it takes to keep and to use."""

from __future__ import annotations

from typing import NamedTuple

from weft.log import read_log
from weft.runs.run_dir import RunDir


class Cost(NamedTuple):
    """Of one run; None where its files don't say."""

    num_parameters: int
    seconds: float | None  # of training
    tokens_per_second: float | None  # in training
    peak_memory: int | None  # bytes, in training
    bytes: int  # of the weights, or counts, on disk
    decoding: float  # how many units a second, measured while the evidence was gathered
    unit: str  # of decoding: "lines/s", "tokens/s scored"


def compute_cost(directory: RunDir, parameters: int, *, decoding: float, unit: str) -> Cost:
    """The cost of the run in `folder`; what training took is in its timings.jsonl."""
    timings = read_log(directory.path / "timings.jsonl")
    last = timings[-1] if timings else {}
    # a run that was resumed has a line of each process, and each has its own peak
    peaks = [int(record["peak_memory"]) for record in timings if record.get("peak_memory")]
    return Cost(
        num_parameters=parameters,
        seconds=last.get("seconds"),
        tokens_per_second=last.get("tokens_per_second"),
        peak_memory=max(peaks, default=None),
        bytes=directory.weights.stat().st_size,
        decoding=decoding,
        unit=unit,
    )
