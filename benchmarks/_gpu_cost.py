"""A prediction of the efficiency of 64 GPUs, on paper: nothing here is measured. It prints its assumptions."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from _step_cost import BUCKET_BYTES, FIRST_BUCKET_BYTES, FLOAT_BYTES, FORWARD

PEAK_FLOPS = 989e12  # of an H200, bfloat16 without sparsity
UTILIZATION = 0.4  # of it, by one GPU alone
LINE_EFFICIENCY = 0.8  # of the bandwidth of a link, by NCCL with large messages
INSIDE_LATENCY, BETWEEN_LATENCY = 3e-6, 10e-6  # seconds per round, inside a host and between hosts
SMALL_EXCHANGES = {"ddp": 2, "fsdp": 3}


class Model(NamedTuple):
    """A GPT whose embedding is shared with the output layer."""

    name: str
    num_layers: int
    hidden_size: int
    vocab_size: int = 50_304

    @property
    def layer_parameters(self) -> int:
        return 12 * self.hidden_size**2

    @property
    def num_parameters(self) -> int:
        return self.num_layers * self.layer_parameters + self.vocab_size * self.hidden_size


class Cluster(NamedTuple):
    """Hosts with GPUs."""

    name: str
    hosts: int
    gpus: int  # per host
    inside: float  # bytes per second and direction of a GPU to the others of its host
    between: float  # of a GPU to other hosts

    @property
    def size(self) -> int:
        return self.hosts * self.gpus

    def delay(self, *, ways: int) -> float:
        """Latency of an exchange that adds up and distributes (2 ways), or only one of them."""
        return ways * ((self.gpus - 1) * INSIDE_LATENCY + (self.hosts - 1) * BETWEEN_LATENCY)

    def transfer(self, num_bytes: float, *, ways: int) -> float:
        """Time of the bytes: inside a host, then between GPUs of the same number on all hosts, each with its part."""
        inside = num_bytes * (self.gpus - 1) / self.gpus / self.inside
        between = num_bytes / self.gpus * (self.hosts - 1) / self.hosts / self.between
        return ways * (inside + between) / LINE_EFFICIENCY


class Prediction(NamedTuple):
    compute: float  # seconds of a step on one GPU, with its part of the batch
    step: float  # seconds of a step on all GPUs
    sent_bytes: float  # by a GPU, in a step

    @property
    def efficiency(self) -> float:
        return self.compute / self.step


def bucket_sizes(num_bytes: int) -> Iterable[int]:
    rest = num_bytes - FIRST_BUCKET_BYTES
    return [FIRST_BUCKET_BYTES, *[BUCKET_BYTES] * (rest // BUCKET_BYTES), rest % BUCKET_BYTES]


def compute_seconds(model: Model, tokens: float) -> float:
    """Six operations per parameter and token."""
    return 6 * model.num_parameters * tokens / (UTILIZATION * PEAK_FLOPS)


def predict_ddp(model: Model, cluster: Cluster, batch_tokens: int, *, uses_muon: bool = False) -> Prediction:
    """Buckets of gradients are added up while the backward pass computes. Muon then gathers its updates."""
    compute, gradient = compute_seconds(model, batch_tokens / cluster.size), FLOAT_BYTES * model.num_parameters
    free = end = 0.0
    sizes = list(bucket_sizes(gradient))
    for size, done in zip(sizes, accumulate(sizes), strict=True):
        ready = compute * (FORWARD + (1 - FORWARD) * done / gradient)
        free = max(ready, free) + cluster.transfer(size, ways=2)
        end = free + cluster.delay(ways=2)
    end += SMALL_EXCHANGES["ddp"] * cluster.delay(ways=2)
    sent = 2 * gradient * (cluster.size - 1) / cluster.size
    if uses_muon:
        matrices = FLOAT_BYTES * model.num_layers * model.layer_parameters
        end += cluster.transfer(matrices, ways=1) + 4 * cluster.delay(ways=1)  # four shapes
        sent += matrices * (cluster.size - 1) / cluster.size
    return Prediction(compute, max(compute, end), sent)


def predict_fsdp(model: Model, cluster: Cluster, batch_tokens: int) -> Prediction:
    """The weights of the next layer are gathered while a layer computes, in both passes, and its gradients are scattered while
    the layer before computes. What is outside of the layers comes first and last: nothing hides it."""
    compute = compute_seconds(model, batch_tokens / cluster.size)
    layer, outside = FLOAT_BYTES * model.layer_parameters, FLOAT_BYTES * model.vocab_size * model.hidden_size
    gather = cluster.transfer(layer, ways=1) + cluster.delay(ways=1)
    forward = max(compute * FORWARD, model.num_layers * gather)
    backward = max(compute * (1 - FORWARD), model.num_layers * 2 * gather)
    exposed = 2 * (cluster.transfer(outside, ways=1) + cluster.delay(ways=1)) + 2 * gather
    exposed += SMALL_EXCHANGES["fsdp"] * cluster.delay(ways=2)
    sent = (3 * model.num_layers * layer + 2 * outside) * (cluster.size - 1) / cluster.size
    return Prediction(compute, forward + backward + exposed, sent)


MODELS = [Model("124M", 12, 768), Model("1.3B", 24, 2048)]
CLUSTERS = [
    Cluster("400 Gb/s per GPU", 8, 8, 450e9, 50e9),
    Cluster("400 Gb/s per host", 8, 8, 450e9, 50e9 / 8),
]
BATCHES = [524_288, 2_097_152]


def print_prediction() -> None:
    """Print the table for 64 GPUs."""
    print(
        "On paper, not measured: 8 hosts of 8 H200, NVLink 450 GB/s per direction, float32 gradients and weights in exchanges,"
    )
    print(
        f"{UTILIZATION:.0%} of {PEAK_FLOPS / 1e12:.0f} TFLOP/s per GPU, NCCL at {LINE_EFFICIENCY:.0%} of each link, "
        f"{INSIDE_LATENCY * 1e6:g} us per round inside a host and {BETWEEN_LATENCY * 1e6:g} us between hosts"
    )
    names = f"{'model':<6} {'network':<18} {'tokens/step':>11}  {'sent by a GPU':>13}  {'compute':>9}"
    print(f"{names}  efficiency: DDP  DDP, Muon  FSDP2")
    for model in MODELS:
        for cluster in CLUSTERS:
            for batch in BATCHES:
                ddp, muon = (predict_ddp(model, cluster, batch, uses_muon=value) for value in (False, True))
                fsdp = predict_fsdp(model, cluster, batch)
                print(
                    f"{model.name:<6} {cluster.name:<18} {batch:>11,}  {ddp.sent_bytes / 1e9:>10.2f} GB  "
                    f"{ddp.compute * 1e3:>6.0f} ms  {ddp.efficiency:>15.1%}  {muon.efficiency:>9.1%}  {fsdp.efficiency:>5.1%}"
                )
