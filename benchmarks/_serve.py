"""Shared by the benchmarks of serving: a server in a process of its own, clients, and an overload."""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Server:
    """`weft serve` in a process of its own, with one thread."""

    def __init__(self, runs: dict[str, Path], options: Sequence[str] = ()) -> None:
        words = [f"{name}={path}" for name, path in runs.items()]
        command = [sys.executable, "-m", "weft", "serve", *words, "--port", "0", "--threads", "1", "--device", "cpu", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline() if self.process.stdout is not None else ""
        found = re.search(r"http://\S+", line)
        if found is None:
            raise SystemExit(f"the server did not start: {line}")
        self.url = found[0]

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def cpu(self) -> float:
        return cpu_seconds(self.process.pid)

    def http_cpu(self) -> float:
        """CPU seconds of the main thread, which does all of HTTP and nothing else."""
        pid = self.process.pid
        fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self) -> float:
        """Resident megabytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def gauge(self, name: str) -> float:
        text = httpx.get(f"{self.url}/metrics", timeout=30).text
        return float(re.search(rf"^{name} (\S+)$", text, re.MULTILINE)[1])  # type: ignore[index]


async def send_all(url: str, bodies: Sequence[dict[str, Any]], clients: int) -> list[tuple[int, float]]:
    """Send the requests by clients that each wait for their answers; returns status and seconds of each."""
    left, results = list(enumerate(bodies)), list[tuple[int, float]]()
    async with httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=clients)) as client:

        async def work() -> None:
            while left:
                _, body = left.pop()
                start = time.perf_counter()
                response = await client.post(url, json=body)
                results.append((response.status_code, time.perf_counter() - start))

        await asyncio.gather(*(work() for _ in range(clients)))
    return results


def throughput(server: Server, url: str, bodies: Sequence[dict[str, Any]], clients: int) -> tuple[float, float]:
    """Requests per CPU second of the server, and per second."""
    before, start = server.cpu(), time.perf_counter()
    results = asyncio.run(send_all(url, bodies, clients))
    seconds, cpu = time.perf_counter() - start, server.cpu() - before
    if any(status != 200 for status, _ in results):
        raise SystemExit(f"a request failed: {sorted({status for status, _ in results})}")
    return len(bodies) / cpu, len(bodies) / seconds


class RawClient:
    """A client with one connection that only sends and receives; its requests are written once."""

    def __init__(self, url: str) -> None:
        self._host, port = url.removeprefix("http://").split(":")
        self._connection = socket.create_connection((self._host, int(port)))
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._connection.close()

    def request(self, path: str, body: dict[str, Any] | None) -> bytes:
        """The bytes of a request: POST with a body, and GET without."""
        content = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{'GET' if body is None else 'POST'} {path} HTTP/1.1",
            f"Host: {self._host}",
            "Content-Type: application/json",
        ]
        return "\r\n".join([*lines, f"Content-Length: {len(content)}", "", ""]).encode() + content

    def send(self, request: bytes) -> None:
        """Send a request and read the answer."""
        self._connection.sendall(request)
        answer = b""
        while (end := answer.find(b"\r\n\r\n")) < 0:
            answer += self._connection.recv(1 << 16)
        length = int(re.search(rb"content-length: (\d+)", answer, re.IGNORECASE)[1])  # type: ignore[index]
        while len(answer) < end + 4 + length:
            answer += self._connection.recv(1 << 16)
        if b" 200 " not in answer[:20]:
            raise SystemExit(f"a request failed: {answer[:200]!r}")


async def in_turns(calls: Sequence[tuple[str, Callable[[], Any]]], count: int) -> dict[str, list[float]]:
    """Sorted milliseconds of the calls with each name; all of them in turn, `count` times, so that a busy machine slows all of
    them down. What a call returns is awaited, if it can be."""
    times: dict[str, list[float]] = {name: [] for name, _ in calls}
    for _ in range(count):
        for name, call in calls:
            start = time.perf_counter()
            result = call()
            if inspect.isawaitable(result):
                await result
            times[name].append(1000 * (time.perf_counter() - start))
    return {name: sorted(values) for name, values in times.items()}


class OtherLoad:
    """The share of the machine's CPU time that other programs use from now on."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = servers
        self._start = self._now()

    def _now(self) -> tuple[float, float]:
        fields = [int(field) / TICKS for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        ours = time.process_time() + sum(server.cpu() for server in self._servers)
        idle = fields[3] + fields[4]
        return sum(fields), sum(fields) - idle - ours

    def share(self) -> float:
        total, others = (now - start for now, start in zip(self._now(), self._start, strict=True))
        return others / total


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The median of several measurements, with the smallest and the largest."""
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


async def flood(url: str, body: dict[str, Any], rate: float, seconds: float) -> list[tuple[int, float]]:
    """Send `rate` requests per second, whether others have been answered or not."""
    results = list[tuple[int, float]]()
    async with httpx.AsyncClient(
        timeout=120, limits=httpx.Limits(max_connections=400, max_keepalive_connections=400)
    ) as client:

        async def send() -> None:
            start = time.perf_counter()
            try:
                status = (await client.post(url, json=body)).status_code
            except httpx.HTTPError:
                status = 0
            results.append((status, time.perf_counter() - start))

        tasks, start = list[asyncio.Task[None]](), time.perf_counter()
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, start + number / rate - time.perf_counter()))
            tasks.append(asyncio.create_task(send()))
        await asyncio.gather(*tasks)
    return results


def _in_turn(
    servers: Sequence[Server], bodies: list[dict[str, Any]], args: argparse.Namespace
) -> list[list[tuple[float, float]]]:
    """The throughput of each server, `--rounds` times; they take turns, and the first one changes."""
    rates: list[list[tuple[float, float]]] = [[] for _ in servers]
    for number in range(args.rounds):
        for index in range(len(servers))[:: 1 if number % 2 else -1]:
            url = f"{servers[index].url}/v1/runs/lm/generate"
            rates[index].append(throughput(servers[index], url, bodies, args.clients))
    return rates


def overload(server: Server, twin: Server, bodies: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Five times as many requests as the server can answer. Its twin gets none of them, and tells whether the machine itself
    became slower."""
    for each in (server, twin):
        throughput(each, f"{each.url}/v1/runs/lm/generate", bodies, args.clients)  # warm up
    load = OtherLoad([server, twin])
    before = _in_turn([server, twin], bodies, args)
    sustainable, memory = statistics.median(per_second for _, per_second in before[0]), server.memory()
    start = time.perf_counter()
    results = asyncio.run(flood(f"{server.url}/v1/runs/lm/generate", bodies[0], 5 * sustainable, args.seconds))
    seconds = time.perf_counter() - start
    answered = sorted(time for status, time in results if status == 200)
    refused = sorted(time for status, time in results if status == 429)
    others = sorted({status for status, _ in results} - {200, 429})
    print(f"overload, {5 * sustainable:.0f} requests per second for {args.seconds:g} s: {len(answered)} answered ", end="")
    print(
        f"({len(answered) / seconds:.1f} per second; sustainable {sustainable:.1f}), {len(refused)} refused, others: {others}"
    )
    for name, times in (("answered", answered), ("refused", refused)):
        if times:
            quantiles = [1000 * times[int(quantile * (len(times) - 1))] for quantile in (0.5, 0.95, 0.99)]
            print(f"  {name}: p50, p95, p99 {quantiles[0]:.0f}, {quantiles[1]:.0f}, {quantiles[2]:.0f} ms")
    grown = server.memory() - memory
    time.sleep(2)
    after = _in_turn([server, twin], bodies, args)
    print(f"  memory grew by {grown:.0f} MB; requests per CPU second before and from 2 s after:", end=" ")
    ratios = list[float]()
    for name, index in (("the server", 0), ("its twin", 1)):
        rates = [[rate for rate, _ in rounds[index]] for rounds in (before, after)]
        ratios.append(statistics.median(rates[1]) / statistics.median(rates[0]))
        print(f"{name} {spread(rates[0])} and {spread(rates[1])} ({ratios[-1]:.2f} times)", end=", ")
    print(f"{ratios[0] / ratios[1]:.2f} times relative to its twin; other programs used {load.share():.0%} of the CPU time")
