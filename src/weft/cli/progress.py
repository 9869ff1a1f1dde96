"""A run while it is trained, as the terminal sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.cli.display import Display
from weft.cli.output import score_name
from weft.cli.signals import Stop

if TYPE_CHECKING:
    from weft.train.loop import Loop

SHOWN, WIDE = 3, 100  # texts that are shown at each validation, and letters of each
MEMORY = 0.95  # of the loss that is shown: about the mean of the last 20 steps


class Smooth:
    """A running mean that forgets, right from its first value on."""

    def __init__(self) -> None:
        self.total, self.weight = 0.0, 0.0

    def add(self, value: float, weight: float = 1.0) -> float:
        self.total = MEMORY * self.total + value
        self.weight = MEMORY * self.weight + weight
        return self.total / self.weight


def said(scores: Mapping[str, float]) -> str:
    """'nats/token 1.8123'."""
    return "  ".join(f"{score_name(name)} {value:.4f}" for name, value in scores.items())


def sampled(record: Mapping[str, Any]) -> str:
    """A text that was written at a validation, on one line: behind its prompt, or its source, where there is one."""
    from weft.plots.formatting import on_a_line

    def short(text: str, letters: int) -> str:
        return on_a_line(text if len(text) <= letters else text[: letters - 1] + "…")

    if "source" in record:
        source, text, meant = (short(record[name], WIDE // 3) for name in ("source", "text", "reference"))
        return f"{source} -> {text}  (reference: {meant})"
    return short(record["prompt"] + record["text"], WIDE)


class TrainWatcher:
    """What `train` tells of itself, shown; and whether somebody wants it to stop."""

    def __init__(self, display: Display, stop: Stop) -> None:
        self.display, self.stop = display, stop
        self.scores: dict[str, float] = {}  # the latest of the validation data
        self._loss, self._speed, self._tokens = Smooth(), Smooth(), -1

    def note(self, text: str) -> None:
        self.display.line(text)

    def working(self, name: str, done: int, total: int) -> None:
        self.display.show(name, done / max(1, total))

    def step(self, loop: Loop, loss: float, seconds: float) -> None:
        self.stop.saves = True
        cursor = loop.cursor
        shown = self._loss.add(loss)
        speed = ""
        if self._tokens < 0:
            self._introduce(loop)
        else:  # the first step of a process also warms up: its time says little
            speed = f"{self._speed.add(cursor.tokens - self._tokens, seconds):,.0f} tokens/s"
        self._tokens = cursor.tokens
        total = loop.total_steps()
        steps = f"step {cursor.step:,}" + (f"/{total:,}" if total is not None else "")
        self.display.show("training", loop.progress(), "  ".join(filter(None, [steps, f"loss {shown:.4f}", speed])))

    def _introduce(self, loop: Loop) -> None:
        parameters = sum(weight.numel() for weight in loop.learner.model.parameters())
        place = f"{loop.place.device}, {str(loop.place.precision).removeprefix('torch.')}"
        self.display.line(f"training {parameters:,} parameters by {loop.table.optimizer} ({place})")

    def validated(self, loop: Loop, scores: dict[str, float]) -> None:
        self.scores = scores
        best = "  best" if loop.cursor.best_step == loop.cursor.step else ""
        self.display.line(f"step {loop.cursor.step:>6,}  valid {said(scores)}{best}")
        for record in loop.samples[:SHOWN]:
            self.display.line(f"{'':>13}{sampled(record)}")

    def counted(self, parameters: int, scores: dict[str, float]) -> None:
        self.scores = scores
        self.display.line(f"counted {parameters:,} parameters" + (f"  valid {said(scores)}" if scores else ""))

    def stopping(self) -> bool:
        return self.stop.asked
