"""CUDA graphs: the forward and backward pass of each batch shape is recorded once and then replayed in a single launch.

Kernels of small batches take less time than their launches. A replay has no launches by Python, so it takes the time of the
kernels alone. The first batches of a shape are computed as usual; the next one is recorded, if memory allows, and all later
ones are copied into the tensors that the graph reads. Whatever cannot be recorded is computed as usual.

Equal to `Replica`: gradients are added up in the same order. Random numbers are equal as well, since a replay reads the seed
and the offset of the generator again, and its kernels draw in the order of the recording.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from weft.data.batch import map_tensors
from weft.data.batching import BatchSampler
from weft.data.few_shapes import Paddable
from weft.nn.state import tree_leaves, tree_map
from weft.resources import free_device_memory
from weft.training.config import TrainConfig
from weft.training.data_parallel import Replica
from weft.training.loss_module import LossModule
from weft.training.objective import Loss

if TYPE_CHECKING:
    from weft.training.loop import DeviceConfig

MAX_GRAPHS = 40  # further shapes are computed as usual
NUM_WARMUPS = 2  # batches of a shape that are computed as usual: libraries choose and allocate in them, which no graph may do
MIN_FREE = 0.1  # fraction of the memory of the GPU that must be free for another graph
MEMORY_FACTOR = 3  # memory for graphs, relative to that of a batch: recorded, computed as usual, and validation
SYNC_WARNING = "synchronizing CUDA operation"  # of torch's debug mode
COMPILER = Path(torch.__file__).parent / "_inductor"  # the code of the compiler, not what it has compiled
R = TypeVar("R")


class RecordingError(RuntimeError):
    """The work cannot be recorded; the message is the reason."""


class Recorder(Protocol):
    """Records the work of a device. Nothing that is recorded may wait for a result."""

    def has_room(self) -> bool:
        """Whether there is memory for another recording."""

    def warm_up(self, compute: Callable[[], R]) -> R:
        """Compute as usual, before anything is recorded."""

    def record(self, compute: Callable[[], R]) -> Callable[[], R]:
        """A function that repeats the work of `compute` on the same tensors and returns the same tensors with new values. Here
        nothing is computed, and no random number is drawn.

        Raises:
            RecordingError: It cannot be recorded, and nothing that was recorded before can be used any more.
        """


class CudaRecorder:
    """Records CUDA graphs, which share one pool of memory: a replay overwrites the results of other graphs."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # of its own, since the default stream cannot be recorded; warm-up is on it as well, where cuBLAS allocates memory
        self.stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()
        self.num_warmups = 0
        self.waits = ""  # where the host waits for the GPU, if it does
        self.failed: list[Any] = []  # torch's allocator may refer to graphs whose recording failed

    def has_room(self) -> bool:
        free, total = torch.cuda.mem_get_info(self.device)
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return bool(free + unused >= MIN_FREE * total)

    def warm_up(self, compute: Callable[[], R]) -> R:
        current: Any = torch.cuda.current_stream(self.device)
        self.num_warmups += 1
        self.stream.wait_stream(current)
        try:
            with torch.cuda.stream(self.stream):
                # looked for once, early: later, a thread that writes a checkpoint may wait for the GPU
                return self._find_waits(compute) if self.num_warmups == NUM_WARMUPS else compute()
        finally:
            current.wait_stream(self.stream)

    def _find_waits(self, compute: Callable[[], R]) -> R:
        """Compute, and find out where the host waits for the GPU: a recording that failed leaves torch in a bad state."""
        mode = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                result = compute()
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        for warning in caught:
            # the compiler reads numbers when it compiles, here a second graph, such as that of batches with a carried state
            if SYNC_WARNING in str(warning.message) and COMPILER not in Path(warning.filename).parents:
                self.waits = self.waits or f"{warning.filename}:{warning.lineno} waits for the GPU"
        return result

    def record(self, compute: Callable[[], R]) -> Callable[[], R]:
        if self.waits:
            raise RecordingError(self.waits)
        graph: Any = torch.cuda.CUDAGraph()
        current: Any = torch.cuda.current_stream(self.device)
        random_state = torch.cuda.get_rng_state(self.device)
        try:
            # thread_local: other threads may allocate memory and copy meanwhile
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                result = compute()
        except RuntimeError as error:
            self.failed.append(graph)
            torch.cuda.set_stream(current)  # torch stays on the other one if it cannot end the recording
            self._replace_generator(random_state)
            raise RecordingError(str(error).partition("\n")[0]) from error

        def replay() -> R:
            graph.replay()
            return result

        return replay

    def _replace_generator(self, random_state: Tensor) -> None:
        """Give torch's generator a new state: after a recording that failed, the old one refuses to draw."""
        generator = torch.Generator(self.device)
        generator.set_state(random_state)
        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        default: Any = torch.cuda.default_generators[index]
        default.graphsafe_set_state(generator)


