"""Serving: many clients against one after the other, the cost of HTTP, and an overload.

    python benchmarks/serve.py [--lm RUN] [--seq2seq RUN] [--clients 32] [--requests 96] [--seconds 8]
        [--parts lm,seq2seq,static,overhead,overload,gone,equal]

Without run directories, small models are trained for a minute: a `gpt` on Tiny Shakespeare and a Transformer on a part of
Multi30k. The server is a process of its own with one thread; so is the client. Throughput is per CPU second of the server,
since both share the machine. Parts:

- lm: 64 new tokens per request, sampled; seq2seq: beam size 5. One client after the other, then `--clients` at once.
- static: the engine in this process with all requests at once, against one call of `Run.generate` and `Run.predict`.
- overhead: the time of a request over HTTP at batch 1, minus that of a call of the engine, p50 and p99; CPU share of HTTP.
- overload: 5 times the sustainable rate of requests for `--seconds`, with as many rows and places in the queue as clients:
  answers, refusals, and how long each takes; memory, and the throughput two seconds later.
- gone: 1,000 streams whose clients leave at a random moment: rows, memory and descriptors afterwards.
- equal: 1,000 requests with different options from `--clients` clients, against `Run.generate` and `Run.predict` alone.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
from _common import SHARED_DATA, require_data

import weft
from weft.cli.memory import keep_freed_memory
from weft.cli.threads import set_threads
from weft.decode.options import GenerationConfig, options_from
from weft.serve import Engine, Limits
from weft.serve.jobs import Generate, Predict

NEW_TOKENS, BEAM_SIZE = 64, 5
MULTI30K, SHAKESPEARE = SHARED_DATA / "multi30k", SHARED_DATA / "tinyshakespeare" / "input.txt"
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


def compare_clients(server: Server, name: str, url: str, bodies: Sequence[dict[str, Any]], args: argparse.Namespace) -> None:
    throughput(server, url, bodies[:2], 1)  # warm up
    alone = throughput(server, url, bodies[: max(8, len(bodies) // 4)], 1)
    together = throughput(server, url, bodies, args.clients)
    print(
        f"{name}: one after the other {alone[0]:.1f} requests per CPU second, {args.clients} clients {together[0]:.1f}: ",
        end="",
    )
    print(f"{together[0] / alone[0]:.1f} times (wall clock {together[1] / alone[1]:.1f} times)", flush=True)


def cpu_of(action: Any) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def compare_static(runs: dict[str, Path], prompts: list[str], sources: list[str], clients: int) -> None:
    """Requests of many clients in the engine against one call with all of them."""
    prompts, sources = prompts[:clients], sources[:clients]
    with Engine(runs, limits=Limits(max_queue=1000), device="cpu") as engine:
        options = GenerationConfig(max_new_tokens=NEW_TOKENS, temperature=0)
        run = engine.served("lm").run

        def continuous() -> None:
            jobs = [Generate([prompt], options) for prompt in prompts]
            for ticket in [engine.submit("lm", job) for job in jobs]:
                ticket.result()

        continuous()
        ratio = cpu_of(lambda: run.generate(prompts, options)) / cpu_of(continuous)
        print(f"lm: speed of the engine relative to one static batch of {len(prompts)}: {ratio:.2f}")
        run = engine.served("seq2seq").run

        def search() -> None:
            beams = options_from(run.spec.predict_options, None, {"beam_size": BEAM_SIZE})
            jobs = [Predict([source], beams) for source in sources]
            for ticket in [engine.submit("seq2seq", job) for job in jobs]:
                ticket.result()

        search()
        ratio = cpu_of(lambda: run.predict(sources, beam_size=BEAM_SIZE)) / cpu_of(search)
        print(f"seq2seq: speed of the engine relative to one static batch of {len(sources)}: {ratio:.2f}", flush=True)


def measure_overhead(server: Server, run: Path, bodies: list[dict[str, Any]], clients: int) -> None:
    """Time that HTTP adds to a short request, and its share of the CPU time under load."""
    url, count = f"{server.url}/v1/runs/lm/generate", 200
    body = {"prompts": [""], "options": {"max_new_tokens": 1, "temperature": 0}}
    asyncio.run(send_all(url, [body] * 5, 1))
    over_http = sorted(seconds for _, seconds in asyncio.run(send_all(url, [body] * count, 1)))
    with Engine({"lm": run}, limits=Limits(max_queue=1000), device="cpu") as engine:
        times = list[float]()
        for _ in range(count + 5):
            start = time.perf_counter()
            engine.generate("lm", "", max_new_tokens=1, temperature=0)
            times.append(time.perf_counter() - start)
        in_engine = sorted(times[5:])
    before, http_before = server.cpu(), server.http_cpu()
    asyncio.run(send_all(url, bodies, clients))
    share = (server.http_cpu() - http_before) / (server.cpu() - before)
    for quantile in (0.5, 0.99):
        index = int(quantile * (count - 1))
        added = 1000 * (over_http[index] - in_engine[index])
        print(f"overhead of HTTP at batch 1, p{100 * quantile:g}: {added:.2f} ms ({1000 * over_http[index]:.2f} ms in all)")
    print(f"share of HTTP in the CPU time, {clients} clients: {share:.1%}", flush=True)


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


def overload(server: Server, bodies: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Five times as many requests as the server can answer."""
    url = f"{server.url}/v1/runs/lm/generate"
    sustainable, memory = throughput(server, url, bodies, args.clients)[1], server.memory()
    start = time.perf_counter()
    results = asyncio.run(flood(url, bodies[0], 5 * sustainable, args.seconds))
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
    again = throughput(server, url, bodies, args.clients)[1]
    print(f"  memory grew by {grown:.0f} MB; after 2 s, {again / sustainable:.2f} of the sustainable rate", flush=True)


