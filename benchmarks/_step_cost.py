"""A model of the time of a training step on several processes, from bytes and latency.

A process sends, in a step with n processes and weights of B bytes (gradients have as many):

    DDP       2 (n-1)/n B for gradients: an all-reduce per bucket
    FSDP2     (n-1)/n B for the weights of all layers, again for the backward pass (not for those outside of the layers), and
              (n-1)/n B to scatter the gradients; gloo scatters them with an all-reduce, which sends twice as much
    Muon      (n-1)/n B of the matrices that it updates: with DDP, an all-gather per shape; with FSDP2, two all-to-all per
              shape, each of (n-1)/n B/n
    always    two all-reduce of a few numbers: loss and counts, and whether to stop; with FSDP2 a third one: the gradient norm

Validation adds up a few sums, once per validation, and is not in the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

FLOAT_BYTES = 4
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20  # of DistributedDataParallel
FORWARD = 1 / 3  # of the time to compute a step; the rest is the backward pass
NUMBER_BYTES = 8


class Layout(NamedTuple):
    """The weights of a model."""

    outside: Sequence[Sequence[int]]  # shapes of the weights outside of the layers, such as embeddings
    layers: Sequence[Sequence[Sequence[int]]]  # shapes of the weights of each layer
    muon: Sequence[tuple[int, Sequence[int]]] = ()  # number of matrices of each shape that Muon updates

    @property
    def shapes(self) -> list[Sequence[int]]:
        return [*self.outside, *(shape for layer in self.layers for shape in layer)]

    @property
    def num_bytes(self) -> int:
        return FLOAT_BYTES * sum(map(prod, self.shapes))


class Exchange(NamedTuple):
    """A collective operation: of the whole tensor, or for all_to_all of the tensor of a process."""

    kind: str
    num_bytes: int
    is_small: bool = False  # a few numbers of NUMBER_BYTES each

    def sent_bytes(self, n: int) -> float:
        """What a process sends, with ring algorithms."""
        return {"all_reduce": 2.0, "all_gather": 1.0, "all_to_all": 1.0}[self.kind] * self.num_bytes * (n - 1) / n


class Network(NamedTuple):
    """The network between processes of gloo."""

    latency: float  # seconds, in one direction
    bytes_per_second: float
    hop_seconds: float = 0.0  # of software per message

    def seconds(self, exchange: Exchange, n: int) -> float:
        """The duration of an exchange."""
        return self.delay_seconds(exchange, n) + self.transfer_seconds(exchange, n)

    def delay_seconds(self, exchange: Exchange, n: int) -> float:
        """What it takes without any bytes. A message takes two ways: it is sent when the receiver has announced itself."""
        return 2 * _rounds(exchange, n) * (self.latency + self.hop_seconds)

    def transfer_seconds(self, exchange: Exchange, n: int) -> float:
        """The time of its bytes. gloo gathers halves, and does not send the second one while it receives the first one."""
        factor = 1 + 1 / (2 * (n - 1)) if exchange.kind == "all_gather" else 1.0
        return factor * exchange.sent_bytes(n) / self.bytes_per_second


def _rounds(exchange: Exchange, n: int) -> int:
    """A ring takes n - 1 rounds to add up, and n - 1 to distribute; an all-to-all takes one. gloo divides a tensor into 2n
    pieces and skips empty ones: a few numbers take fewer rounds."""
    few = -(-exchange.num_bytes // (2 * NUMBER_BYTES)) if exchange.is_small else n - 1
    return {"all_reduce": 2 * min(n - 1, few), "all_gather": n - 1, "all_to_all": 1}[exchange.kind]


def buckets(shapes: Iterable[Sequence[int]]) -> list[int]:
    """The bytes of the buckets of gradients, in the order of the backward pass."""
    found, limit = [0], FIRST_BUCKET_BYTES
    for shape in reversed(list(shapes)):
        if found[-1] >= limit:
            found.append(0)
            limit = BUCKET_BYTES
        found[-1] += FLOAT_BYTES * prod(shape)
    return found


def padded_bytes(shapes: Iterable[Sequence[int]], n: int) -> int:
    """The bytes of weights that are divided by rows among n processes, with padding."""
    return FLOAT_BYTES * sum(-(-shape[0] // n) * n * prod(shape[1:]) for shape in shapes)


class Step(NamedTuple):
    """The exchanges of a step."""

    overlapped: Sequence[Exchange]  # while the backward pass computes, in this order
    serial: Sequence[Exchange]  # while nothing computes

    def sent_bytes(self, n: int) -> float:
        return sum(exchange.sent_bytes(n) for exchange in (*self.overlapped, *self.serial))

    def seconds(self, network: Network, n: int, compute: float) -> float:
        """The duration of a step that takes `compute` seconds on one process with its part of the batch."""
        return _overlap(self.overlapped, network, n, compute) + sum(network.seconds(exchange, n) for exchange in self.serial)


def _overlap(exchanges: Sequence[Exchange], network: Network, n: int, compute: float) -> float:
    """The time until the backward pass and the exchange of all buckets are done. A bucket is ready when its part of the
    backward pass is. Buckets share the bandwidth; the next one does not wait for the latency of the one before."""
    total, free, end = sum(exchange.num_bytes for exchange in exchanges), 0.0, 0.0
    for exchange, done in zip(exchanges, accumulate(exchange.num_bytes for exchange in exchanges), strict=True):
        ready = compute * (FORWARD + (1 - FORWARD) * done / total)
        free = max(ready, free) + network.transfer_seconds(exchange, n)
        end = max(end, free + network.delay_seconds(exchange, n))
    return max(compute, end)


def _small_exchanges(sizes: Iterable[int]) -> list[Exchange]:
    return [Exchange("all_reduce", size * NUMBER_BYTES, is_small=True) for size in sizes]


def ddp_step(layout: Layout, n: int) -> Step:
    """A step of DistributedDataParallel."""
    small = _small_exchanges([3, 2])  # loss and counts, whether to stop and to save
    muon = [Exchange("all_gather", -(-count // n) * n * FLOAT_BYTES * prod(shape)) for count, shape in layout.muon]
    return Step([Exchange("all_reduce", size) for size in buckets(layout.shapes)], [*small, *muon])


def fsdp_step(layout: Layout, n: int) -> Step:
    """A step of FSDP2 on CPUs with gloo, where nothing overlaps."""
    layers, outside = [padded_bytes(layer, n) for layer in layout.layers], padded_bytes(layout.outside, n)
    gathered = [Exchange("all_gather", size) for size in (*layers, *layers, outside)]
    scattered = [Exchange("all_reduce", size) for size in (*layers, outside)]
    muon = [Exchange("all_to_all", count * padded_bytes([shape], n) // n) for count, shape in layout.muon for _ in range(2)]
    return Step([], [*gathered, *scattered, *muon, *_small_exchanges([3, 1, 2])])  # also the gradient norm


STEPS = {"ddp": ddp_step, "fsdp": fsdp_step}