class Graph(NamedTuple):
    """The recorded work of a batch shape."""

    batch: tuple[Any, ...]  # the tensors that it reads
    carry: Any  # the state that it reads
    replay: Callable[[], Loss]

    def run(self, batch: tuple[Any, ...], carry: Any) -> Loss:
        """Compute a batch of the same shape. The result is a copy: other graphs overwrite it."""
        targets = [part for part in self.batch if part is not None] + tree_leaves(self.carry)
        sources = [part for part in batch if part is not None] + tree_leaves(carry)
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source, non_blocking=True)
        return _map_loss(self.replay(), Tensor.clone)


def _map_loss(loss: Loss, function: Callable[[Tensor], Tensor]) -> Loss:
    """A loss without its penalty, with `function` applied to all other tensors."""
    return Loss(*tree_map(function, tuple(loss._replace(penalty=None))))


def _shape_key(batch: tuple[Any, ...], carry: Any) -> Hashable:
    """What a graph depends on: types, shapes and dtypes of a batch and a state."""

    def describe(part: Any) -> Hashable:
        if part is None:
            return None
        return (part.shape, part.dtype) if isinstance(part, Tensor) else tuple(describe(child) for child in part)

    return describe(batch), describe(carry)


class GraphedReplica(Replica):
    """A replica that records the forward and backward pass of each batch shape and replays it."""

    num_warmups = NUM_WARMUPS + 1  # and the one that is recorded

    def __init__(
        self,
        loss_module: LossModule,
        weights: Sequence[Tensor],
        recorder: Recorder,
        *,
        on_failure: Callable[[str], None],
        max_graphs: int = MAX_GRAPHS,
    ) -> None:
        super().__init__(loss_module)
        self.weights, self.max_graphs, self.on_failure = list(weights), max_graphs, on_failure
        self.recorder: Recorder | None = recorder  # None after a failure
        self.gradients: list[Tensor] = []  # since the first recording, all graphs write to the same tensors
        self.is_used = [False] * len(self.weights)  # a weight that no loss depends on has no gradient
        self.num_batches: Counter[Hashable] = Counter()
        self.graphs: dict[Hashable, Graph] = {}

    def accumulate(
        self, batch: Any, carry: Any, counts: bool, *, is_last: bool, autocast: Callable[[], AbstractContextManager[Any]]
    ) -> Loss:
        is_first = all(weight.grad is None for weight in self.weights)  # the step before has removed its gradients

        def compute(batch: Any, carry: Any) -> Loss:
            return self._compute(batch, carry, counts, autocast, adds=not is_first)

        key = (*_shape_key(batch, carry), counts, is_first) if self.recorder is not None else None  # type: ignore[misc]
        graph = self.graphs.get(key)
        if graph is None:
            loss = self._compute_or_record(key, batch, carry, compute, adds=not is_first)
        else:
            loss = graph.run(batch, carry)
        for weight, gradient, is_used in zip(self.weights, self.gradients, self.is_used, strict=True):
            weight.grad = gradient if is_used else None
        return loss

    def _compute_or_record(
        self, key: Hashable, batch: Any, carry: Any, compute: Callable[[Any, Any], Loss], *, adds: bool
    ) -> Loss:
        """The loss of a batch without a graph: the last of its warm-up is followed by the recording."""
        recorder = self.recorder
        if recorder is None or len(self.graphs) >= self.max_graphs:
            return compute(batch, carry)
        self.num_batches[key] += 1
        # the first recording is of a batch whose gradients are not added to others: its gradients are those of all recordings
        waits = adds and not self.graphs
        try:
            if self.num_batches[key] <= NUM_WARMUPS or waits:
                return recorder.warm_up(lambda: compute(batch, carry))
            if not recorder.has_room():
                self.max_graphs = len(self.graphs)
                return compute(batch, carry)
            static_batch, static_carry = map_tensors(batch, Tensor.clone), tree_map(Tensor.clone, carry)
            graph = Graph(static_batch, static_carry, recorder.record(lambda: compute(static_batch, static_carry)))
            self.graphs[key] = graph
            return graph.run(batch, carry)
        except RecordingError as error:
            self.recorder = None
            self.graphs.clear()
            self.on_failure(f"Training takes one kernel at a time, without CUDA graphs: {error}")
            return compute(batch, carry)

    def _compute(
        self, batch: Any, carry: Any, counts: bool, autocast: Callable[[], AbstractContextManager[Any]], *, adds: bool
    ) -> Loss:
        """Write the gradients of a batch to `gradients`, or add them to what is there."""
        with autocast():
            loss: Loss = self.loss_module(batch, carry, counts)
        gradients = torch.autograd.grad(loss.to_minimize(), self.weights, allow_unused=True)
        self._keep(gradients, adds=adds)
        self.is_used = [is_used or new is not None for is_used, new in zip(self.is_used, gradients, strict=True)]
        return _map_loss(loss, Tensor.detach)

    def _keep(self, gradients: Sequence[Tensor | None], *, adds: bool) -> None:
        """Make these gradients those of the step, or add them to what is there."""
        if not adds and not self.graphs:  # a copy of all gradients takes as long as to convert all weights to half precision
            self.gradients = _without_aliases(gradients, self.weights)
            return
        if not self.gradients:  # the weights had gradients before the first batch
            self.gradients = [_zeros(weight) if weight.grad is None else weight.grad for weight in self.weights]
            self.is_used = [weight.grad is not None for weight in self.weights]
        pairs = [(target, new) for target, new in zip(self.gradients, gradients, strict=True) if new is not None]
        targets, new = [target for target, _ in pairs], [new for _, new in pairs]
        if adds:
            torch._foreach_add_(targets, new)
            return
        torch._foreach_copy_(targets, new)
        if unused := [target for target, new in zip(self.gradients, gradients, strict=True) if new is None]:
            torch._foreach_zero_(unused)


