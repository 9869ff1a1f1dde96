"""The progress of a training run on the terminal: a header, a table of validations, and the progress line."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.display import Display
from weft.cli.output import Level, format_count, format_duration, format_percent, pluralize, print_message
from weft.cli.signals import Stop
from weft.metrics.labels import format_score, label_of
from weft.resources import format_bytes

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.training.group_timing import GroupSummary
    from weft.training.loop import Loop

MAX_SAMPLES = 3  # sample texts that are printed at each validation
SAMPLE_CHARS = 100
SMOOTHING = 0.95  # of the loss in the progress line: about the mean of the last 20 steps
INDENT = 11  # width of the names in the header
LOSSES = ("loss", "mlm_loss", "log_loss")  # metrics that the column "valid loss" may show
BUDGET_UNITS = {"max_steps": "step", "max_tokens": "token", "max_epochs": "epoch", "max_minutes": "minute"}
LEVELS: dict[str, Level] = {"warning: ": "warning", "note: ": "note"}


class RunningMean:
    """An exponential moving average with bias correction."""

    def __init__(self) -> None:
        self.total, self.weight = 0.0, 0.0

    def add(self, value: float, weight: float = 1.0) -> float:
        self.total = SMOOTHING * self.total + value
        self.weight = SMOOTHING * self.weight + weight
        return self.total / self.weight


class Mean:
    """The mean of the values since the last reset."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, value: float) -> None:
        self.total, self.count = self.total + value, self.count + 1

    def reset(self) -> float | None:
        mean = self.total / self.count if self.count else None
        self.total, self.count = 0.0, 0
        return mean


def show_note(display: Display, text: str) -> None:
    """Show a note of the library: 'warning: ...' and 'note: ...' become messages, anything else is a status line."""
    for prefix, level in LEVELS.items():
        if text.startswith(prefix):
            if not display.quiet:
                display.clear()
                print_message(level, text.removeprefix(prefix))
            return
    display.line(text)


