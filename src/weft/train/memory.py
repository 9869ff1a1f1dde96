"""What a run will need, worked out before anything large is allocated."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.data.order import Batch
from weft.errors import ResourceError
from weft.train.learner import Learner
from weft.train.loop import Place
from weft.train.tables import TrainTable

FIRST = 4096  # positions of a row that are run without asking
MOMENTS = {"adamw": 2, "muon": 2, "sgd": 1}  # tensors an optimiser keeps for each weight, at most


def size(number: float) -> str:
    """1234567 -> '1.2 MB'."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000 or unit == "TB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return ""


def free(device: torch.device) -> int:
    """Bytes that can still be had: of the GPU, or of the machine, less what a container is held to."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")]
    status = Path("/proc/meminfo")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().split("\n") if ":" in line)
        found = [int(lines["MemAvailable"].split()[0]) * 1024]
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        found.append(int(limit.read_text()) - int(used.read_text()))
    return max(0, min(found))


def check_weights(build: Callable[[], nn.Module], table: TrainTable, device: torch.device) -> int:
    """Refuse a model whose weights, gradients and optimiser do not fit; the number of its parameters."""
    with torch.device("meta"):
        weights = sum(weight.numel() for weight in build().parameters())
    needed = weights * 4 * (2 + MOMENTS[table.optimizer])
    if needed > (there := free(device)):
        raise ResourceError(
            f"model: {weights} parameters need {size(needed)} for weights, gradients and {table.optimizer}, "
            f"but {size(there)} are free; lower model.width or model.layers"
        )
    return weights


def check_batch(learner: Learner, batch: Batch, table: TrainTable, place: Place) -> int:
    """Refuse a batch whose activations do not fit, by running one row of the largest one; the bytes of the batch.

    Of a long row first a part is run, then twice as much: what is refused is refused before it takes the memory.
    """
    width, rows = batch.tokens.size(1) - 1, -(-batch.tokens.size(0) // table.accumulate)
    length = min(width, FIRST)
    while True:
        keep = None if batch.keep is None else batch.keep[:1, : length + 1]
        each = row_bytes(learner, place.moved(Batch(batch.tokens[:1, : length + 1], keep)), place)
        needed, there = rows * each * width // length, free(place.device)
        # twice the positions take up to four times the memory, and as much again on the way
        if needed > there or (length < width and 8 * each > there):
            cure = f"lower train.batch_tokens, or raise train.accumulate from {table.accumulate}"
            raise ResourceError(
                f"train.batch_tokens: {rows} rows of {width} tokens need about {size(needed)} for activations, "
                f"but {size(there)} are free; {cure if rows > 1 else 'lower data.window, or cut the longest lines'}"
            )
        if length == width:
            return needed
        length = min(width, 2 * length)


def row_bytes(learner: Learner, row: Batch, place: Place) -> int:
    """What one row holds on to from the way there to the way back.

    Where a state is carried, the row is read on top of one: attention sees the window before it as well.
    """
    kept: dict[int, Tensor] = {}

    def note(part: Tensor) -> Tensor:
        kept[part.data_ptr()] = part
        return part

    own = {weight.data_ptr() for weight in learner.parameters()}
    with torch.no_grad(), place.autocast():
        carry = learner(row, None).carry
    with torch.autograd.graph.saved_tensors_hooks(note, _same), place.autocast():
        learner(row, carry)
    saved = [part for address, part in kept.items() if address not in own]
    # on the way back there is the gradient of the largest, most often the scores of all words, and that of what made it
    largest = max((part.nbytes for part in saved if part.is_floating_point()), default=0)
    return int(sum(part.nbytes for part in saved) + 2 * largest)


def _same(part: Any) -> Any:
    return part
