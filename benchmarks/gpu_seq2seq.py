"""Training speed of encoder-decoders on a GPU: as written, in few shapes, and with recorded steps (CUDA graphs).

    python benchmarks/gpu_seq2seq.py --data DIR [--only NAME] [--modes eager,shapes,graphs,stepwise,compiled] [--profile]

Multi30k, German to English, with the recommended settings, and with plain ones (AdamW, no R-Drop, no EMA); `64` are the models
and batches of 64 sentences of seq2seq_speed.py, English to German. Modes:

    eager     batches as they are, one kernel after another
    shapes    batches padded to few shapes
    graphs    few shapes, forward and backward pass recorded once per shape: what `weft train` does
    stepwise  graphs of the plain loop over positions (LSTM only), which has more kernels
    compiled  graphs of a compiled model (Transformer only): an experiment

Target tokens are counted with </s>, without padding and start tokens. Steps before the measurement, which record, are not part
of it. Then the losses of recorded steps are compared with those of the same steps as written, without dropout and with it, and
the gradients of the fast path of input feeding with those of the plain loop.
--profile prints the kernels that take the most time, and how many launches a step has. Each part has a time limit, and each
result is printed as soon as it is there. --padding prints how much of the batches is padding, and --tiny runs through on tiny
data, without graphs; both need no GPU.

Bars on an H200: 80,000 target tokens per second with input feeding, 200,000 with the Transformer.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from _common import SHARED_DATA, require_data, verdict
from _gpu_clock import Clock
from _toolkits import VOCAB_SIZE
from seq2seq_speed import MODELS as SPEED_MODELS
from seq2seq_speed import FixedSizeBuilder

from weft import lock
from weft.cli.threads import set_threads
from weft.config import override
from weft.data.few_shapes import FewShapes
from weft.errors import TrainingInterrupted, WeftError
from weft.nn.cross_attention import StepwiseDecoder
from weft.runs.job import Job
from weft.runs.recommend import complete
from weft.runs.run_dir import make_directory
from weft.tasks.prepare import prepare
from weft.training.cuda_graphs import CudaRecorder, GraphedReplica
from weft.training.data_parallel import Replica
from weft.training.loop import Loop
from weft.training.neural import NeuralTrainer, read_training

MODELS: dict[str, dict[str, Any]] = {"lstm": {"arch": "lstm-input-feeding"}, "transformer": {"arch": "transformer"}}
SETTINGS: dict[str, list[str]] = {
    "recommended": [],
    "plain": ["train.r_drop=0.0", "train.optimizer=adamw", "train.ema_decay=0.0"],
    "64": ["train.ema_decay=0.0"],
}
BARS = {"lstm": 80_000, "transformer": 200_000}
MODES = ("eager", "shapes", "graphs", "stepwise", "compiled")
RECORDED = ("graphs", "stepwise", "compiled")
MODEL_OF_MODE = {"stepwise": "lstm", "compiled": "transformer"}  # a loop over positions would be compiled once per length
CHECKED_STEPS = 20
TINY = ["train.batch_tokens=200", "model.hidden_size=16", "model.num_layers=1", "train.device=cpu"]


class Trainer(NeuralTrainer):
    """Trains in a mode of this benchmark, whatever `weft train` would choose."""

    def __init__(self, task: Any, mode: str, *, max_shapes: int | None = None) -> None:
        super().__init__(task)
        self.mode, self.max_shapes = mode, max_shapes

    def loop(self, job: Job) -> Loop:
        loop = super().loop(job)
        sampler: Any = loop.batch_sampler
        plain = sampler.sampler if isinstance(sampler, FewShapes) else sampler
        loop.batch_sampler, loop.replica = plain, Replica(loop.loss_module)
        if self.mode != "eager":
            loop.batch_sampler = FewShapes(plain) if self.max_shapes is None else FewShapes(plain, max_shapes=self.max_shapes)
        if self.mode == "compiled":
            loop.loss_module.compile(dynamic=True)
        if self.mode in RECORDED:
            recorder = CudaRecorder(loop.device_config.device)
            weights = loop.optimizers.weights
            loop.replica = GraphedReplica(loop.loss_module, weights, recorder, on_failure=job.callback.on_note)
        return loop


class Part(NamedTuple):
    """A model with settings."""

    model: str
    setting: str

    def __str__(self) -> str:
        return f"{self.model:<12} {self.setting:<12}"


class Benchmark:
    """Trains the models of this benchmark in a directory."""

    def __init__(self, args: argparse.Namespace, directory: Path) -> None:
        self.args, self.directory, self.count = args, directory, 0

    def run_values(self, model: str, setting: str, overrides: Sequence[str]) -> dict[str, Any]:
        values: dict[str, Any] = {"task": "seq2seq", "seed": 1, "data": self.data_files(), "model": dict(MODELS[model])}
        if setting == "64":
            data = {split: list(reversed(names)) for split, names in self.data_files().items()}
            tokenizer = {"type": "bpe", "vocab_size": 300 if self.args.tiny else VOCAB_SIZE}
            values |= {"recommend": False, "data": data, "model": SPEED_MODELS[model], "tokenizer": tokenizer}
        # without validations, which would be part of the time
        common = ["train.num_validations=1", *(TINY if self.args.tiny else [f"train.device={self.args.device}"])]
        return override(values, [*SETTINGS[setting], *overrides, *common])

    def data_files(self) -> dict[str, list[str]]:
        if self.args.tiny:
            return {"train": [str(self.directory / f"train.{side}") for side in ("source", "target")]}
        names = {"train": "train", "valid": "val"}
        return {
            split: [str((self.args.data / f"{stem}.{language}.gz").resolve()) for language in ("de", "en")]
            for split, stem in names.items()
        }

    def train(
        self, part: Part, mode: str, clock: Clock, *, overrides: Sequence[str] = (), max_shapes: int | None = None
    ) -> None:
        """Train until the clock stops it."""

        def train(job: Job) -> None:
            clock.began = time.perf_counter()
            task = FixedSizeBuilder() if part.setting == "64" else job.config.preset.estimator.network_task
            with suppress(TrainingInterrupted):
                Trainer(task, mode, max_shapes=max_shapes).train(job)

        self.with_job(part, overrides, clock, train)

    def print_padding(self, part: Part) -> None:
        """Print the shapes of the batches and how many positions are padding, as they are and in few shapes. The shapes are
        found from epochs 0 to 3."""

        def count(job: Job) -> None:
            task: Any = FixedSizeBuilder() if part.setting == "64" else job.config.preset.estimator.network_task
            _, plain = read_training(task, job)
            samplers: dict[str, Any] = {"as they are": plain}
            samplers |= {f"at most {limit} shapes": FewShapes(plain, max_shapes=limit) for limit in (16, 24, 32)}
            for name, sampler in samplers.items():
                for epoch in (0, 4):
                    batches = [sampler.batch(epoch, index) for index in range(sampler.batches(epoch))]
                    used = sum(int(batch.source_mask.sum() + batch.token_mask[:, 1:].sum()) for batch in batches)
                    positions = sum(batch.source.numel() + batch.tokens[:, 1:].numel() for batch in batches)
                    print(
                        f"{part} epoch {epoch}, {name}: {len(batches)} batches, {len({batch.sizes() for batch in batches})}"
                        f" shapes, {100 * (1 - used / positions):.1f}% padding",
                        flush=True,
                    )

        self.with_job(part, (), Clock(seconds=self.args.seconds), count)

    def compare_gradients(self, precision: str) -> None:
        """Print how the two paths of input feeding differ."""
        overrides = ["model.dropout=0.0", f"train.precision={precision}"]

        def compare(job: Job) -> None:
            task: Any = job.config.preset.estimator.network_task
            Gradients(task).train(job)

        for setting in ("plain", "64"):  # multiplicative and additive attention
            self.with_job(Part("lstm", setting), overrides, Clock(seconds=self.args.seconds), compare)

    def with_job(self, part: Part, overrides: Sequence[str], clock: Clock, action: Callable[[Job], None]) -> None:
        """Call `action` with a run that is prepared for training."""
        self.count += 1
        run_dir = self.directory / f"run-{self.count}"
        values = self.run_values(part.model, part.setting, overrides)
        config = complete(values, run_dir, base=Path()).config
        directory = make_directory(run_dir)
        with lock.Lock(run_dir):
            directory.begin(config, "", overwrite=True)
            vocabulary, columns = prepare(config.spec, config, directory, clock)
            action(Job(config, directory, vocabulary, columns, clock))

    def measure(self, part: Part, mode: str) -> None:
        """Print the speed of a model in a mode."""
        clock = Clock(seconds=self.args.seconds, profile=self.args.profile)
        name = f"{part} {mode:<9}"
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        with plain_loop() if mode == "stepwise" else nullcontext():
            self.train(part, mode, clock)
        rate = clock.rate()
        if rate is None:
            print(f"{name} no result after {self.args.seconds:.0f} s, {len(clock.losses)} steps", flush=True)
        else:
            bar = verdict(rate[0] >= BARS[part.model]) if mode == "graphs" else ""
            print(
                f"{name} {rate[0]:>9,.0f} target tokens/s  {rate[1]:7.2f} ms per step (median on the host"
                f" {clock.median_ms():.2f})  {self.describe(clock)}  {bar}",
                flush=True,
            )
        for note in clock.notes:
            if "CUDA graphs" in note:
                print(f"    note: {note}", flush=True)
        if clock.table:
            print(clock.table, flush=True)

    def describe(self, clock: Clock) -> str:
        """Shapes, graphs, replays and memory of a training."""
        if clock.loop is None:
            return ""
        sampler: Any = clock.loop.batch_sampler
        parts = [f"{len({sampler.batch(0, index).sizes() for index in range(sampler.batches(0))})} shapes per epoch"]
        replica = clock.loop.replica
        if isinstance(replica, GraphedReplica):
            computed = sum(replica.num_batches.values()) - len(replica.graphs)
            parts.append(f"{len(replica.graphs)} graphs, {clock.loop.train_state.step - computed} replays")
        if torch.cuda.is_available():
            parts.append(f"{torch.cuda.max_memory_reserved() / 1e9:.1f} GB")
        start = clock.start[0] - clock.began if clock.start else 0.0
        return ", ".join([*parts, f"{start:.0f} s before"])

    def compare(self, part: Part, *, dropout: bool) -> None:
        """Print whether recorded steps have the losses of plain ones."""
        overrides = [] if dropout else ["model.dropout=0.0"]
        losses, replays = dict[str, list[float]](), 0
        for mode in ("shapes", "graphs"):
            clock = Clock(seconds=self.args.seconds, num_steps=CHECKED_STEPS)
            self.train(part, mode, clock, overrides=overrides, max_shapes=2)  # so that most steps are replays
            losses[mode] = clock.losses[:CHECKED_STEPS]
            if clock.loop is not None and isinstance(clock.loop.replica, GraphedReplica):
                replays = CHECKED_STEPS - sum(clock.loop.replica.num_batches.values()) + len(clock.loop.replica.graphs)
        if len(losses["graphs"]) < CHECKED_STEPS or len(losses["shapes"]) < CHECKED_STEPS:
            print(f"{part} losses not compared: out of time", flush=True)
            return
        worst = max(abs(a - b) / max(abs(b), 1e-9) for a, b in zip(losses["graphs"], losses["shapes"], strict=True))
        print(
            f"{part} losses of {CHECKED_STEPS} steps, {'with' if dropout else 'without'} dropout, {replays}"
            f" replays: largest relative difference {worst:.1e} ({losses['shapes'][0]:.4f} to {losses['shapes'][-1]:.4f},"
            f" recorded {losses['graphs'][-1]:.4f})  {verdict(worst <= 1e-3 and replays > 0)}",
            flush=True,
        )


def plain_loop() -> AbstractContextManager[Any]:
    """Context manager without the fast path of input feeding."""
    return patch.object(StepwiseDecoder, "runs_fast", lambda decoder, x, token_mask: False)


class Gradients(NeuralTrainer):
    """Compares the gradients of a batch on the fast path of input feeding with those of the plain loop, and trains nothing."""

    def train(self, job: Job) -> None:
        loop = self.loop(job)
        batch, replica = loop.next_batch(), Replica(loop.loss_module)
        results = []
        for context in (nullcontext(), plain_loop()):
            torch.manual_seed(1)
            with context:
                moved = loop.device_config.to_device(batch)
                loss = replica.accumulate(moved, None, True, is_last=True, autocast=loop.device_config.autocast)
            gradients = [weight.grad for weight in loop.optimizers.weights if weight.grad is not None]
            results.append((float(loss.total.detach()), gradients))
            loop.optimizers.zero_grad()
        (fast, fast_gradients), (plain, plain_gradients) = results
        pairs = zip(fast_gradients, plain_gradients, strict=True)
        worst = max(float((ours - theirs).norm() / theirs.norm().clamp(min=1e-12)) for ours, theirs in pairs)
        is_exact = loop.device_config.precision is torch.float32
        print(
            f"input feeding, fast path against the plain loop, {loop.device_config.precision}: loss {fast:.4f} and {plain:.4f},"
            f" largest relative difference of a gradient {worst:.1e}  {verdict(worst <= 1e-3) if is_exact else ''}",
            flush=True,
        )


def guarded(action: Callable[[], None], name: str) -> None:
    """Run a part; if it fails, say so and go on with the next."""
    try:
        action()
    except (RuntimeError, WeftError) as error:
        print(f"{name}: failed: {type(error).__name__}: {str(error)[:600]}", flush=True)


def write_tiny_data(directory: Path) -> None:
    rng = random.Random(0)
    words = ["one", "two", "three", "four", "five", "six"]
    lines = [rng.choices(words, k=rng.randint(1, 7)) for _ in range(120)]
    (directory / "train.source").write_text("".join(" ".join(line) + "\n" for line in lines))
    (directory / "train.target").write_text("".join(" ".join(reversed(line)) + "\n" for line in lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED_DATA / "multi30k")
    parser.add_argument("--only", action="append", choices=list(MODELS))
    parser.add_argument("--settings", default=",".join(SETTINGS), help="some of recommended,plain,64")
    parser.add_argument("--modes", default=",".join(MODES), help="modes to measure")
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of each part")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--padding", action="store_true", help="print shapes and padding of the batches, and train nothing")
    parser.add_argument("--tiny", action="store_true", help="tiny data and models on a CPU, without graphs")
    args = parser.parse_args()
    set_threads(1 if args.tiny else None)
    if not args.tiny:
        require_data(parser, args.data)
        if not torch.cuda.is_available() and not args.padding:
            parser.exit(0, "skipped: no GPU; use --tiny\n")
        if torch.cuda.is_available():
            print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Python {sys.version.split()[0]}", flush=True)
    with tempfile.TemporaryDirectory(prefix="gpu-seq2seq-") as name:
        if args.tiny:
            write_tiny_data(Path(name))
        run(Benchmark(args, Path(name)), args)


def run(benchmark: Benchmark, args: argparse.Namespace) -> None:
    """Run all parts, those that may take the longest last."""
    if args.padding:
        for setting in args.settings.split(","):
            benchmark.print_padding(Part("transformer", setting))
        return
    actions: list[tuple[str, Callable[[], None]]] = []
    modes = [mode for mode in args.modes.split(",") if not (args.tiny and mode in RECORDED)]
    parts = [Part(model, setting) for setting in args.settings.split(",") for model in args.only or MODELS]
    for part in parts:
        for mode in modes:
            if MODEL_OF_MODE.get(mode, part.model) == part.model:
                actions.append((f"{part} {mode}", partial(benchmark.measure, part, mode)))
        if "graphs" in modes:
            for dropout in (False, True):
                actions.append((f"{part} losses", partial(benchmark.compare, part, dropout=dropout)))
    if "lstm" in (args.only or MODELS):
        for precision in ("float32",) if args.tiny else ("float32", "bfloat16"):
            actions.append(("input feeding", partial(benchmark.compare_gradients, precision)))
    for name, action in sorted(actions, key=lambda named: named[0].endswith("compiled")):
        guarded(action, name)


if __name__ == "__main__":
    main()
