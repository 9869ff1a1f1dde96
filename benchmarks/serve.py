"""Serving: many clients against one after the other, the cost of HTTP, and an overload.

    python benchmarks/serve.py [--lm RUN] [--seq2seq RUN] [--model small|recommended] [--clients 32] [--requests 256]
        [--rounds 3] [--seconds 8] [--parts lm,seq2seq,engine,static,overhead,overload,gone,equal] [--data DIR]

Without run directories, models are trained: a `gpt` on Tiny Shakespeare for a minute, and the model of translation_models.py
that --model names for 10 to 30 minutes; it is kept in --output-dir. The server is a process of its own with one thread; so is
the client. Throughput is per CPU second of the server, since both share the machine. Parts:

- lm: 64 new tokens per request, sampled; seq2seq: beam size 5, also without patience. One client after the other, then
  `--clients` at once; the median of `--rounds` measurements with the smallest and the largest.
- engine: the same as seq2seq without HTTP, by callers of the engine in this process.
- static: the engine in this process with all requests at once, against one call of `Run.generate` and `Run.predict`.
- overhead: the time of a request over HTTP at batch 1, minus that of a call of the engine, p50 and p99, with httpx, and with a
  client that only sends and receives; the time of `/healthz`, which asks no engine. Request by request, all of them take turns.
  CPU share of HTTP.
- overload: 5 times the sustainable rate of requests for `--seconds`, with as many rows and places in the queue as clients:
  answers, refusals, and how long each takes; memory; throughput before and from two seconds later, `--rounds` times each, in
  turns with a second server that has had no overload.
- gone: 1,000 streams whose clients leave at a random moment: rows, memory and descriptors afterwards.
- equal: 1,000 requests with different options from `--clients` clients, against `Run.generate` and `Run.predict` alone.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
from _common import SHARED_DATA, require_data
from _serve import OtherLoad, RawClient, Server, in_turns, overload, send_all, spread, throughput
from translation_models import MODELS, train_model

import weft
from weft.cli.memory import keep_freed_memory
from weft.cli.threads import set_threads
from weft.decode.options import GenerationConfig, options_from
from weft.serve import Engine, Limits
from weft.serve.jobs import Generate, Predict

NEW_TOKENS, BEAM_SIZE = 64, 5


def compare_clients(server: Server, name: str, url: str, bodies: Sequence[dict[str, Any]], args: argparse.Namespace) -> None:
    """One client after the other and many at once, in turn."""
    few = bodies[: max(8, len(bodies) // 8)]
    searches = {"": bodies}
    if name == "seq2seq":
        searches["without patience, "] = [{**body, "options": {**body["options"], "patience": 0}} for body in few]
    throughput(server, url, few, args.clients)  # warm up
    rates: dict[str, list[float]] = {}
    for _ in range(args.rounds):
        for search, requests in searches.items():
            rates.setdefault(f"{search}one after the other", []).append(throughput(server, url, requests[: len(few)], 1)[0])
        rates.setdefault(f"{args.clients} clients", []).append(throughput(server, url, bodies, args.clients)[0])
    together = statistics.median(rates[f"{args.clients} clients"])
    for label, values in rates.items():
        speedup = f"; {args.clients} clients are {together / statistics.median(values):.1f} times as fast"
        is_one = label.endswith("other")
        print(f"{name}, {label}: {spread(values)} requests per CPU second{speedup if is_one else ''}", flush=True)


def cpu_of(action: Any) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def compare_static(runs: dict[str, Path], prompts: list[str], sources: list[str], args: argparse.Namespace) -> None:
    """Requests of many clients in the engine against one call with all of them."""
    prompts, sources = prompts[: args.clients], sources[: args.clients]
    with Engine(runs, limits=Limits(max_queue=1000), device="cpu") as engine:
        options = GenerationConfig(max_new_tokens=NEW_TOKENS, temperature=0)
        run = engine.served("lm").run

        def continuous() -> None:
            jobs = [Generate([prompt], options) for prompt in prompts]
            for ticket in [engine.submit("lm", job) for job in jobs]:
                ticket.result()

        continuous()
        ratios = [cpu_of(lambda: run.generate(prompts, options)) / cpu_of(continuous) for _ in range(args.rounds)]
        print(f"lm: speed of the engine relative to one static batch of {len(prompts)}: {spread(ratios, 2)}")
        run = engine.served("seq2seq").run

        def search() -> None:
            beams = options_from(run.spec.predict_options, None, {"beam_size": BEAM_SIZE})
            jobs = [Predict([source], beams) for source in sources]
            for ticket in [engine.submit("seq2seq", job) for job in jobs]:
                ticket.result()

        search()
        ratios = [cpu_of(lambda: run.predict(sources, beam_size=BEAM_SIZE)) / cpu_of(search) for _ in range(args.rounds)]
        print(f"seq2seq: speed of the engine relative to one static batch of {len(sources)}: {spread(ratios, 2)}", flush=True)


def engine_rate(engine: Engine, sources: Sequence[str], callers: int) -> float:
    """Sentences per CPU second of callers in this process that each wait for their answer."""
    options = options_from(engine.served("seq2seq").run.spec.predict_options, None, {"beam_size": BEAM_SIZE})
    left, ended = list(sources), threading.Semaphore(0)

    def ask(_: object = None) -> None:
        try:
            source = left.pop()  # the thread of the engine calls this as well
        except IndexError:
            return
        engine.submit("seq2seq", Predict([source], options), on_end=answered)

    def answered(ticket: object) -> None:
        ended.release()
        ask()

    start = time.process_time()
    for _ in range(callers):
        ask()
    for _ in sources:
        ended.acquire()
    return len(sources) / (time.process_time() - start)


def compare_callers(runs: dict[str, Path], sources: list[str], args: argparse.Namespace) -> None:
    """One caller of the engine and many, without HTTP."""
    few, alone, together = sources[: max(8, args.requests // 8)], list[float](), list[float]()
    with Engine({"seq2seq": runs["seq2seq"]}, limits=Limits(max_queue=1000), device="cpu") as engine:
        engine_rate(engine, few, args.clients)  # warm up
        for _ in range(args.rounds):
            alone.append(engine_rate(engine, few, 1))
            together.append(engine_rate(engine, sources[: args.requests], args.clients))
    ratio = statistics.median(together) / statistics.median(alone)
    print(f"seq2seq, engine without HTTP: one caller {spread(alone)} sentences per CPU second, ", end="")
    print(f"{args.clients} callers {spread(together)}, {ratio:.1f} times", flush=True)


async def overhead_times(server: Server, run: Path, rounds: int, count: int) -> list[dict[str, list[float]]]:
    """Sorted milliseconds of one short request by the engine in this process and by the server; `rounds` times."""
    path, body = "/v1/runs/lm/generate", {"prompts": [""], "options": {"max_new_tokens": 1, "temperature": 0}}
    url = f"{server.url}{path}"
    with (
        Engine({"lm": run}, device="cpu") as engine,
        RawClient(server.url) as raw,
        httpx.Client() as client,
    ):
        async with httpx.AsyncClient() as async_client:
            generate, health = raw.request(path, body), raw.request("/healthz", None)
            engine_call = ("engine", lambda: engine.generate("lm", "", max_new_tokens=1, temperature=0))
            # before each of the others, so that no model is used twice in a row and has its weights in the cache
            calls: list[tuple[str, Callable[[], Any]]] = [
                engine_call,
                ("httpx", lambda: client.post(url, json=body)),
                engine_call,
                ("httpx.AsyncClient", lambda: async_client.post(url, json=body)),
                engine_call,
                ("no client time", lambda: raw.send(generate)),
                ("/healthz", lambda: raw.send(health)),
            ]
            await in_turns(calls, 20)  # warm up
            return [await in_turns(calls, count) for _ in range(rounds)]


def measure_overhead(server: Server, run: Path, bodies: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Time that HTTP adds to a short request, and its share of the CPU time under load."""
    load = OtherLoad([server])
    times = asyncio.run(overhead_times(server, run, args.rounds, 200))
    for quantile in (0.5, 0.99):
        values = {name: [each[name][int(quantile * (len(each[name]) - 1))] for each in times] for name in times[0]}
        print(f"overhead of HTTP at batch 1, p{100 * quantile:g}:", end=" ")
        for name in ("httpx", "httpx.AsyncClient", "no client time"):
            added = [over - alone for over, alone in zip(values[name], values["engine"], strict=True)]
            print(f"{name} {spread(added, 2)} ms", end=", ")
        print(f"engine {spread(values['engine'], 2)} ms, /healthz {spread(values['/healthz'], 2)} ms", flush=True)
    print(f"other programs used {load.share():.0%} of the CPU time")
    path, body = "/v1/runs/lm/generate", {"prompts": [""], "options": {"max_new_tokens": 1, "temperature": 0}}
    with RawClient(server.url) as raw:
        before, request = server.http_cpu(), raw.request(path, body)
        for _ in range(400):
            raw.send(request)
    print(f"CPU time of HTTP per request: {1000 * (server.http_cpu() - before) / 400:.2f} ms")
    before, http_before = server.cpu(), server.http_cpu()
    asyncio.run(send_all(f"{server.url}{path}", bodies, args.clients))
    share = (server.http_cpu() - http_before) / (server.cpu() - before)
    print(f"share of HTTP in the CPU time, {args.clients} clients: {share:.1%}", flush=True)


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