async def leave_streams(url: str, count: int, clients: int) -> None:
    """Streams whose clients close the connection at a random moment."""
    rng, left = random.Random(0), list(range(count))
    body = {"prompts": ["The "], "options": {"max_new_tokens": 200}, "stream": True}

    async def work() -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            while left:
                left.pop()
                async with client.stream("POST", url, json=body) as response:
                    until = time.perf_counter() + rng.uniform(0, 0.3)
                    async for _ in response.aiter_raw():
                        if time.perf_counter() >= until:
                            break

    await asyncio.gather(*(work() for _ in range(clients)))


def clients_leave(server: Server) -> None:
    """Rows, memory and descriptors after 1,000 streams that nobody reads to the end."""
    url = f"{server.url}/v1/runs/lm/generate"
    asyncio.run(leave_streams(url, 100, 8))
    memory, descriptors = server.memory(), server.descriptors()
    asyncio.run(leave_streams(url, 1000, 8))
    start = time.perf_counter()
    while server.gauge("weft_rows") and time.perf_counter() < start + 10:
        time.sleep(0.01)
    seconds = time.perf_counter() - start
    print(f"1,000 clients gone: {server.gauge('weft_rows'):.0f} rows left after {1000 * seconds:.0f} ms, ", end="")
    print(f"memory {server.memory() - memory:+.1f} MB, descriptors {server.descriptors() - descriptors:+d}", flush=True)


async def answers(url: str, requests: Sequence[tuple[str, dict[str, Any]]], clients: int) -> list[Any]:
    found, left = [None] * len(requests), list(range(len(requests)))
    async with httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=clients)) as client:

        async def work() -> None:
            while left:
                index = left.pop()
                path, body = requests[index]
                found[index] = (await client.post(f"{url}{path}", json=body)).json()

        await asyncio.gather(*(work() for _ in range(clients)))
    return found


def compare_outputs(server: Server, runs: dict[str, Path], prompts: list[str], sources: list[str], clients: int) -> None:
    """Outputs of requests that share steps with others, against the same requests alone."""
    lm, seq2seq, rng = weft.load(runs["lm"], device="cpu"), weft.load(runs["seq2seq"], device="cpu"), random.Random(1)
    kinds = ({"temperature": 0}, {"top_p": 0.9}, {"top_k": 20, "temperature": 0.8}, {"beam_size": 3, "n_best": 2})
    requests, expected = list[tuple[str, dict[str, Any]]](), list[list[str]]()
    for number in range(500):
        options: dict[str, Any] = {**rng.choice(kinds), "max_new_tokens": rng.randint(1, 24)}
        options |= {} if "beam_size" in options else {"seed": number}
        prompt = prompts[number % len(prompts)]
        requests.append(("/v1/runs/lm/generate", {"prompts": [prompt], "options": options}))
        expected.append([output.text for output in lm.generate(prompt, **options).ranked()])
        options = {"beam_size": rng.randint(1, 5), "length_penalty": rng.choice([0.6, 1.0])}
        requests.append(("/v1/runs/seq2seq/predict", {"inputs": [sources[number]], "options": options}))
        expected.append([seq2seq.predict(sources[number], **options).text])
    found = asyncio.run(answers(server.url, requests, clients))
    texts = [
        [
            output["text"]
            for output in (answer["continuations"][0] if "continuations" in answer else answer["predictions"][0]["predictions"])
        ]
        for answer in found
    ]
    equal = sum(ours == alone for ours, alone in zip(texts, expected, strict=True))
    print(f"equal to the same request alone: {equal:,} of {len(requests):,}", flush=True)
    for (path, body), ours, alone in zip(requests, texts, expected, strict=True):
        if ours != alone:
            print(f"  {path} {body}: {ours} instead of {alone}")


