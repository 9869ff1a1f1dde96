"""What a run will need, worked out before anything large is allocated."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import nn

from weft.data.batch import WHOLE, map_tensors
from weft.data.corpus import Corpus
from weft.errors import ResourceError
from weft.models.ngram import estimate_memory
from weft.resources import free, measure_peak_memory, size
from weft.training.config import TrainConfig
from weft.training.loop import DeviceConfig
from weft.training.loss_module import LossModule

AnyBatch = tuple[Any, ...]  # tensors with rows first
Widest = Callable[[Fraction], AnyBatch]  # the largest batch, with its rows shortened to a share of their positions

FIRST = 1024  # positions of a row that are run without asking
# What a process takes for what is alive: the C library's allocator keeps pieces between others that it can't use, of a small
# batch about as much again. The allocator of a GPU keeps next to nothing, and says so when there is no more.
KEPT, KEPT_MOST = {"cpu": 1.3, "cuda": 1.0}, {"cpu": 250_000_000, "cuda": 0}
MOMENTS = {"adamw": 2, "muon": 2, "sgd": 1}  # tensors an optimiser keeps for each weight, at most


def check_weights(build_model: Callable[[], nn.Module], config: TrainConfig, device: torch.device) -> int:
    """Refuse a model whose weights, gradients, averages and optimiser do not fit; the number of its parameters."""
    with torch.device("meta"):
        weights = sum(weight.numel() for weight in build_model().parameters())
    averages = "" if config.ema_decay == "none" else ", averages"
    needed = weights * 4 * (2 + bool(averages) + MOMENTS[config.optimizer])
    if needed > (there := free(device)):
        raise ResourceError(
            "model",
            f"{weights} parameters need {size(needed)} for weights, gradients{averages} and {config.optimizer}, but {size(there)} are free",
            "lower model.hidden_size or model.num_layers",
        )
    return weights


def check_counts(corpus: Corpus, batch_sampler: int, *, words: int) -> int:
    """Refuse a text whose n-grams do not fit while they are counted and smoothed; the bytes that they need."""
    there = free(torch.device("cpu"))
    needed = estimate_memory(corpus.tokens, corpus.starts, order=batch_sampler, size=words, room=there)
    if needed > there:
        raise ResourceError(
            "model.order",
            f"n-grams of up to {batch_sampler} of {len(corpus.tokens)} tokens need about {size(needed)} to be counted, but {size(there)} are free",
            "lower model.order, or give less text",
        )
    return needed


def check_batch(loss_module: LossModule, widest: Widest, config: TrainConfig, device_config: DeviceConfig) -> int:
    """Refuse a batch whose activations and gradients do not fit, by running a few of its rows; the bytes it takes at most.

    Of long rows first a part is run, and then more, as far as that is needed to know: what is refused is refused before it
    takes the memory.
    """
    batch = widest(WHOLE)
    width = max(part.size(1) for part in batch if part is not None and part.dim() > 1)
    rows = -(-len(batch[0]) // config.micro_batches)
    length, weights = min(width, FIRST), 4 * sum(weight.numel() for weight in loss_module.parameters())
    later = weights * (MOMENTS[config.optimizer] + (config.ema_decay != "none"))  # what the first update adds and keeps
    # of a batch in parts, the gradients of those before are there all the while
    held = weights if rows < len(batch[0]) else 0
    while True:
        here = batch_bytes(loss_module, map_tensors(widest(Fraction(length, width)), lambda part: part[:rows]), device_config)
        grows, there = max(0, here - weights), max(0, free(device_config.device) - later)  # gradients are as large as ever
        # what a row takes grows with its length at least, and with its square at most
        alive = (here - grows + grows * width**power // length**power for power in (1, 2))
        needed, limit = (held + _memory_in_use(each, device_config.device.type) for each in alive)
        if needed > there:
            fix = f"lower train.batch_tokens, or raise train.micro_batches from {config.micro_batches}"
            raise ResourceError(
                "train.batch_tokens",
                f"{rows} rows of {width - 1} tokens need about {size(needed)} for activations and gradients, but {size(there)} are free",
                f"{fix if rows > 1 else 'lower data.context_length, or cut the longest lines'}",
            )
        if limit <= there:
            return limit
        length = min(width, 2 * length, max(length + 1, int(length * (there / here) ** 0.5)))


def _memory_in_use(alive: int, device: str) -> int:
    """Bytes that a process takes for so many that are alive."""
    return int(KEPT[device] * alive) + min(alive, KEPT_MOST[device])


def batch_bytes(loss_module: LossModule, batch: AnyBatch, device_config: DeviceConfig) -> int:
    """The most bytes alive at once on the way there and back, gradients of weights among them.

    Where a state is carried, the batch is read on top of one: attention sees the window before it as well.
    """
    weights = [weight for weight in loss_module.parameters() if weight.requires_grad]

    def there_and_back(rows: int) -> None:
        some = device_config.to_device(map_tensors(batch, lambda part: part[:rows]))
        with torch.no_grad(), device_config.autocast():
            carry = loss_module(some, None).carry
        with device_config.autocast():
            total = loss_module(some, carry).total
        torch.autograd.grad(total, weights, allow_unused=True)  # leaves no gradient behind

    return measure_peak_memory(there_and_back, len(batch[0]))
