"""A run while it is trained, as the terminal sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.cli.display import Display
from weft.cli.output import score_name
from weft.cli.signals import Stop

if TYPE_CHECKING:
    from weft.training.loop import Loop

SHOWN, WIDE = 3, 100  # texts that are shown at each validation, and letters of each
SMOOTHING_STEPS = 0.95  # of the loss that is shown: about the mean of the last 20 steps


class RunningMean:
    """A running mean that forgets, right from its first value on."""

    def __init__(self) -> None:
        self.total, self.weight = 0.0, 0.0

    def add(self, value: float, weight: float = 1.0) -> float:
        self.total = SMOOTHING_STEPS * self.total + value
        self.weight = SMOOTHING_STEPS * self.weight + weight
        return self.total / self.weight


def format_scores(scores: Mapping[str, float]) -> str:
    """'nats/token 1.8123'."""
    return "  ".join(f"{score_name(name)} {value:.4f}" for name, value in scores.items())


def format_sample(record: Mapping[str, Any]) -> str:
    """A text that was written at a validation, on one line: behind its prompt, or its source, where there is one."""
    from weft.plots.formatting import on_one_line

    def short(text: str, letters: int) -> str:
        return on_one_line(text if len(text) <= letters else text[: letters - 1] + "…")

    if "source" in record:
        source, text, meant = (short(record[name], WIDE // 3) for name in ("source", "text", "reference"))
        return f"{source} -> {text}  (reference: {meant})"
    return short(record["prompt"] + record["text"], WIDE)


class TrainProgress:
    """What `train` tells of itself, shown; and whether somebody wants it to stop."""

    def __init__(self, display: Display, stop: Stop) -> None:
        self.display, self.stop = display, stop
        self.scores: dict[str, float] = {}  # the latest of the validation data
        self._loss, self._speed, self._tokens = RunningMean(), RunningMean(), -1

    def on_note(self, text: str) -> None:
        self.display.line(text)

    def on_progress(self, name: str, done: int, total: int) -> None:
        self.display.show(name, done / max(1, total))

    def on_step(self, loop: Loop, loss: float, seconds: float) -> None:
        self.stop.saves = True
        train_state = loop.train_state
        shown = self._loss.add(loss)
        speed = ""
        if self._tokens < 0:
            self._introduce(loop)
        else:  # the first step of a process also warms up: its time says little
            speed = f"{self._speed.add(train_state.tokens - self._tokens, seconds):,.0f} tokens/s"
        self._tokens = train_state.tokens
        total = loop.total_steps()
        steps = f"step {train_state.step:,}" + (f"/{total:,}" if total is not None else "")
        self.display.show("training", loop.progress(), "  ".join(filter(None, [steps, f"loss {shown:.4f}", speed])))

    def _introduce(self, loop: Loop) -> None:
        parameters = sum(weight.numel() for weight in loop.loss_module.model.parameters())
        place = f"{loop.device_config.device}, {str(loop.device_config.precision).removeprefix('torch.')}"
        self.display.line(f"training {parameters:,} parameters by {loop.config.optimizer} ({place})")

    def on_validation(self, loop: Loop, scores: dict[str, float]) -> None:
        self.scores = scores
        best = "  best" if loop.train_state.best_step == loop.train_state.step else ""
        self.display.line(f"step {loop.train_state.step:>6,}  valid {format_scores(scores)}{best}")
        for record in loop.samples[:SHOWN]:
            self.display.line(f"{'':>13}{format_sample(record)}")

    def on_fit(self, num_parameters: int, scores: dict[str, float]) -> None:
        self.scores = scores
        self.display.line(f"counted {num_parameters:,} parameters" + (f"  valid {format_scores(scores)}" if scores else ""))

    def should_stop(self) -> bool:
        return self.stop.is_requested