def _without_aliases(gradients: Sequence[Tensor | None], weights: Sequence[Tensor]) -> list[Tensor]:
    """The same gradients, zeros for None. Those that are not contiguous, or share memory, are copied: optimizers change
    gradients in place, and the same tensor can be the gradient of two weights."""
    owners, owned = set[int](), list[Tensor]()
    for gradient, weight in zip(gradients, weights, strict=True):
        if gradient is None:
            owned.append(_zeros(weight))
            continue
        storage = gradient.untyped_storage()
        is_alone = storage.nbytes() == gradient.nbytes and storage.data_ptr() not in owners
        owners.add(storage.data_ptr())
        is_kept = is_alone and gradient.is_contiguous()
        # detached: autograd refuses to change views that were made in its backward pass
        owned.append(gradient.detach() if is_kept else gradient.clone(memory_format=torch.contiguous_format))
    return owned


def _zeros(weight: Tensor) -> Tensor:
    return torch.zeros_like(weight, memory_format=torch.contiguous_format)


def can_record(
    loss_module: LossModule,
    batch_sampler: BatchSampler[Any],
    config: TrainConfig,
    device_config: DeviceConfig,
    *,
    has_equal_shapes: bool = False,
) -> bool:
    """Whether to record the training step, as far as the configuration tells. Other steps are computed as usual:

    - `compile = false` is for a step as it is written;
    - gradients that processes exchange are exchanged in the backward pass;
    - recomputed activations save and restore the random state, and experts count tokens, with those of padding;
    - prepared batches, and batches that cannot be padded, have too many shapes.
    """
    return (
        device_config.device.type == "cuda"
        and config.compile == "auto"
        and device_config.group.size == 1
        and not config.activation_checkpointing
        and not loss_module.expert_layers
        and loss_module.objective.prepare is None
        and (has_equal_shapes or isinstance(batch_sampler.largest_batch(), Paddable))
    )


def has_memory(batch_bytes: int, device: torch.device) -> bool:
    """Whether there is memory to record batches of `batch_bytes`."""
    return free_device_memory(device) >= MEMORY_FACTOR * batch_bytes
