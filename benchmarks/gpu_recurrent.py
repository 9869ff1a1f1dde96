"""Recurrent layers on a GPU: cuDNN's LSTM, weft's LSTM, and minGRU and minLSTM, which are parallel over time.

    python benchmarks/gpu_recurrent.py [--only PART] [--profile] [--seconds 420]

2 layers of hidden size 512, 64 rows of 256 tokens. Parts, in this order:

    cudnn   nn.LSTM alone, forward and backward: float32, TF32, autocast, bfloat16, float16, and layer by layer
    equal   values and gradients of the Triton kernels against the loop over positions, on this GPU
    scan    the kernels alone, in milliseconds and GB/s, for several ways to start them
    step    language models of weft: forward and backward; with clipping and AdamW; compiled and not
    train   the training loop of `weft train`, per step
    loss    output layer and loss for a vocabulary of 50,304: plain, compiled, in chunks, fused; time and peak memory

Each time is the median of 3 repetitions, with their range. Results are printed as they come; a part that fails says why, and
the next one starts. --profile prints the kernels that take the most time, and how long the GPU waits for the host. --tiny runs
through on a CPU.

Bars on an H200, against cuDNN's forward and backward alone in TF32: the whole step of minGRU or minLSTM 8 times as fast, that
of weft's LSTM as fast.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _common import verdict
from _gpu_bench import TINY, WARMUP_STEPS, Bench, Clock, Size, constant
from _gpu_loss import measure_loss
from torch import Tensor, nn

from weft.cli.threads import set_threads
from weft.errors import TrainingInterrupted
from weft.models.config import MIN_RNNS, LanguageModelConfig
from weft.models.lm import LanguageModel, language_model
from weft.nn.scan import gated_scan, linear_scan, scan_by_loop
from weft.runs.job import train

TRAIN_STEPS, MAX_STEPS = 160, 5000  # measured, of a training that is long enough to be compiled
PARTS = ("cudnn", "equal", "scan", "step", "train", "loss")
REFERENCE = "cuDNN LSTM, TF32"  # what the bars compare with


# ---- cuDNN alone


def lstm_work(
    bench: Bench, layers: list[nn.LSTM], *, dtype: torch.dtype, autocast: torch.dtype | None = None
) -> Callable[[], None]:
    """Forward and backward of LSTMs on top of each other."""
    size = bench.size
    stack = nn.ModuleList(layers).to(bench.device, dtype)
    x = torch.randn(size.rows, size.length, size.dim, device=bench.device, dtype=dtype, requires_grad=True)
    grad = torch.randn_like(x)

    def work() -> None:
        y = x
        with torch.autocast(bench.device.type, autocast) if autocast else nullcontext():
            for layer in stack:
                y = layer(y)[0]
        torch.autograd.backward(y, grad.to(y.dtype))
        x.grad = None
        stack.zero_grad()

    return work


def measure_cudnn(bench: Bench) -> None:
    dim, depth = bench.size.dim, bench.size.num_layers

    def whole() -> list[nn.LSTM]:
        return [nn.LSTM(dim, dim, depth, batch_first=True)]

    def single() -> list[nn.LSTM]:
        return [nn.LSTM(dim, dim, batch_first=True) for _ in range(depth)]

    for name, tf32 in (("float32", False), ("TF32", True)):
        torch.backends.cudnn.allow_tf32 = tf32
        bench.measure(f"cuDNN LSTM, {name}", lambda: lstm_work(bench, whole(), dtype=torch.float32))
        bench.measure(f"cuDNN LSTM, {name}, layer by layer", lambda: lstm_work(bench, single(), dtype=torch.float32))
    bench.measure(
        "cuDNN LSTM, autocast to bfloat16", lambda: lstm_work(bench, whole(), dtype=torch.float32, autocast=torch.bfloat16)
    )
    for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        bench.measure(f"cuDNN LSTM, {name}", partial(lstm_work, bench, whole(), dtype=dtype))
        bench.measure(f"cuDNN LSTM, {name}, layer by layer", partial(lstm_work, bench, single(), dtype=dtype))


# ---- the scan


def scan_inputs(bench: Bench, num_gates: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    size = bench.size
    projected = 3 * torch.randn(size.rows, size.length, (num_gates + 1) * size.dim, device=bench.device)
    return projected.to(dtype), torch.randn(size.rows, size.dim, device=bench.device)


def check_equal(bench: Bench) -> None:
    """Print the largest differences between the fast scan and the loop."""
    for num_gates in (1, 2):
        for dtype in (torch.float32, torch.bfloat16):
            projected, initial = scan_inputs(bench, num_gates, dtype)
            results = []
            for function in (scan_by_loop, gated_scan):
                leaves = [part.detach().requires_grad_() for part in (projected, initial)]
                y = function(leaves[0], leaves[1], num_gates)
                grad = torch.randn(y.shape, device=y.device, generator=torch.Generator(bench.device).manual_seed(0))
                results.append([y.detach(), *torch.autograd.grad(y, leaves, grad)])
            differences = [(a.float() - b.float()).abs().max().item() for a, b in zip(*results, strict=True)]
            scale = results[0][1].float().abs().max().item()
            limit = 2e-5 if dtype == torch.float32 else 2e-2 * scale
            is_equal = differences[0] < 2e-5 and max(differences) < max(limit, 2e-5)
            values = ", ".join(f"{name} {value:.1e}" for name, value in zip(("y", "inputs", "state"), differences, strict=True))
            result = "equal" if is_equal else "DIFFERENT"
            print(f"  {num_gates} gates, {str(dtype)[6:]:<9} {result}: largest differences: {values}", flush=True)
    check_half_lstm(bench)


def check_half_lstm(bench: Bench) -> None:
    """Print how far the gradients of an LSTM under autocast, where it runs in float16, are from those in float32, relative to
    their norm."""
    size = bench.size
    tokens = torch.randint(0, size.vocab_size, (size.rows, size.length + 1), device=bench.device)
    model, results = build_model(bench, "lstm"), []
    for is_mixed in (False, True):
        with torch.autocast(bench.device.type, torch.bfloat16, enabled=is_mixed):
            loss = model.loss(tokens[:, :-1], tokens[:, 1:])[0].mean()
        results.append(torch.autograd.grad(loss, list(model.parameters())))
    errors = [((a - b).norm() / b.norm()).item() for a, b in zip(*results, strict=True)]
    print(f"  LSTM under autocast: gradients differ by {max(errors):.1e} of their norm from those in float32", flush=True)


def measure_scan(bench: Bench) -> None:
    size = bench.size
    values = size.rows * size.length * size.dim
    for num_gates in (1, 2):
        projected, initial = scan_inputs(bench, num_gates, torch.bfloat16)
        a = torch.rand(size.rows, size.length, size.dim, device=bench.device)
        bench.measure(f"scan of torch, {num_gates} gates, forward", constant(partial(linear_scan, a, a, initial)))
        if bench.device.type != "cuda" or importlib.util.find_spec("triton") is None:
            print("  no kernels: they need a GPU and Triton")
            continue
        from weft.nn.triton_scan import Launch, backward, forward

        y = forward(projected, initial, num_gates)
        launches = [Launch(), *(Launch(block, stages, 1) for block in (64, 128) for stages in (1, 4, 8, 12)), Launch(256, 8, 2)]
        for launch in dict.fromkeys(launches):
            name = f"{num_gates} gates, {launch.block} channels, {launch.stages} stages, {launch.warps} warps"
            read = values * 2 * (num_gates + 1)
            bench.measure(
                f"forward, {name}",
                constant(partial(forward, projected, initial, num_gates, launch)),
                read + 4 * values,
            )
            bench.measure(
                f"backward, {name}",
                constant(partial(backward, y, projected, initial, y, num_gates, launch)),
                2 * read + 8 * values,
            )


# ---- models


MODELS: dict[str, dict[str, Any]] = {
    "lstm": {"layer_type": "lstm"},
    **{name: dict(values) for name, values in MIN_RNNS.items()},
    "mingru, 4 x feed-forward": {**MIN_RNNS["mingru"], "ffn_dim": 4},  # a multiple here
    "mingru, no feed-forward": {**MIN_RNNS["mingru"], "ffn_dim": 0},
}


def build_model(bench: Bench, name: str) -> LanguageModel:
    size, values = bench.size, dict(MODELS[name])
    if "ffn_dim" in values:
        values["ffn_dim"] *= size.dim
    config = LanguageModelConfig.model_validate(
        {**values, "num_layers": size.num_layers, "hidden_size": size.dim}
    ).with_defaults()
    torch.manual_seed(0)
    model = language_model(config, vocab_size=size.vocab_size, context_length=size.length, vocabulary="")
    return model.to(bench.device).train()


def model_work(bench: Bench, model: nn.Module, *, compiled: str | None, whole: bool) -> Callable[[], None]:
    """Forward and backward of a model, and if `whole`, clipping and the optimizer."""
    size = bench.size
    tokens = torch.randint(0, size.vocab_size, (size.rows, size.length + 1), device=bench.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=bench.device.type == "cuda")

    def loss() -> Tensor:
        with bench.autocast():
            losses: Tensor = model.loss(tokens[:, :-1], tokens[:, 1:])[0]  # type: ignore[operator]
        return losses.mean()

    if compiled is not None:
        backend = (
            {"mode": None if compiled == "default" else compiled} if bench.device.type == "cuda" else {"backend": "aot_eager"}
        )
        loss = torch.compile(loss, **backend)

    def work() -> None:
        torch.autograd.backward(loss())
        if whole:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            optimizer.step()
        optimizer.zero_grad(set_to_none=compiled != "reduce-overhead")

    return work


def step_cases(bench: Bench) -> Iterator[tuple[str, Callable[[], nn.Module], str | None]]:
    yield "lstm", lambda: build_model(bench, "lstm"), None
    for name in list(MODELS)[1:]:
        for label, compiled in (("eager", None), ("compiled", "default"), ("CUDA graph", "reduce-overhead")):
            yield f"{name}, {label}", partial(build_model, bench, name), compiled


def measure_steps(bench: Bench, *, profile: bool) -> None:
    for name, build, compiled in step_cases(bench):
        for part, whole in (("forward and backward", False), ("whole step", True)):

            def work(build: Any = build, compiled: str | None = compiled, whole: bool = whole) -> Callable[[], None]:
                torch.compiler.reset()
                return model_work(bench, build(), compiled=compiled, whole=whole)

            bench.measure(f"{name}: {part}", work)
        if profile and bench.device.type == "cuda" and time.perf_counter() < bench.end:
            print_profile(bench, work())


def print_profile(bench: Bench, work: Callable[[], None]) -> None:
    """The kernels that take the most time in 5 steps, and how long the GPU waits."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    for _ in range(WARMUP_STEPS):
        work()
    bench.wait()
    with record(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        start = time.perf_counter()
        for _ in range(5):
            work()
        bench.wait()
        seconds = time.perf_counter() - start
    events = seen.key_averages()
    busy = sum(event.self_device_time_total for event in events if event.device_type == DeviceType.CUDA)
    print(f"    per step, while profiled: {seconds / 5 * 1e3:.2f} ms, of which kernels {busy / 5e3:.2f} ms")
    print(events.table(sort_by="self_cuda_time_total", row_limit=15, max_name_column_width=60))


# ---- the training loop


def measure_training(bench: Bench) -> None:
    """Milliseconds per step of `weft train`, in blocks of 20 steps, without the first 40."""
    size, steps = bench.size, TRAIN_STEPS if bench.device.type == "cuda" else 61
    for arch in ("lstm", *MIN_RNNS):
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            letters = torch.randint(97, 123, (min(2_000_000, 40 * size.rows * size.length),)).tolist()
            (directory / "text.txt").write_text("".join(map(chr, letters)))
            values = {
                "task": "lm", "recommend": False, "tokenizer": {"type": "char"},
                "data": {"train": "text.txt", "valid": 0.01, "context_length": size.length},
                "model": {"arch": arch, "num_layers": size.num_layers, "hidden_size": size.dim},
                "train": {"max_steps": MAX_STEPS, "batch_tokens": size.rows * size.length, "num_validations": 1,
                          "device": bench.device.type},
            }  # fmt: skip
            clock = Clock(bench, steps)
            try:
                train(values, directory / "run", base=directory, callback=clock)
            except TrainingInterrupted:
                pass
            except Exception as error:
                print(f"  {arch}: FAILED: {type(error).__name__}: {str(error)[:300]}", flush=True)
                continue
            blocks = [1e3 * (clock.times[end] - clock.times[end - 20]) / 20 for end in range(40, len(clock.times), 20)]
            parameters, notes = clock.num_parameters, " ".join(clock.notes[1:])
            bench.medians[f"{arch}: train"] = median = statistics.median(blocks)
            print(
                f"  {arch:<12} {parameters:>10,} parameters {median:>9.3f} ms per step  "
                f"[{min(blocks):.3f}, {max(blocks):.3f}]  loss {clock.losses[0]:.3f} to {clock.losses[-1]:.3f}  {notes}",
                flush=True,
            )


def print_bars(bench: Bench) -> None:
    """The ratios of the issue, if their parts were measured."""
    if (reference := bench.medians.get(REFERENCE)) is None:
        return
    print(f"\nTimes faster than {REFERENCE}, forward and backward alone ({reference:.2f} ms):")
    for name, value in bench.medians.items():
        if ": whole step" in name or ": train" in name:
            bar = 1.0 if name.startswith("lstm") else 8.0
            print(f"  {name:<54} {reference / value:>7.2f}  (bar {bar:g}: {verdict(reference / value >= bar)})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=PARTS, help="measure only this part; repeatable")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--seconds", type=float, default=420.0, help="time limit; parts that start later are skipped")
    parser.add_argument("--tiny", action="store_true", help="small sizes, on a CPU")
    args = parser.parse_args()
    if not (args.tiny or torch.cuda.is_available()):
        parser.exit(0, "skipped: no GPU; pass --tiny to run through on a CPU\n")
    set_threads(1 if args.tiny else None)
    device = torch.device("cpu" if args.tiny else "cuda")
    bench = Bench(device, args.seconds, TINY if args.tiny else Size())
    name = "CPU" if args.tiny else torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, {bench.size}")
    parts: dict[str, Callable[[], None]] = {
        "cudnn": lambda: measure_cudnn(bench),
        "equal": lambda: check_equal(bench),
        "scan": lambda: measure_scan(bench),
        "step": lambda: measure_steps(bench, profile=args.profile),
        "train": lambda: measure_training(bench),
        "loss": lambda: measure_loss(bench),
    }
    for part in args.only or PARTS:
        print(f"{part}:", flush=True)
        try:
            parts[part]()
        except Exception as error:  # such as too little memory: the next part may still work
            print(f"  FAILED: {type(error).__name__}: {str(error)[:500]}", flush=True)
    if not args.tiny:
        print_bars(bench)


if __name__ == "__main__":
    main()