# ---- models and data


def train_lm(data: Path, directory: Path) -> Path:
    values = {
        "task": "lm",
        "data": {"train": str(data / "tinyshakespeare" / "input.txt"), "valid": 0.05, "context_length": 128},
        "tokenizer": {"type": "bpe", "vocab_size": 1000},
        "model": {"arch": "gpt", "hidden_size": 192, "num_layers": 4, "num_heads": 4},
        "train": {"max_steps": 40, "batch_tokens": 2048, "num_validations": 1, "device": "cpu"},
    }
    return weft.train(values, output_dir=directory / "lm").path


def sentences(data: Path, count: int) -> tuple[list[str], list[str]]:
    """Sentences of Multi30k: for requests, German sources by default."""
    sides = list[list[str]]()
    for side in ("de", "en"):
        with gzip.open(data / "multi30k" / f"train.{side}.gz", "rt", encoding="utf-8") as file:
            sides.append([line.rstrip("\n") for line in islice(file, count)])
    return sides[0], sides[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lm", type=Path)
    parser.add_argument("--seq2seq", type=Path)
    parser.add_argument("--model", choices=list(MODELS), default="small")
    parser.add_argument("--data", type=Path, default=SHARED_DATA, help="directory with multi30k/ and tinyshakespeare/")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/benchmarks/translation"))
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--parts", default="lm,seq2seq,engine,static,overhead,overload,gone,equal")
    args = parser.parse_args()
    require_data(parser, args.data / "multi30k")
    require_data(parser, args.data / "tinyshakespeare")
    set_threads(1)
    keep_freed_memory()  # as `weft serve` does
    with tempfile.TemporaryDirectory() as name:
        lm = args.lm or train_lm(args.data, Path(name))
        seq2seq = args.seq2seq or train_model(args.model, args.data / "multi30k", args.output_dir)
        measure({"lm": lm, "seq2seq": seq2seq}, args)


def measure(runs: dict[str, Path], args: argparse.Namespace) -> None:
    parts, (sources, targets) = args.parts.split(","), sentences(args.data, 3000)
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
            measure_overhead(server, runs["lm"], generate, args)
        if "gone" in parts:
            clients_leave(server)
        if "equal" in parts:
            compare_outputs(server, runs, prompts, sources, args.clients)
    if "overload" in parts:
        limits = ["--limit", f"max_rows={args.clients}", "--limit", f"max_queue={args.clients}"]
        with Server({"lm": runs["lm"]}, limits) as server, Server({"lm": runs["lm"]}, limits) as twin:
            overload(server, twin, generate, args)
    if "engine" in parts:
        compare_callers(runs, sources, args)
    if "static" in parts:
        compare_static(runs, prompts, sources, args)


if __name__ == "__main__":
    main()
