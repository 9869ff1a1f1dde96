"""Several processes that serve one socket. One that dies is started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from weft.cli.output import print_message

RESTART_SECONDS = 1.0
POLL_SECONDS = 0.1


def end_workers(workers: Sequence[subprocess.Popen[bytes]], signals: Sequence[int]) -> list[int]:
    """Tell the workers to end, and return their exit codes. Each further entry of `signals` is passed on: the second one ends
    them at once."""
    num_sent = 0
    while any(worker.poll() is None for worker in workers):
        if not num_sent or num_sent < len(signals):
            num_sent = max(1, len(signals))
            for worker in workers:
                worker.terminate()
        time.sleep(POLL_SECONDS)
    return [worker.wait() for worker in workers]


def run_workers(words: Sequence[str], listener: socket.socket, count: int, variable: str) -> int:
    """Run `count` workers with these arguments until a signal ends them; returns the exit code. Workers find the number of the
    socket in the environment, in `variable`."""
    stop = list[int]()

    def handle(number: int, frame: FrameType | None) -> None:
        stop.append(number)

    def start() -> subprocess.Popen[bytes]:
        environment = {**os.environ, variable: str(listener.fileno())}
        command = [sys.executable, "-m", "weft", *words]
        # a process group of their own: Ctrl-C reaches them through this process
        return subprocess.Popen(command, env=environment, pass_fds=[listener.fileno()], start_new_session=True)

    previous = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    workers: list[subprocess.Popen[bytes]] = []
    started = time.monotonic()
    try:
        for _ in range(count):
            workers.append(start())
        while not stop:
            time.sleep(POLL_SECONDS)
            dead = [index for index, worker in enumerate(workers) if worker.poll() is not None]
            if dead and time.monotonic() - started < RESTART_SECONDS + 5 and all(workers[index].returncode for index in dead):
                return workers[dead[0]].returncode or 1  # it cannot even start: its message says why
            for index in dead:
                print_message("warning", f"worker {workers[index].pid} ended with code {workers[index].returncode}; restarted")
                time.sleep(RESTART_SECONDS)
                workers[index] = start()
    finally:
        codes = end_workers(workers, stop)
        for number, handler in previous.items():
            signal.signal(number, handler)
    code = max(code if code >= 0 else 128 - code for code in codes)  # negative: the number of the signal that ended a worker
    return 128 + stop[0] if stop and code == 128 + signal.SIGTERM else code  # whatever the signal was, workers got SIGTERM
