"""Training of language models on a GPU, against nanoGPT in the same call.

Sizes: `small`, 6 layers, 6 heads, width 384, 64 x 256 tokens, characters of --data; `large`, GPT-2 small (124M parameters),
32 x 1024 tokens, a vocabulary of 50,304, random text. Each training is a process of its own, of at most --limit seconds. Parts:

    steps      milliseconds per step after the first 30: nanoGPT, `transformer` (AdamW), `gpt` (Muon). Targets, tokens per
               second against nanoGPT: 1.3 and 1.1 (small), 1.1 and 0.95 (large)
    target     from the start of the process to validation loss 1.4697, with a cold and with a warm compile cache. Target: half
               of nanoGPT's time
    check      the losses of the fast path against those of the plain one: not compiled, numbers read at once
    variants   other decisions than those of weft, by name (--variants), such as plain or layer,flash
    replicas   one process wrapped by DDP or FSDP2 against plain, all of them not recorded. Targets: 0.98 and 0.95

    python benchmarks/gpu_training.py --nanogpt DIR --data input.txt
    python benchmarks/gpu_training.py --nanogpt DIR --data input.txt --parts steps --repeats 3
    python benchmarks/gpu_training.py --data input.txt --parts steps --sizes large --profile   # the kernels of five more steps
    python benchmarks/gpu_training.py --data input.txt --parts variants --sizes large --archs gpt --variants model layer,flash
    python benchmarks/gpu_training.py --nanogpt DIR --data input.txt --tiny    # runs on a CPU, measures nothing

Results are written to --output-dir/results.json after each training.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from _common import SHARED_DATA, verdict
from _gpu_profile import PROFILED

HERE = Path(__file__).resolve().parent
TARGET_LOSS, WARMUP_STEPS, WINDOW = 1.4697, 30, 10
ARCHS = ("transformer", "gpt")
PARTS = ("steps", "target", "check", "variants", "replicas")
SPEED_TARGETS = {("small", "transformer"): 1.3, ("small", "gpt"): 1.1, ("large", "transformer"): 1.1, ("large", "gpt"): 0.95}
# what a variant changes, by words that can be joined
WORDS: dict[str, dict[str, Any]] = {
    "nothing": {"unit": "nothing"},  # compiled
    "layer": {"unit": "layer"},
    "model": {"unit": "model"},
    "unrecorded": {"unrecorded": True},
    "flash": {"attention": "flash"},  # instead of cuDNN
    "plainloss": {"loss": "plain"},
    "computed": {"rotations": "computed"},
    "float": {"sums": "float"},  # those of skip connections, instead of bfloat16
    "nokernels": {"kernels": False},  # functions of torch instead of kernels of weft in steps that are not compiled
    "muon": {"muon": True},  # compiled
    "eagermuon": {"muon": False},
    "plain": {"plain": True},  # the host waits for the numbers of each step
}
VARIANTS = ("nothing", "layer", "model", "layer,unrecorded", "layer,flash", "layer,plainloss", "layer,computed", "layer,float")
REPLICA_TARGETS = {"ddp": 0.98, "fsdp": 0.95}


class Size(NamedTuple):
    num_layers: int
    num_heads: int
    hidden_size: int
    rows: int
    context: int
    vocab_size: int  # 0: characters
    dropout: float
    steps: int  # that are measured
    max_steps: int  # of the training that they belong to: weft compiles more of a long one


SIZES = {
    "small": Size(6, 6, 384, 64, 256, 0, 0.2, 200, 5000),
    "large": Size(12, 12, 768, 32, 1024, 50_304, 0.0, 110, 20_000),
}
TINY = {"small": Size(1, 2, 16, 2, 16, 0, 0.1, 70, 70), "large": Size(1, 2, 16, 2, 32, 64, 0.0, 70, 70)}


class Benchmark:
    """Runs trainings one after another and keeps what they return."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.results = args, list[dict[str, Any]]()
        self.sizes = TINY if args.tiny else SIZES
        self.directory: Path = args.output_dir.resolve()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.device = "cpu" if args.tiny else "cuda"

    def keep(self, result: dict[str, Any]) -> None:
        self.results.append(result)
        (self.directory / "results.json").write_text(json.dumps(self.results, indent=1))

    # ---- data

    def text(self, size: Size) -> Path:
        """The training text of weft."""
        if not size.vocab_size:
            return Path(self.args.data).resolve()
        path = self.directory / f"random-{size.vocab_size}.txt"
        if not path.exists():
            # three special tokens complete the vocabulary
            ids = np.random.default_rng(0).integers(0, size.vocab_size - 3, 24 * size.rows * size.context)
            ids[: size.vocab_size - 3] = np.arange(size.vocab_size - 3)
            lines = (" ".join(f"w{token}" for token in row) for row in np.array_split(ids, len(ids) // 64))
            path.write_text("\n".join(lines) + "\n")
        return path

    def nanogpt_dir(self, size: Size) -> Path:
        """A copy of nanoGPT's code with data in its format; the file that holds the vocabulary size is a pickle, so the size is
        written into the copy of train.py instead."""
        directory = self.directory / f"nanogpt-{size.num_layers}-{size.hidden_size}"
        if directory.exists():
            return directory
        data = directory / "data" / "bench"
        data.mkdir(parents=True)
        for name in ("model.py", "configurator.py"):
            shutil.copy(Path(self.args.nanogpt) / name, directory)
        vocab_size = size.vocab_size
        if vocab_size:
            ids = np.random.default_rng(0).integers(0, vocab_size, 24 * size.rows * size.context)
        else:
            text = self.text(size).read_text()
            ids = np.unique(np.array(list(text)), return_inverse=True)[1]
            vocab_size = int(ids.max()) + 1
        split = int(0.9 * len(ids))
        ids[:split].astype(np.uint16).tofile(data / "train.bin")
        ids[split:].astype(np.uint16).tofile(data / "val.bin")
        code = (Path(self.args.nanogpt) / "train.py").read_text()
        (directory / "train.py").write_text(code.replace("meta_vocab_size = None", f"meta_vocab_size = {vocab_size}", 1))
        return directory

    # ---- one training

    def environment(self, cache: str) -> dict[str, str]:
        """The environment of a process with a compile cache of its own."""
        return {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(self.directory / "cache" / cache), "PYTHONUNBUFFERED": "1"}

    def lines(self, command: list[str], directory: Path, cache: str, started: float) -> Any:
        """The lines that a process prints, each with the seconds since its start; it is ended after --limit seconds."""
        process = subprocess.Popen(
            command, cwd=directory, env=self.environment(cache), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        timer = threading.Timer(self.args.limit, process.kill)
        timer.start()
        try:
            yield from ((time.time() - started, line) for line in process.stdout or ())
        finally:
            timer.cancel()
            process.kill()
            process.wait()

    def nanogpt(self, name: str, *, target: float | None = None, cache: str = "nanogpt") -> dict[str, Any]:
        """Train nanoGPT. The line of every tenth step is printed after the GPU has computed it, so their times are exact."""
        size = self.sizes[name]
        directory = self.nanogpt_dir(size)
        options = {
            "dataset": "bench", "gradient_accumulation_steps": 1, "batch_size": size.rows, "block_size": size.context,
            "n_layer": size.num_layers, "n_head": size.num_heads, "n_embd": size.hidden_size, "dropout": size.dropout,
            "learning_rate": 1e-3, "min_lr": 1e-4, "beta2": 0.99, "warmup_iters": 100, "log_interval": WINDOW,
            "always_save_checkpoint": False, "device": self.device, "compile": not self.args.tiny,
        }  # fmt: skip
        if target is None:
            options |= {"max_iters": size.steps, "lr_decay_iters": size.steps, "eval_interval": 10**6, "eval_iters": 1}
        else:  # as in its configuration for this text
            options |= {"max_iters": 5000, "lr_decay_iters": 5000, "eval_interval": 250, "eval_iters": 200}
            options |= {"max_iters": 60, "eval_interval": 20, "eval_iters": 2} if self.args.tiny else {}
        command = [sys.executable, "train.py", *(f"--{key}={value}" for key, value in options.items())]
        started, times, losses, output = time.time(), dict[int, float](), list[Any](), list[str]()
        reached = None
        for seconds, line in self.lines(command, directory, cache, started):
            output.append(line)
            if found := re.match(r"iter (\d+): loss", line):
                times[int(found[1])] = seconds
            if found := re.match(r"step (\d+): .*val loss ([\d.]+)", line):
                losses.append((int(found[1]), float(found[2]), seconds))
                if target is not None and float(found[2]) <= target:
                    reached = seconds
                    break
        if not times and reached is None:
            return {"system": "nanogpt", "size": name, "error": "".join(output)[-1500:]}
        steps = sorted(times)
        windows = [1e3 * (times[b] - times[a]) / (b - a) for a, b in pairwise(steps) if a >= WARMUP_STEPS]
        first = times[steps[0]] if steps else None
        return {"system": "nanogpt", "size": name, "ms": windows, "first": first, "validations": losses, "reached": reached}

    def values(self, arch: str, size: Size) -> dict[str, Any]:
        """The run file: the layers of nanoGPT, which have no biases."""
        model = {"arch": arch, "num_layers": size.num_layers, "num_heads": size.num_heads, "hidden_size": size.hidden_size}
        model |= {"dropout": size.dropout, "bias": False, "head_bias": False, "tie_embeddings": True}
        model |= {} if arch == "transformer" else {"zero_init": False}  # not possible with tied embeddings
        tokenizer = {"type": "whitespace", "vocab_size": size.vocab_size} if size.vocab_size else {"type": "char"}
        train = {
            "max_steps": size.max_steps,
            "batch_tokens": size.rows * size.context,
            "num_validations": 1,
            "device": self.device,
        }
        data = {"train": str(self.text(size)), "valid": 0.1, "context_length": size.context}
        return {"task": "lm", "recommend": False, "data": data, "tokenizer": tokenizer, "model": model, "train": train}

    def weft(self, values: dict[str, Any], name: str, system: str, *, cache: str = "", **job: Any) -> dict[str, Any]:
        """Train weft in a process of its own."""
        run_dir = self.directory / "runs" / f"{name}-{len(self.results)}"
        shutil.rmtree(run_dir, ignore_errors=True)
        run_dir.parent.mkdir(exist_ok=True)
        started = time.time()
        if "target" not in job:
            job["stop_at"] = self.sizes[name].steps
            job |= {"profile_at": self.sizes[name].steps} if self.args.profile else {}
            job["stop_at"] += PROFILED + 1 if self.args.profile else 0
        job |= {"values": values, "run_dir": str(run_dir), "started": started}
        command = [sys.executable, str(HERE / "_gpu_worker.py"), json.dumps(job)]
        output, result = list[str](), dict[str, Any]()
        for _, line in self.lines(command, HERE.parent, cache or system, started):
            if line.startswith("RESULT "):
                result = json.loads(line.removeprefix("RESULT "))
            else:
                output.append(line)
        shutil.rmtree(run_dir, ignore_errors=True)
        if not result or "error" in result:
            return {"system": system, "size": name, "error": result.get("error", "") + "".join(output)[-1500:]}
        if self.args.profile:
            print("".join(line for line in output if line.startswith("  ")), end="", flush=True)
        ends = result.pop("ends")[: self.sizes[name].steps if "target" not in job else None]
        starts = range(WARMUP_STEPS, len(ends) - WINDOW - 1, WINDOW)  # the last step waits for the validation
        result |= {"system": system, "size": name, "first": ends[0] if ends else None}
        result |= {"ms": [1e3 * (ends[start + WINDOW] - ends[start]) / WINDOW for start in starts]}
        return result

    # ---- parts

    def steps(self) -> None:
        for name in self.args.sizes:
            size, speeds = self.sizes[name], dict[str, list[float]]()
            for _ in range(self.args.repeats):
                for system in ("nanogpt", *self.args.archs):
                    if system == "nanogpt" and self.args.nanogpt is None:
                        continue
                    result = self.nanogpt(name) if system == "nanogpt" else self.weft(self.values(system, size), name, system)
                    self.keep({"part": "steps", **result})
                    show(result, size)
                    if result.get("ms"):
                        speeds.setdefault(system, []).append(median(result["ms"]))
            for system in self.args.archs if "nanogpt" in speeds else ():
                ratios = [theirs / ours for theirs, ours in zip(speeds["nanogpt"], speeds.get(system, []), strict=False)]
                if ratios:
                    target, ratio = SPEED_TARGETS[name, system], median(ratios)
                    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
                    print(f"== {name} {system}: {ratio:.2f} of nanoGPT ({spread}), target {target}: {verdict(ratio >= target)}")

    def target(self) -> None:
        size, loss = self.sizes["small"], 99.0 if self.args.tiny else TARGET_LOSS
        model = {"arch": "gpt", "num_layers": size.num_layers, "num_heads": size.num_heads, "hidden_size": size.hidden_size}
        train = {"max_steps": self.args.target_steps, "batch_tokens": size.rows * size.context, "device": self.device}
        train |= {"num_validations": 2 if self.args.tiny else 10}
        values = {"task": "lm", "data": self.values("gpt", size)["data"], "model": model, "train": train}
        for state in ("cold", "warm"):  # the same directory: the second training finds it filled
            reached = dict[str, Any]()
            for system in ("gpt", "nanogpt") if self.args.nanogpt else ("gpt",):
                cache = f"target-{system}"
                if state == "cold":
                    shutil.rmtree(self.directory / "cache" / cache, ignore_errors=True)
                if system == "gpt":
                    result = self.weft(values, "small", system, cache=cache, target=loss)
                else:
                    result = self.nanogpt("small", target=loss, cache=cache)
                self.keep({"part": "target", "cache": state, **result})
                show(result, size)
                reached[system] = result.get("reached")
                print(f"  {state} cache: loss {loss} after {reached[system]} s; validations {result.get('validations')}")
            if all(reached.values()) and "nanogpt" in reached:
                ratio = reached["gpt"] / reached["nanogpt"]
                print(f"== small, to loss {loss}, {state}: {ratio:.2f} of nanoGPT's time, target 0.5: {verdict(ratio <= 0.5)}")

    def check(self) -> None:
        """Without dropout, both paths compute the same losses but for rounding."""
        for name in self.args.sizes:
            for arch in self.args.archs:
                size = self.sizes[name]._replace(dropout=0.0, steps=40)
                values, plain = self.values(arch, size), self.values(arch, size)
                values["train"]["max_steps"] = plain["train"]["max_steps"] = size.steps
                plain["train"]["compile"] = False
                results = [self.weft(values, name, arch), self.weft(plain, name, f"{arch}-plain", plain=True)]
                self.keep({"part": "check", "results": results})
                if any("error" in result for result in results):
                    print(*(result.get("error", "") for result in results), sep="\n")
                    continue
                # the fast path may report the loss of the step before: compare what the log has at its end
                ends = [result["losses"][-1] for result in results]
                validations = [result["validations"][-1][1] for result in results]
                difference = max(abs(a - b) for a, b in (ends, validations))
                is_equal = difference < 0.02 * validations[1]
                print(f"== {name} {arch}: training loss {ends}, validation loss {validations}: {verdict(is_equal)}")

    def variants(self) -> None:
        for name in self.args.sizes:
            for arch in self.args.archs:
                for variant in self.args.variants:
                    choice: dict[str, Any] = {}
                    for word in variant.split(","):
                        choice |= WORDS[word]
                    result = self.weft(self.values(arch, self.sizes[name]), name, arch, **choice)
                    self.keep({"part": "variants", "variant": variant, **result})
                    show(result, self.sizes[name], variant)

    def replicas(self) -> None:
        for name, arch in product(self.args.sizes, self.args.archs):
            speeds = {}
            for kind in ("plain", "ddp", "fsdp"):
                with socket.socket() as server:
                    server.bind(("127.0.0.1", 0))
                    port = server.getsockname()[1]
                options: dict[str, Any] = {"unrecorded": True} if kind == "plain" else {"replica": kind, "port": port}
                result = self.weft(self.values(arch, self.sizes[name]), name, arch, **options)
                self.keep({"part": "replicas", "kind": kind, **result})
                show(result, self.sizes[name], kind)
                speeds[kind] = median(result["ms"]) if result.get("ms") else float("nan")
            for kind, target in REPLICA_TARGETS.items():
                ratio = speeds["plain"] / speeds[kind]
                text = f"{name} {arch}, one process, {kind} against plain: {ratio:.3f}, target {target}"
                print(f"== {text}: {verdict(ratio >= target)}")


def show(result: dict[str, Any], size: Size, note: str = "") -> None:
    label = f"{result['size']} {result['system']} {note}".rstrip()
    if not result.get("ms"):
        print(f"{label}: {result.get('error', 'too few steps')}", flush=True)
        return
    ms = sorted(result["ms"])
    tokens = size.rows * size.context / median(ms) * 1e3
    spread = f"{ms[len(ms) // 10]:.2f} to {ms[-1 - len(ms) // 10]:.2f}"
    graphs = f", {result['graphs']} graphs" if "graphs" in result else ""
    first = result.get("first") or 0.0
    speed = f"{median(ms):.2f} ms per step ({spread}), {tokens:,.0f} tokens per second"
    print(f"{label}: {speed}, first step after {first:.1f} s{graphs}", flush=True)
    for key, unit in (("parts", "ms"), ("groups", "ms"), ("phases", "s")):
        if values := result.get(key):
            print(f"    {key}: " + ", ".join(f"{name} {value:.2f} {unit}" for name, value in values.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, help="checkout of nanoGPT; without it, weft alone is measured")
    parser.add_argument("--data", type=Path, default=SHARED_DATA / "tinyshakespeare" / "input.txt", help="Tiny Shakespeare")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS[:3]))
    parser.add_argument("--sizes", nargs="+", choices=tuple(SIZES), default=list(SIZES))
    parser.add_argument("--archs", nargs="+", choices=ARCHS, default=list(ARCHS))
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), help="of the words " + ", ".join(WORDS))
    parser.add_argument("--profile", action="store_true", help=f"profile {PROFILED} steps after those that are measured")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--target-steps", type=int, default=1000, help="budget of weft in the part `target`")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds after which a training is ended")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/gpu-training"))
    parser.add_argument("--tiny", action="store_true", help="tiny sizes on a CPU, to test this program")
    args = parser.parse_args()
    if args.tiny:
        args.target_steps = min(args.target_steps, 60)
    benchmark = Benchmark(args)
    for part in args.parts:
        start = time.time()
        print(f"---- {part}", flush=True)
        getattr(benchmark, part)()
        print(f"---- {part}: {time.time() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
