"""The lines of metrics.jsonl about training steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from weft.training.loop_protocols import RunLog
from weft.training.train_state import TrainState


class LogLine(NamedTuple):
    """A line that is due after a step. Its loss and gradient norms are known when the numbers of the step are."""

    step: int
    epoch: int
    loss_name: str
    learning_rate: float
    experts: Mapping[str, float]  # their load

    def write(self, train_state: TrainState, run_log: RunLog) -> None:
        """Write the mean loss and gradient norm since the last line."""
        record = {
            "step": self.step,
            "epoch": self.epoch,
            "tokens": train_state.tokens,
            self.loss_name: train_state.logged / max(1, train_state.counted_tokens),
            "grad_norm": train_state.norm_sum / max(1, train_state.norm_steps),
            "grad_norm_max": train_state.norm_max,
            "learning_rate": self.learning_rate,
            "clipped_steps": train_state.clipped,
            **self.experts,
        }
        train_state.metrics = run_log.log(record)
        train_state.logged, train_state.counted_tokens = 0.0, 0
        train_state.norm_sum, train_state.norm_max, train_state.norm_steps, train_state.clipped = 0.0, 0.0, 0, 0
