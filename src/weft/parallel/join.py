"""Joining a group: processes on one or more hosts find each other by the address of the first one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from weft.errors import GroupError, UsageError
from weft.parallel.group import TIMEOUT_SECONDS, Group
from weft.parallel.heartbeat import IDLE_LOST_SECONDS, LOST_SECONDS, STALE_SECONDS, Failure, Heartbeats, first_beat
from weft.parallel.interface import is_loopback

JOIN_SECONDS = 300.0  # how long processes wait for the others at the start
OnLost = Callable[[Group, int], None]  # called in another thread: the process must end


class Place(NamedTuple):
    """A process in a group, as torchrun describes it."""

    rank: int
    size: int
    local_rank: int  # its number on its host
    host: str  # the name of its host
    address: str  # of the first process
    port: int
    attempt: str = "0"  # the number of the restart: a killed process may have left keys in the store
    listen_fd: int | None = None  # the socket of the store, if the process that started this one has opened it
    has_store: bool = False  # whether the program that started the processes has a store at the address
    local_size: int = 1  # the number of processes on its host
    own_address: str | None = None  # where this process listens for the others; None leaves the choice to torch

    def name(self) -> str:
        """The process in messages."""
        return f"rank {self.rank} (host {self.host})"


def join(place: Place, *, device: str, on_lost: OnLost, timeout: float = TIMEOUT_SECONDS, wait: float = JOIN_SECONDS) -> Group:
    """The group of a process; returns when all processes have joined.

    Args:
        place: Which process this is.
        device: "cpu", or "cuda" for one GPU per process.
        on_lost: Called with the rank of a process that is lost, while this process may be blocked.
        timeout: The limit of each exchange in seconds.
        wait: How long to wait for the others.

    Raises:
        GroupError: A process has not joined in time.
    """
    import torch.distributed as dist

    store = _open_store(place, wait)
    hosts = _hosts(store, place, wait)
    group = Group(place.rank, place.size, hosts, place.local_rank, None, store, timeout)
    beats = Heartbeats(_second_client(place, wait), place.rank, place.size, lambda rank: on_lost(group, rank))
    beats.start()
    group.heartbeats, group.diagnose = beats, partial(_diagnose, group, beats)
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    limit = timedelta(seconds=timeout)
    try:
        _check_address(place, hosts)
        with group.failures():
            dist.init_process_group(backend, store=_torch_store(store), rank=place.rank, world_size=place.size, timeout=limit)
    except GroupError as error:
        beats.post(Failure(place.rank, error.exit_code, str(error)))
        raise
    beats.lost_after = IDLE_LOST_SECONDS
    group.process_group = dist.group.WORLD
    return group


def leave(group: Group) -> None:
    """End the membership of a process, after its last exchange."""
    if group.size > 1:
        import torch.distributed as dist

        if group.heartbeats is not None:
            group.heartbeats.stop()
        dist.destroy_process_group()


def check_gpus(place: Place, device: str) -> None:
    """Refuse more processes on a host than it has GPUs."""
    if device != "cuda":
        return
    import torch

    if (count := torch.cuda.device_count()) < place.local_size:
        raise UsageError(
            "processes",
            f"{place.host} has {count} GPU{'' if count == 1 else 's'}, too few for {place.local_size} processes",
            f"start {count} per host, or set train.device = 'cpu'" if count else "set train.device = 'cpu'",
        )


def _prefixed(store: Any, place: Place) -> Any:
    from torch._C._distributed_c10d import PrefixStore

    return PrefixStore(f"weft/attempt-{place.attempt}", store)


def _torch_store(store: Any) -> Any:
    """The part of the store that torch uses for itself."""
    from torch._C._distributed_c10d import PrefixStore

    return PrefixStore("torch", store)


def _open_store(place: Place, wait: float) -> Any:
    """The store of the group; the first process has it, unless the program that started it does."""
    from torch._C._distributed_c10d import TCPStore

    is_server = place.rank == 0 and not place.has_store
    try:
        store = TCPStore(
            place.address,
            place.port,
            is_master=is_server,
            timeout=timedelta(seconds=wait),
            wait_for_workers=False,
            master_listen_fd=place.listen_fd if is_server else None,
        )
    except RuntimeError as error:
        if is_server:
            raise GroupError(f"{place.address}:{place.port}", "cannot listen for the other processes") from error
        raise _unreachable(place, wait) from error
    return _prefixed(store, place)


def _second_client(place: Place, wait: float) -> Any:
    """Another connection to the store: a thread that waits in one connection blocks all others that use it."""
    from torch._C._distributed_c10d import TCPStore

    limit = timedelta(seconds=wait)
    try:
        return _prefixed(TCPStore(place.address, place.port, timeout=limit, wait_for_workers=False), place)
    except RuntimeError as error:
        raise _unreachable(place, wait) from error


def _unreachable(place: Place, wait: float) -> GroupError:
    where = f"{place.address}:{place.port}"
    problem = f"{place.name()} cannot reach rank 0 after {wait:g} seconds"
    return GroupError(where, problem, "check the address, the port and the firewall")


def _hosts(store: Any, place: Place, wait: float) -> list[str]:
    """The host of each process, once all have joined."""
    first_beat(store, place.rank)
    store.set(f"weft/host/{place.rank}", place.host)
    keys, end = [f"weft/host/{rank}" for rank in range(place.size)], time.monotonic() + wait
    while not store.check(keys):
        if time.monotonic() > end:
            missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
            ranks = ", ".join(map(str, missing))
            problem = f"rank{'' if len(missing) == 1 else 's'} {ranks} of {place.size} did not join within {wait:g} seconds"
            raise GroupError("", problem, "start all processes")
        time.sleep(0.05)
    return [store.get(key).decode() for key in keys]


def _check_address(place: Place, hosts: Sequence[str]) -> None:
    """Refuse to listen where the processes of other hosts cannot connect."""
    if place.own_address is not None and is_loopback(place.own_address) and len(set(hosts)) > 1:
        problem = f"{place.name()} would listen on {place.own_address}, where other hosts cannot reach it"
        raise GroupError(f"{place.address}:{place.port}", problem, "set GLOO_SOCKET_IFNAME to the network interface")


def _diagnose(group: Group, beats: Heartbeats) -> str:
    """Why an exchange failed: the process that ended, that is silent, or that did not come."""
    end = time.monotonic() + LOST_SECONDS
    while time.monotonic() < end:
        if (failure := beats.failure()) is not None and failure.rank != group.rank:
            return f"{group.name(failure.rank)} stopped: {failure.message}"
        if (rank := beats.silent(STALE_SECONDS)) is not None:
            return lost_message(group, rank)
        if (rank := beats.behind()) is not None and time.monotonic() > end - LOST_SECONDS / 2:
            return f"{group.name(rank)} is alive, but did not come to an exchange within {group.timeout:g} seconds"
        time.sleep(0.2)
    return "an exchange between the processes failed, although all of them are alive"


def lost_message(group: Group, rank: int) -> str:
    """The message about a lost process."""
    return f"{group.name(rank)} does not answer any more; {group.advice}"