def format_sample(record: Mapping[str, Any]) -> str:
    """A sample text on one line: after its prompt, or with its source and reference."""
    from weft.plots.formatting import on_one_line

    def short(text: str, limit: int) -> str:
        return on_one_line(text if len(text) <= limit else text[: limit - 1] + "…")

    if "source" in record:
        source, text, reference = (short(record[name], SAMPLE_CHARS // 3) for name in ("source", "text", "reference"))
        return f"{source} -> {text}  (reference: {reference})"
    return short(record["prompt"] + record["text"], SAMPLE_CHARS)


def describe_model(config: RunConfig, num_parameters: int, num_active: int | None = None) -> str:
    """'gpt: 4 layers, hidden size 256, 3.18M parameters'; with experts, also the number that a token uses."""
    options = config.model.model_dump()
    stack = options.get("encoder", options)  # of an encoder-decoder, whose decoder usually has the same sizes
    sizes = [pluralize(stack["num_layers"], "layer")] if "num_layers" in stack else []
    sizes += [f"hidden size {stack['hidden_size']}"] if "hidden_size" in stack else []
    active = "" if num_active in (None, num_parameters) else f" ({format_count(num_active)} active)"
    return f"{config.arch}: {', '.join([*sizes, f'{format_count(num_parameters)} parameters{active}'])}"


def describe_budget(config: RunConfig) -> str:
    """'150 steps of 1,024 tokens'."""
    train = config.train
    for name, unit in BUDGET_UNITS.items():
        value = getattr(train, name)
        if value is not None:
            count = f"{value:,.0f}" if value == int(value) else f"{value:g}"
            batch = f" of {train.batch_tokens:,} tokens" if unit == "step" else f", {train.batch_tokens:,} tokens per step"
            return f"{count} {unit}{'' if value == 1 else 's'}{batch}"
    return f"{train.batch_tokens:,} tokens per step"


def describe_group(group: GroupSummary, speed: float) -> str:
    """'2 processes: 12,345 tok/s, slowest rank 1 (host b), 8% of the time in exchanges, memory 310-340 MB per process'."""
    low, high = (format_bytes(value) for value in (min(group.peak_memory), max(group.peak_memory)))
    memory = low if low == high else f"{low} to {high}"
    exchange = format_percent(round(group.exchange_fraction, 2))
    return (
        f"{group.processes} processes: {speed:,.0f} tok/s, slowest {group.slowest}, {exchange} of the time in exchanges,"
        f" memory {memory} per process"
    )


def describe_splits(config: RunConfig) -> str:
    """'train 90%, valid 5%, test 5%'; '' if no split is a fraction of the training data."""
    fractions = config.data.model_dump(include={"valid", "test"})
    parts = {name: value for name, value in fractions.items() if isinstance(value, float)}
    if not parts:
        return ""
    rest = round(1 - sum(parts.values()), 6)
    return ", ".join(f"{name} {format_percent(value)}" for name, value in {"train": rest, **parts}.items())


class TrainProgress:
    """Prints the progress of a training run, and requests a stop after a signal. Without `config`, as in comparisons, it prints
    no header."""

    def __init__(self, display: Display, stop: Stop, config: RunConfig | None = None, output_dir: Path | None = None) -> None:
        self.display, self.stop, self.config, self.output_dir = display, stop, config, output_dir
        self.step = 0
        self._loss, self._speed, self._tokens = RunningMean(), RunningMean(), -1
        self._train_loss, self._has_header, self._start = Mean(), False, time.monotonic()

    def on_note(self, text: str) -> None:
        show_note(self.display, text)

    def on_data(self, summary: str) -> None:
        if self.config is None:
            return
        first, *rest = [line.strip() for line in summary.replace(f"{Path.cwd()}/", "").removesuffix("\n").split("\n")]
        examples = [line for line in rest if line.startswith("e.g.")]
        rest = [line for line in rest if line not in examples[1:]]  # one is enough; `weft check` prints more
        splits = describe_splits(self.config)
        self._header("Data", "\n".join([first, *([splits] if splits else []), *rest]))

    def on_progress(self, name: str, done: int, total: int) -> None:
        self.display.show(name, done / max(1, total))

    def on_step(self, loop: Loop, loss: float, seconds: float) -> None:
        self.stop.saves = True
        state = loop.train_state
        self.step, speed = state.step, ""
        self._train_loss.add(loss)
        mean = self._loss.add(loss)
        if self._tokens < 0:
            self._model_header(loop)
        else:  # the first step of a process includes warm-up, so its time is not counted
            speed = f"{self._speed.add(state.tokens - self._tokens, seconds):,.0f} tok/s"
        self._tokens = state.tokens
        total = loop.total_steps()
        steps = f"step {state.step:,}" + (f"/{total:,}" if total is not None else "")
        details = "  ".join(filter(None, [steps, f"loss {mean:.3f}", speed]))
        self.display.show("training", loop.progress(), details, title="")

    def on_validation(self, loop: Loop, scores: dict[str, float]) -> None:
        state, monitor = loop.train_state, loop.config.monitor
        loss = next((name for name in LOSSES if name in scores), None)
        names = [metric.name for metric in loop.loss_module.objective.monitors if metric.name in scores]
        monitored = monitor if monitor in scores else next(iter(names), None)
        columns = dict.fromkeys(filter(None, (loss, monitored)))
        heads = {name: "valid loss" if name == loss else label_of(name).text for name in columns}
        if not self._has_header:
            self._has_header = True
            widths = "".join(f"  {head:>10}" for head in heads.values())
            self.display.line(f"\n{'step':>7}{'epoch':>8}  {'train loss':>10}{widths}{'time':>8}", "bold")
        epoch = state.epoch + state.batch_index / max(1, loop.batch_sampler.batches(state.epoch))
        train_loss = format_score(self._train_loss.reset(), "loss")
        values = "".join(
            f"  {format_score(scores[name], label_of(name).style):>{max(10, len(head))}}" for name, head in heads.items()
        )
        mark = " *" if state.best_step == state.step else ""
        duration = format_duration(state.seconds)
        self.display.line(f"{state.step:>7,}{epoch:>8.1f}  {train_loss:>10}{values}{duration:>8}{mark}")
        if loop.timing.latest is not None:
            speed = state.tokens / max(state.seconds, 1e-9)
            self.display.line(f"{'':>9}{describe_group(loop.timing.latest, speed)}", "dim")
        for record in loop.samples[:MAX_SAMPLES]:
            self.display.line(f"{'':>9}{format_sample(record)}", "dim")

    def on_fit(self, num_parameters: int, scores: dict[str, float]) -> None:
        name = "" if self.config is None else f" {self.config.arch}"
        values = [f"valid {label_of(name).text} {format_score(value, label_of(name).style)}" for name, value in scores.items()]
        duration = format_duration(time.monotonic() - self._start)
        self._tokenizer_header()
        self.display.line(f"Fitted{name}: {', '.join([f'{num_parameters:,} parameters', *values[:1]])} ({duration})")

    def should_stop(self) -> bool:
        self.stop.saves = True  # a training without steps that asks saves before it stops
        return self.stop.is_requested

    # ---- header

    def _header(self, name: str, text: str) -> None:
        first, *rest = text.removesuffix("\n").split("\n")
        self.display.line("\n".join([name.ljust(INDENT) + first, *(" " * INDENT + line for line in rest)]))

    def _tokenizer_header(self) -> None:
        from weft.runs.run_dir import RunDir

        if self.config is None or self.output_dir is None:
            return
        tokenizers = self.config.spec.data.load(RunDir(self.output_dir)).by_name()
        texts = [
            f"{f'{name.split()[0]}: ' if len(tokenizers) > 1 else ''}{tokenizer.type}, {tokenizer.vocab_size:,} tokens"
            for name, tokenizer in tokenizers.items()
        ]
        if texts:
            self._header("Tokenizer", "; ".join(texts))

    def _model_header(self, loop: Loop) -> None:
        """The lines of the header that need the model."""
        from weft.cli.threads import threads
        from weft.nn.experts import num_active_parameters

        if self.config is None:
            return
        self._tokenizer_header()
        model = loop.loss_module.model
        num_parameters = sum(weight.numel() for weight in model.parameters())
        self._header("Model", describe_model(self.config, num_parameters, num_active_parameters(model)))
        device, precision = loop.device_config.device, str(loop.device_config.precision).removeprefix("torch.")
        cpus = f", {threads()} thread{'' if threads() == 1 else 's'}" if device.type == "cpu" else ""
        self._header("Training", f"{describe_budget(self.config)}, {loop.config.optimizer}, {device} {precision}{cpus}")
