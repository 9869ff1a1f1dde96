"""Training in groups of child processes, one of which is killed after a time or before a chosen line of code.

As a script this is a server that forks the processes of a group for each line on its standard input; see `killable`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Self

import torch
from killable import KillBeforeLine, answer, warm
from small_runs import SilentCallback

from weft.errors import GroupError
from weft.parallel import heartbeat, join
from weft.parallel.group import Group
from weft.runs.job import JobInputs, train

LIMIT_SECONDS = 60.0  # for the other processes to notice that one was killed
LOST = 3  # exit status of a process that has noticed it


class KillableGroup:
    """Trains runs in groups of processes, one after another."""

    def __enter__(self) -> Self:
        tests_dir = Path(__file__).parent
        paths = os.pathsep.join([str(tests_dir), str(tests_dir.parent / "src")])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        self.server = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._answer()  # the server has imported everything
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.server.communicate()

    def train(
        self,
        values: dict[str, Any],
        out: Path,
        *,
        size: int = 2,
        rank: int = 0,
        seconds: float | None = None,
        line: int | None = None,
    ) -> bool:
        """Train with `size` processes, of which the one of rank `rank` is killed after `seconds`, or before the n-th line of
        saving; return whether they finished. The others must end by themselves."""
        job = {"values": values, "out": str(out), "size": size, "rank": rank, "seconds": seconds, "line": line}
        self.server.stdin.write(json.dumps(job) + "\n")  # type: ignore[union-attr]
        self.server.stdin.flush()  # type: ignore[union-attr]
        statuses = self._answer()
        others = [status for number, status in enumerate(statuses) if number != rank]
        if statuses[rank] == -signal.SIGKILL:
            assert all(status in (0, LOST) for status in others), f"a process hung or failed: {statuses}"
            return False
        assert statuses == [0] * size, f"a process failed: {statuses}; see standard error"
        return True

    def _answer(self) -> list[int]:
        return list(map(int, self.server.stdout.readline().split()))  # type: ignore[union-attr]


def on_lost(group: Group, rank: int) -> None:
    os._exit(LOST)


def work(job: dict[str, Any], rank: int, port: int) -> int:
    """Train as one process of a group. Returns its exit status."""
    heartbeat.BEAT_SECONDS, join.STALE_SECONDS = 0.1, 0.5  # the processes share a machine
    if rank == job["rank"] and job["line"] is not None:
        kill = KillBeforeLine("save", job["line"])
        threading.settrace(kill)
        sys.settrace(kill)
    place, out = join.Place(rank, job["size"], rank, "", "127.0.0.1", port), Path(job["out"])
    try:
        group = join.join(place, device="cpu", on_lost=on_lost, wait=30, timeout=30)
        train(job["values"], out, base=out.parent, callback=SilentCallback(), inputs=JobInputs(group=group))
        join.leave(group)
    except GroupError:
        return LOST
    return 0


def start(job: dict[str, Any], rank: int, port: int) -> int:
    """Fork a process of the group; returns its ID."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = work(job, rank, port)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return child


def finish(children: list[int], job: dict[str, Any]) -> list[int]:
    """The exit statuses of the processes. One is killed after a time, and those that hang after it are killed as well."""
    statuses: dict[int, int] = {}
    kill_at = time.monotonic() + (600.0 if job["seconds"] is None else job["seconds"])
    victim, end = children[job["rank"]], float("inf")
    while len(statuses) < len(children):
        for child in set(children) - set(statuses):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                statuses[child] = os.waitstatus_to_exitcode(status)
                end = min(end, time.monotonic() + LIMIT_SECONDS)  # for the others
        if time.monotonic() > kill_at and victim not in statuses:
            os.kill(victim, signal.SIGKILL)
            kill_at = float("inf")
        if time.monotonic() > end:
            for child in set(children) - set(statuses):
                os.kill(child, signal.SIGKILL)
            end = float("inf")
        time.sleep(0.001)
    return [statuses[child] for child in children]


def serve() -> None:
    torch.set_num_threads(1)
    warm()
    answer(0)
    for line in sys.stdin:
        job = json.loads(line)
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            port = server.getsockname()[1]
        children = [start(job, rank, port) for rank in range(job["size"])]
        sys.stdout.write(" ".join(map(str, finish(children, job))) + "\n")
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    serve()
