"""`--processes N`: start N processes of a command on this machine, and watch over them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NamedTuple

from weft.cli.group import LIFELINE, LISTEN_FD, SUPERVISED
from weft.cli.group import is_child as is_child
from weft.cli.output import print_message
from weft.cli.threads import cpus
from weft.errors import GroupError, ResourceError, UsageError
from weft.resources import format_bytes, free_memory

POLL_SECONDS = 0.05
NOTICE_SECONDS = 2.0  # how long the other processes may take to notice that one has died
STOP_SECONDS = 10.0  # how long they may take to end after SIGTERM
MIN_PROCESSES, PROCESSES_PER_CPU = 16, 4  # the larger limit applies
PROCESS_BYTES = 300_000_000  # of Python and torch, without a model
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPED = 128 + signal.SIGINT  # exit code of the other processes when the first one was told to stop, by whatever signal


class Launch(NamedTuple):
    """What all processes of a command have in common."""

    words: Sequence[str]  # the command line
    size: int
    threads: int
    listener: socket.socket  # of the first process
    lifeline: int  # the end of a pipe that closes with this process


def launch(words: Sequence[str], processes: int, threads: int | None, advice: str) -> int:
    """Run the command line `words` in several processes that work together; returns the exit code of the first one, or of the
    one that failed. `advice` ends the message about a process that is lost."""
    check_processes(processes)
    listener = socket.create_server(("127.0.0.1", 0))
    lifeline, own_end = os.pipe()
    start = Launch(words, processes, threads or max(1, cpus() // processes), listener, lifeline)
    children: list[subprocess.Popen[bytes]] = []
    try:
        with _forward_signals(children):
            for rank in range(processes):
                children.append(_start(start, rank))
            listener.close()
            return _wait(children, advice)
    finally:
        listener.close()
        _stop(children)
        os.close(lifeline)
        os.close(own_end)


def check_processes(processes: int) -> None:
    """Refuse more processes than the machine can hold: they would fill its memory before they can say so."""
    limit = max(MIN_PROCESSES, PROCESSES_PER_CPU * cpus())
    if processes > limit:
        raise UsageError("processes", f"{processes} are too many for {cpus()} CPU cores", f"use at most {limit}")
    needed, available = processes * PROCESS_BYTES, free_memory()
    if needed > available:
        problem = f"{processes} processes need about {format_bytes(needed)}, {format_bytes(available)} are free"
        raise ResourceError("processes", problem, f"use at most {max(1, available // PROCESS_BYTES)}")


def _start(launch: Launch, rank: int) -> subprocess.Popen[bytes]:
    """Start one process. It stops when the lifeline closes, so that it never outlives this one. The first one has the standard
    input and output of the command."""
    size, listener, descriptor = launch.size, launch.listener, launch.listener.fileno()
    place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1"}
    place |= {
        "MASTER_PORT": listener.getsockname()[1],
        "OMP_NUM_THREADS": launch.threads,
        SUPERVISED: 1,
        LIFELINE: launch.lifeline,
    }
    environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
    if rank == 0:
        environment[LISTEN_FD] = str(descriptor)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "weft.cli.child_process", *launch.words],
        stdin=None if rank == 0 else subprocess.DEVNULL,
        stdout=None if rank == 0 else subprocess.DEVNULL,
        env=environment,
        pass_fds=[launch.lifeline, *([descriptor] if rank == 0 else [])],
        start_new_session=True,  # Ctrl-C in a terminal reaches this process alone, which passes it on once
    )


@contextmanager
def _forward_signals(children: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Pass signals on to the first process: it tells the others to save and stop."""

    def forward(number: int, frame: FrameType | None) -> None:
        if children and children[0].poll() is None:
            children[0].send_signal(number)

    numbers = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _wait(children: Sequence[subprocess.Popen[bytes]], advice: str) -> int:
    """The exit code of the command: 0 if all processes succeed, otherwise that of the process that failed first. A process that
    ends with GroupError has only noticed that another one is gone, and one that was stopped has followed the first one, which
    may end later."""
    noticed = None  # when a process has noticed it
    while True:
        codes = [child.poll() for child in children]
        killed = [rank for rank, code in enumerate(codes) if code is not None and code < 0]
        if killed:
            name = signal.Signals(-(codes[killed[0]] or 0)).name
            return _report(killed[0], f"was killed by {name}; {advice}")
        followed = {None, 0, GroupError.exit_code}
        causes = [code for rank, code in enumerate(codes) if code not in (followed | {STOPPED} if rank else followed)]
        if causes:
            return causes[0] or 0
        if None not in codes:
            return max(code or 0 for code in codes)
        if GroupError.exit_code in codes:
            noticed = noticed or time.monotonic()
            if time.monotonic() - noticed > NOTICE_SECONDS:
                return _report(codes.index(None), f"does not answer any more; {advice}")
        time.sleep(POLL_SECONDS)


def _report(rank: int, problem: str) -> int:
    print_message("error", f"rank {rank} (host {socket.gethostname()}) {problem}")
    return GroupError.exit_code


def _stop(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the processes that still run. Most notice by themselves that one is gone; then come SIGTERM and, after STOP_SECONDS,
    SIGKILL."""
    end = time.monotonic() + NOTICE_SECONDS
    while any(child.poll() is None for child in children) and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
    for child in children:
        if child.poll() is None:
            child.terminate()
    end = time.monotonic() + STOP_SECONDS
    for child in children:
        with suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, end - time.monotonic()))
        if child.poll() is None:
            child.kill()
            child.wait()
