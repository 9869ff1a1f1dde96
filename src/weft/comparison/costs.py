"""The costs of a run: training, storage and inference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from weft.log import read_log
from weft.runs.machine import read_machines, this_machine
from weft.runs.run_dir import RunDir

if TYPE_CHECKING:
    from torch import nn


class Cost(NamedTuple):
    """The costs of one run; None where its files do not record them."""

    num_parameters: int
    seconds: float | None  # of training
    tokens_per_second: float | None  # in training
    peak_memory: int | None  # bytes, in training
    model_bytes: int  # size of the weights or counts on disk
    inference_rate: float  # units per second, timed during the evaluation
    inference_unit: str  # "lines/s", "tokens/s scored"
    num_active_parameters: int | None = None  # that one token uses, in a mixture of experts; None: all
    train_hosts: tuple[str, ...] = ()  # in order; empty if they are not recorded
    train_hardware: tuple[str, ...] = ()  # "AMD EPYC 7763, 8 threads"
    inference_host: str = ""
    inference_hardware: str = ""

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of `_asdict`, after JSON has turned tuples into lists."""
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        return cls(**values)


def active_parameters(network: nn.Module | None) -> int | None:
    """The number of parameters that one token uses, for a mixture of experts; None for other models: all."""
    if network is None:
        return None
    from weft.nn.experts import expert_layers, num_active_parameters

    return num_active_parameters(network) if expert_layers(network) else None


def compute_cost(
    directory: RunDir,
    num_parameters: int,
    *,
    inference_rate: float,
    inference_unit: str,
    num_active_parameters: int | None = None,
) -> Cost:
    """The cost of a run; the training part comes from its timings.jsonl."""
    timings = read_log(directory.path / "timings.jsonl")
    last = timings[-1] if timings else {}
    # a resumed run has one line per process, each with its own peak
    machines, current = read_machines(directory.path), this_machine()
    peaks = [int(record["peak_memory"]) for record in timings if record.get("peak_memory")]
    return Cost(
        num_parameters=num_parameters,
        seconds=last.get("seconds"),
        tokens_per_second=last.get("tokens_per_second"),
        peak_memory=max(peaks, default=None),
        model_bytes=directory.weights.stat().st_size,
        inference_rate=inference_rate,
        inference_unit=inference_unit,
        num_active_parameters=num_active_parameters,
        train_hosts=tuple(dict.fromkeys(machine.host for machine in machines)),
        train_hardware=tuple(dict.fromkeys(machine.hardware for machine in machines)),
        inference_host=current.host,
        inference_hardware=current.hardware,
    )
