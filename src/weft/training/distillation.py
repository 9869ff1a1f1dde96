"""Knowledge distillation (Hinton et al. 2015): a student learns from the labels and from the distributions of its teachers.

    (1 - w) * cross-entropy(labels, student) + w * T^2 * KL(teacher || student)

The teacher is the mean of the probabilities of one or more models; both distributions have temperature T. For models that
predict tokens, this is word-level distillation (Kim and Rush 2016).

Shapes: ... leading axes of the predictions of a batch, K classes: tokens, labels or tags.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.errors import ConfigError
from weft.training.objective import Loss, Objective, ProgressCallback

if TYPE_CHECKING:
    from weft.runs.config import RunConfig
    from weft.runs.run import AnyRun

MIN_LOG_PROB = -100.0  # of a teacher: 0 * log 0 would be NaN


class Outputs(NamedTuple):
    """The predictions of a model in a batch."""

    log_probs: Tensor  # (..., K)
    loss: Loss  # their cross-entropy
    mask: Tensor | None = None  # bool (...), False on padding; None: no padding


class DistillableObjective(Objective, Protocol):
    """An objective whose loss is the cross-entropy of distributions."""

    def outputs(self, model: Any, batch: Any, carry: Any) -> Outputs:
        """The loss, as `loss` computes it, with the distributions."""


class Teacher(Protocol):
    """Predicts the distributions that the student learns from."""

    def __call__(self, batch: Any, carry: Any) -> tuple[Tensor, Any]:
        """Log-probabilities (..., K) with the shape of those of the student, and the state to carry over to the next batch."""


def smoothed_nll(log_probs: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    """Cross-entropy in nats of each target (...), from log-probabilities (..., K), with the smoothing of `LMHead.loss`."""
    nll = -log_probs.gather(-1, targets[..., None])[..., 0]
    if not label_smoothing:
        return nll
    return (1 - label_smoothing) * nll - label_smoothing * log_probs.mean(-1)


def kl_divergence(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(teacher || student) in nats, (...), from log-probabilities (..., K), both with this temperature."""
    if temperature != 1.0:
        teacher, student = (teacher / temperature).log_softmax(-1), (student / temperature).log_softmax(-1)
    return F.kl_div(student, teacher.clamp(min=MIN_LOG_PROB), reduction="none", log_target=True).sum(-1)


class MeanTeacher:
    """The mean of the probabilities of several networks, which read the same batches as the student."""

    def __init__(self, objective: DistillableObjective, models: Sequence[nn.Module]) -> None:
        self.objective, self.models = objective, list(models)

    @torch.no_grad()
    def __call__(self, batch: Any, carry: Any) -> tuple[Tensor, Any]:
        states = (None,) * len(self.models) if carry is None else carry
        total, loss, _ = self.objective.outputs(self.models[0], batch, states[0])
        new_states = [loss.carry]
        for model, state in zip(self.models[1:], states[1:], strict=True):
            log_probs, loss, _ = self.objective.outputs(model, batch, state)
            total = torch.logaddexp(total, log_probs)
            new_states.append(loss.carry)
        new_carry = None if all(state is None for state in new_states) else tuple(new_states)
        return total - math.log(len(self.models)), new_carry


class DistillationObjective:
    """An objective with a teacher. The reported loss is the cross-entropy alone, which can be compared with that of other
    runs."""

    inner_steps, prepare, augment = 0, None, None

    def __init__(self, objective: DistillableObjective, teacher: Teacher, *, weight: float, temperature: float) -> None:
        self.objective, self.teacher, self.weight, self.temperature = objective, teacher, weight, temperature
        self.unit, self.monitors = objective.unit, objective.monitors

    def loss(self, model: nn.Module, batch: Any, carry: Any) -> Loss:
        student_state, teacher_state = (None, None) if carry is None else carry
        log_probs, loss, mask = self.objective.outputs(model, batch, student_state)
        teacher_log_probs, teacher_state = self.teacher(batch, teacher_state)
        divergence = kl_divergence(teacher_log_probs, log_probs, self.temperature)
        if mask is not None:
            divergence = divergence.masked_fill(~mask, 0.0)
        # added to the cross-entropy, this gives the weighted sum of both
        penalty = self.weight * (self.temperature**2 * divergence.sum() - loss.total)
        if loss.penalty is not None:
            penalty = penalty + loss.penalty
        new_carry = None if loss.carry is None and teacher_state is None else (loss.carry, teacher_state)
        return Loss(loss.total, loss.count, new_carry, loss.tokens, penalty)

    def validate(self, model: nn.Module, progress: ProgressCallback | None = None) -> dict[str, float] | None:
        return self.objective.validate(model, progress)


# ---- checks


def vocabulary_difference(ours: Any, theirs: Any) -> str:
    """The tokenizer in which two vocabularies of a task differ, or "labels"; "" if they are equal."""
    if ours.hash == theirs.hash:
        return ""
    our_tokenizers, their_tokenizers = ours.by_name(), theirs.by_name()
    for name in dict.fromkeys([*our_tokenizers, *their_tokenizers]):
        our_tokenizer, their_tokenizer = our_tokenizers.get(name), their_tokenizers.get(name)
        if our_tokenizer is None or their_tokenizer is None or our_tokenizer.hash != their_tokenizer.hash:
            return str(name)
    return "labels"


def check_same_vocabulary(vocabulary: Any, run: AnyRun) -> None:
    """Refuse a teacher whose tokens, labels or tags have other IDs than those of the student."""
    if name := vocabulary_difference(vocabulary, run.vocabulary):
        fix = "train on the same data" if name == "labels" else "use the tokenizer of the teacher (`tokenizer_from`)"
        raise ConfigError("train.distill_from", f"this run and {run.path} do not have the same {name}", fix)


def check_network(run: AnyRun) -> None:
    """Refuse a teacher that does not read batches of token IDs."""
    if run.network is None:
        raise ConfigError("train.distill_from", f"{run.path} has no network (model.arch = {run.arch!r})", "remove it")


def check_teacher_length(config: RunConfig, run: AnyRun, option: str) -> None:
    """Refuse a teacher that has fewer positions than the student; `option` of [data] is their number."""
    ours, theirs = getattr(config.data, option), getattr(run.config.data, option)
    if run.model.max_positions is not None and theirs < ours:
        raise ConfigError("train.distill_from", f"{run.path} reads at most {theirs} tokens", f"set data.{option} = {theirs}")
