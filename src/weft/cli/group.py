"""A command as one of several processes: torchrun, or weft itself with --processes, describes it in the environment."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weft import __version__
from weft.cli.output import print_message
from weft.errors import GroupError, UsageError, WeftError
from weft.parallel.agreement import check_equal
from weft.parallel.group import ALONE, Group
from weft.parallel.heartbeat import Failure
from weft.parallel.interface import address_towards, interface_with
from weft.parallel.join import Place, check_gpus, join, leave, lost_message

SUPERVISED = "WEFT_SUPERVISED"  # set if weft has started this process, and reports processes that die
LISTEN_FD = "WEFT_LISTEN_FD"  # the socket on which the first process listens
LIFELINE = "WEFT_LIFELINE_FD"  # a pipe that closes when the process that started this one ends
INTERFACE = "GLOO_SOCKET_IFNAME"  # the network interface of gloo
POST_SECONDS = 3.0  # how long a process that ends waits for the store
LEADER_SECONDS = 3.0  # how long another process waits whether the first one reports an error, which may be the same
FIX = "use the same files and the same version of weft on all hosts"
# of exchanges inside torch; nothing that a user could change
NOISE = ("Grad strides do not match bucket view strides", "FSDP2-wrapped module")


def place_of_process() -> Place | None:
    """This process in its group; None if it is alone."""
    environment = os.environ
    try:
        size, rank = int(environment.get("WORLD_SIZE", "1")), int(environment.get("RANK", "0"))
        local_rank, port = int(environment.get("LOCAL_RANK", str(rank))), int(environment.get("MASTER_PORT", "29500"))
    except ValueError:
        raise UsageError("environment", "RANK, WORLD_SIZE, LOCAL_RANK and MASTER_PORT must be numbers") from None
    if size == 1:
        return None
    return Place(
        rank,
        size,
        local_rank,
        socket.gethostname(),
        environment.get("MASTER_ADDR", "127.0.0.1"),
        port,
        environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
        int(environment[LISTEN_FD]) if LISTEN_FD in environment else None,
        environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        int(environment.get("LOCAL_WORLD_SIZE", str(local_rank + 1))),
        _pick_interface(environment.get("MASTER_ADDR", "127.0.0.1"), port),
    )


def _pick_interface(address: str, port: int) -> str | None:
    """Let gloo listen where the first process can be reached from, unless the user has chosen an interface. Returns the address
    of this process; None if torch has the choice."""
    if INTERFACE in os.environ:
        return None
    own_address = address_towards(address, port)
    interface = None if own_address is None else interface_with(own_address)
    if interface is None:
        return None
    os.environ[INTERFACE] = interface
    return own_address


def device_of(values: Mapping[str, Any]) -> str:
    """The kind of device that a run file trains on: "cpu" or "cuda"."""
    from weft.training.device import uses_gpu

    table = values.get("train", {})
    name = table.get("device", "auto") if isinstance(table, Mapping) else "auto"
    return "cuda" if name == "cuda" or (name == "auto" and uses_gpu("auto")) else "cpu"


def is_child() -> bool:
    """Whether weft has started this process as one of several."""
    return SUPERVISED in os.environ


@contextmanager
def before_joining() -> Iterator[None]:
    """Context manager for errors that all processes of a host have: the first of them reports one."""
    try:
        yield
    except WeftError as error:
        place = place_of_process()
        if place is not None and place.local_rank > 0:
            raise SystemExit(error.exit_code) from None
        raise


@contextmanager
def joined(device: str, advice: str | None = None) -> Iterator[Group]:
    """Context manager with the group of this process. An error in one process is reported once, and ends all of them. `advice`
    says what is left if a process is lost."""
    place = place_of_process()
    if place is None:
        yield ALONE
        return
    for message in NOISE:
        warnings.filterwarnings("ignore", message=message)
    with before_joining():
        check_gpus(place, device)
    group = join(place, device=device, on_lost=_on_lost)
    group.advice = group.advice if advice is None else advice
    if device == "cuda":
        import torch

        torch.cuda.set_device(place.local_rank)
    if is_child():
        group.diagnose = lambda: "another process is gone"  # the one that started this one says which
    try:
        with group.failures():
            yield group
    except WeftError as error:
        _report(group, error)
    except Exception as error:
        _post(group, 1, f"{type(error).__name__}: {error}")
        raise
    else:
        leave(group)
    finally:
        if group.heartbeats is not None:
            group.heartbeats.stop()


def check_same_run(group: Group, values: Mapping[str, Any], device: str) -> None:
    """Refuse processes with another run file, another version or another kind of device than the first one."""
    if group.size == 1:
        return
    import torch

    digest = hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:12]
    versions = {"weft": f"version {__version__}", "torch": f"version {torch.__version__}"}
    check_equal(group, {**versions, "train.device": device, "run file": f"checksum {digest}"}, FIX)


def check_same_inputs(group: Group, device: str, run: Path, files: Sequence[Path]) -> None:
    """Refuse processes with another version, kind of device, run or data file than the first one. Files are compared if there
    are several hosts."""
    if group.size == 1:
        return
    import torch

    from weft.files import sha256

    values = {"weft": f"version {__version__}", "torch": f"version {torch.__version__}", "device": device}
    if len(set(group.hosts)) > 1:
        paths = [run / "resolved.toml", run / "model.safetensors", *files]
        values |= {str(path): f"checksum {sha256(path)[:12]}" if path.is_file() else "no file" for path in paths}
    check_equal(group, values, FIX)


# ---- failures


def _post(group: Group, exit_code: int, message: str) -> Failure | None:
    """Tell the other processes why this one ends. Returns the first failure of all; None if the store is gone."""
    if group.heartbeats is None:
        return None
    group.heartbeats.post(Failure(group.rank, exit_code, " ".join(message.split())))
    return group.heartbeats.failure()


def _report(group: Group, error: WeftError) -> None:
    """Raise an error if this process is the one to report it; otherwise end quietly with the same exit code."""
    first = _post(group, error.exit_code, str(error))
    if isinstance(error, GroupError):
        if _reports_elsewhere(group, first):
            raise SystemExit(error.exit_code) from None
        raise error
    if group.leads:
        raise error
    end = time.monotonic() + LEADER_SECONDS
    while group.heartbeats is not None and time.monotonic() < end:
        leader = group.heartbeats.failure(0)
        if leader is not None and leader.exit_code != GroupError.exit_code:
            if _reports_elsewhere(group, leader):
                raise SystemExit(leader.exit_code) from None
            raise GroupError("", f"{group.name(0)} stopped: {leader.message}") from error
        time.sleep(0.05)
    raise type(error)(f"{group.name(group.rank)}: {error.where}", error.problem, error.fix) from error


def _reports_elsewhere(group: Group, first: Failure | None) -> bool:
    """Whether another process on this host reports that the group has failed: the one that failed first, or the first one of
    the host. Each host may have a log of its own."""
    if is_child():
        return True
    if first is None or first.rank == group.rank:
        return False
    host = group.hosts[group.rank]
    return group.hosts[first.rank] == host or group.hosts.index(host) != group.rank


def _on_lost(group: Group, rank: int) -> None:
    """End this process, which is blocked in an exchange with a process that is lost. The store may be lost as well, and block
    the thread that asks it."""
    message, first = lost_message(group, rank), []
    posting = threading.Thread(target=lambda: first.append(_post(group, GroupError.exit_code, message)), daemon=True)
    posting.start()
    posting.join(POST_SECONDS)
    if not _reports_elsewhere(group, first[0] if first else None):
        print_message("error", message)
    os._exit(GroupError.exit_code)
