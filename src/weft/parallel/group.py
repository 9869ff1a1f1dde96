"""The processes that work on one run together, and the values that they exchange.

The default `Group()` is one process alone: every method returns what it was given, and torch.distributed is never imported.
`weft.parallel.join` makes a group of several.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from weft.errors import GroupError
from weft.parallel.heartbeat import LOST_SECONDS, Heartbeats

if TYPE_CHECKING:
    from torch import Tensor

TIMEOUT_SECONDS = 600.0  # of each collective: how long the processes wait for one that is alive but does not come
WAIT_SECONDS = 1.0  # of one question to the store: then failures of other processes are looked for
Diagnose = Callable[[], str]  # why an exchange failed: names the process that is missing


@dataclass(eq=False)
class Group:
    """The processes of a run. All of them must call the same methods in the same order; a background thread uses a group of its
    own from `duplicate`."""

    rank: int = 0
    size: int = 1
    hosts: Sequence[str] = ("",)  # the host name of each rank
    local_rank: int = 0  # the number of this process on its host
    process_group: Any = None  # of torch.distributed; None for one process alone
    store: Any = None  # of torch.distributed: keys and values that all processes see
    timeout: float = TIMEOUT_SECONDS
    diagnose: Diagnose = lambda: "a process of the group does not answer"
    heartbeats: Heartbeats | None = None
    advice: str = "the last checkpoint is intact"  # what is left if a process is lost, for messages
    seconds: float = field(default=0.0, init=False)  # time that this process has spent in exchanges
    meetings: int = field(default=0, init=False)

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes, prints and locks."""
        return self.rank == 0

    def name(self, rank: int) -> str:
        """A process in messages: 'rank 1 (host b)'."""
        return f"rank {rank} (host {self.hosts[rank]})" if self.hosts[rank] else f"rank {rank}"

    # ---- long waits, without a limit as long as all processes are alive

    def announce(self, key: str, value: Any) -> None:
        """Give a value to the other processes, which may have waited for hours."""
        if self.size > 1:
            self.store.set(f"weft/{key}", json.dumps(value))

    def withdraw(self, key: str) -> None:
        """Remove a value that all processes have received."""
        self.store.delete_key(f"weft/{key}")

    def await_leader(self, key: str) -> Any:
        """The value that the first process announces."""
        self._await(f"weft/{key}")
        return json.loads(self.store.get(f"weft/{key}"))

    def meet(self) -> None:
        """Wait for all processes, without a limit: before an exchange after hours of work, of which some have had less."""
        if self.size == 1:
            return
        self.meetings += 1
        key = f"weft/meeting/{self.meetings}"
        if self.store.add(key, 1) == self.size:
            self.store.set(f"{key}/all", "")
        self._await(f"{key}/all")

    def _await(self, key: str) -> None:
        """Wait until a key is in the store, as long as no process has failed."""
        while True:
            try:
                self.store.wait([key], timedelta(seconds=WAIT_SECONDS))
                return
            except RuntimeError as error:  # not yet, or the store is gone
                if not is_exchange_error(error):
                    raise
                if self.heartbeats is not None and self.heartbeats.failure() is not None:
                    raise GroupError("", self.diagnose()) from None
                if not self._has_store():
                    raise GroupError("", self.diagnose()) from None

    def _has_store(self) -> bool:
        try:
            self.store.check(["weft"])
        except RuntimeError:
            return False
        return True

    def begin(self) -> None:
        """Training starts: from now on, a process that is silent for LOST_SECONDS is lost."""
        if self.heartbeats is not None:
            self.heartbeats.lost_after = LOST_SECONDS

    def end(self) -> None:
        """After the last exchange of a training: a process that leaves while another one still works is not lost."""
        if self.heartbeats is not None:
            self.heartbeats.lost_after = math.inf

    # ---- exchanges

    def barrier(self) -> None:
        """Wait until all processes are here."""
        self.gather(None)

    def gather(self, value: Any) -> list[Any]:
        """The value of every process, by rank. A value is what JSON can hold."""
        if self.size == 1:
            return [value]
        import torch
        import torch.distributed as dist

        sent = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = torch.zeros(self.size, 1, dtype=torch.long)
        with self._exchange():
            dist.all_gather(list(lengths.unbind()), torch.tensor([len(sent)]), group=self.process_group)
            received = torch.zeros(self.size, int(lengths.max()), dtype=torch.uint8)
            padded = torch.nn.functional.pad(sent, (0, received.size(1) - len(sent)))
            dist.all_gather(list(received.unbind()), padded, group=self.process_group)
        return [json.loads(row[:length].numpy().tobytes()) for row, length in zip(received, lengths, strict=True)]

    def sum_(self, tensor: Tensor) -> Tensor:
        """Replace a tensor by its sum over all processes, in place."""
        if self.size > 1:
            import torch.distributed as dist

            with self._exchange():
                dist.all_reduce(tensor, group=self.process_group)
        return tensor

    def broadcast_(self, tensor: Tensor, source: int = 0) -> Tensor:
        """Replace a tensor by that of the process `source`, in place."""
        if self.size > 1:
            import torch.distributed as dist

            with self._exchange():
                dist.broadcast(tensor, source, group=self.process_group)
        return tensor

    def gather_tensor(self, tensor: Tensor) -> Tensor:
        """The tensors of all processes, which have the same shape, along a new first axis (W, ...)."""
        if self.size == 1:
            return tensor[None]
        import torch.distributed as dist

        received = tensor.new_empty(self.size, *tensor.shape)
        with self._exchange():
            dist.all_gather(list(received.unbind()), tensor.contiguous(), group=self.process_group)
        return received

    def exchange(self, tensor: Tensor, given: Sequence[int], taken: Sequence[int]) -> Tensor:
        """What all processes send to this one, in the order of ranks: `given` elements of the flat `tensor` go to each process,
        `taken` come from each."""
        if self.size == 1:
            return tensor
        import torch.distributed as dist

        received = tensor.new_empty(sum(taken))
        with self._exchange():
            dist.all_to_all_single(received, tensor.contiguous(), list(taken), list(given), group=self.process_group)
        return received

    def from_leader(self, value: float) -> float:
        """The number of the first process, such as a time: no two clocks are equal."""
        if self.size == 1:
            return value
        import torch

        return float(self.broadcast_(torch.tensor(value, dtype=torch.float64)))

    def any(self, value: bool) -> bool:
        """Whether the value is true in some process."""
        return value if self.size == 1 else any(self.gather(value))

    def duplicate(self) -> Group:
        """The same processes with connections of their own, for a background thread: its exchanges cannot be mistaken for those
        of the training. All processes must call it."""
        if self.size == 1:
            return Group()
        import torch.distributed as dist

        with self._exchange():
            other = dist.new_group(timeout=timedelta(seconds=self.timeout))
        return replace(self, process_group=other)

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        start = time.perf_counter()
        if self.heartbeats is not None:
            self.heartbeats.progress += 1
        with self.failures():
            yield
        self.seconds += time.perf_counter() - start

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Context manager in which a failed exchange, also one inside torch, becomes an error that names the process that is
        missing."""
        if self.size == 1:
            yield
            return
        try:
            yield
        except RuntimeError as error:
            if not is_exchange_error(error):
                raise
            raise GroupError("", self.diagnose()) from error


ALONE = Group()

# torch has no exception type for a lost connection of gloo: its errors are RuntimeErrors with these words
EXCHANGE_ERRORS = ("connection closed by peer", "timed out", "gloo", "nccl", "tcpstore", "connection reset", "broken pipe")


def is_exchange_error(error: RuntimeError) -> bool:
    """Whether an error of torch means that a process or a connection is lost."""
    import torch.distributed as dist

    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(words in text for words in EXCHANGE_ERRORS)