# ---- small models


def train_lm(directory: Path) -> Path:
    values = {
        "task": "lm",
        "data": {"train": str(SHAKESPEARE), "valid": 0.05, "context_length": 128},
        "tokenizer": {"type": "bpe", "vocab_size": 1000},
        "model": {"arch": "gpt", "hidden_size": 192, "num_layers": 4, "num_heads": 4},
        "train": {"max_steps": 40, "batch_tokens": 2048, "num_validations": 1, "device": "cpu"},
    }
    return weft.train(values, output_dir=directory / "lm").path


def train_seq2seq(directory: Path, sources: list[str], targets: list[str]) -> Path:
    pairs = directory / "pairs.tsv"
    pairs.write_text("".join(f"{source}\t{target}\n" for source, target in zip(sources, targets, strict=True)))
    values = {
        "task": "seq2seq",
        "data": {"train": str(pairs), "valid": 0.05, "max_length": 60},
        "tokenizer": {"type": "bpe", "vocab_size": 2000},
        "model": {"arch": "transformer", "hidden_size": 128, "num_layers": 2, "num_heads": 4},
        "train": {"max_steps": 200, "batch_tokens": 1500, "num_validations": 1, "device": "cpu"},
    }
    return weft.train(values, output_dir=directory / "seq2seq").path


def sentences(count: int) -> tuple[list[str], list[str]]:
    """Sentences of Multi30k: for requests, German sources by default."""
    sides = list[list[str]]()
    for side in ("de", "en"):
        with gzip.open(MULTI30K / f"train.{side}.gz", "rt", encoding="utf-8") as file:
            sides.append([line.rstrip("\n") for line in islice(file, count)])
    return sides[0], sides[1]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lm", type=Path)
    parser.add_argument("--seq2seq", type=Path)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--parts", default="lm,seq2seq,static,overhead,overload,gone,equal")
    args = parser.parse_args()
    require_data(parser, MULTI30K)
    require_data(parser, SHAKESPEARE)
    set_threads(1)
    keep_freed_memory()  # as `weft serve` does
    parts = args.parts.split(",")
    sources, targets = sentences(3000)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        runs = {
            "lm": args.lm or train_lm(directory),
            "seq2seq": args.seq2seq or train_seq2seq(directory, sources, targets),
        }
        prompts = [target[: 4 + 3 * (number % 20)] for number, target in enumerate(targets[: args.requests])]
        generate = [
            {"prompts": [prompt], "options": {"max_new_tokens": NEW_TOKENS, "seed": number}}
            for number, prompt in enumerate(prompts)
        ]
        predict = [{"inputs": [source], "options": {"beam_size": BEAM_SIZE}} for source in sources[: args.requests]]
        with Server(runs) as server:
            if "lm" in parts:
                compare_clients(server, "lm", f"{server.url}/v1/runs/lm/generate", generate, args)
            if "seq2seq" in parts:
                compare_clients(server, "seq2seq", f"{server.url}/v1/runs/seq2seq/predict", predict, args)
            if "overhead" in parts:
                measure_overhead(server, runs["lm"], generate, args.clients)
            if "gone" in parts:
                clients_leave(server)
            if "equal" in parts:
                compare_outputs(server, runs, prompts, sources, args.clients)
        if "overload" in parts:
            limits = ["--limit", f"max_rows={args.clients}", "--limit", f"max_queue={args.clients}"]
            with Server({"lm": runs["lm"]}, limits) as server:
                overload(server, generate, args)
        if "static" in parts:
            compare_static(runs, prompts, sources, args.clients)


if __name__ == "__main__":
    main()
