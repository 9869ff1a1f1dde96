"""Recommended settings: the type that the recipes of all tasks return, and the rules that they share.

A recipe is a function of what is known before training: the data, the device, and the options that the run file sets. It
returns a ladder of settings, from the best model to one that is trained quickly. `weft.runs.recommend` chooses a step of the
ladder and applies it to the run file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from weft.data.profile import DataProfile

Tables = Mapping[str, Mapping[str, Any]]  # [data], [tokenizer], [model] and [train] of a run file

# Joint BPE of 8,000 tokens was best for 690,000 words (Multi30k); 32,000 are usual for 100 million.
BPE_TOKENS, BPE_WORDS, BPE_EXPONENT = 8000, 690_000, 0.28
MIN_BPE, MAX_BPE = 1000, 32_000
# Stop after PATIENCE validations without improvement: half of the run, because models improve as the learning rate decays
NUM_VALIDATIONS, PATIENCE = 16, 8
MUON: Mapping[str, Any] = {"optimizer": "muon", "muon_lr": 0.01, "lr": 1e-3, "adam_beta2": 0.98, "weight_decay": 0.1}


class Recipe(NamedTuple):
    """Recommended options of each table, and why. An option that does not apply to the architecture is ignored."""

    reason: str  # of the main choices, for a comment in the run file
    model: Mapping[str, Any]  # with `arch`
    train: Mapping[str, Any] = {}
    tokenizer: Mapping[str, Any] = {}
    data: Mapping[str, Any] = {}
    flops: float = 0.0  # of the whole training, roughly; 0 if it takes seconds


class Recipes(Protocol):
    """The recipes of a task."""

    def __call__(self, profile: DataProfile, tables: Tables) -> Sequence[Recipe]:
        """The ladder for this data, the best settings first."""


def bpe_size(num_words: int) -> int:
    """The number of subwords for a text of this many words."""
    size: float = BPE_TOKENS * (max(num_words, 1) / BPE_WORDS) ** BPE_EXPONENT
    return min(max(1000 * round(size / 1000), MIN_BPE), MAX_BPE)


def scaled(value: float, num_examples: int, reference: int, exponent: float, limits: tuple[float, float]) -> float:
    """A value that was best for `reference` examples, for another number of them."""
    low, high = limits
    return float(min(max(value * (num_examples / reference) ** exponent, low), high))


def scaled_steps(value: float, num_examples: int, reference: int, limits: tuple[float, float]) -> int:
    """A number of steps that was best for `reference` examples, for another number of them: more examples are seen less often
    each. A multiple of 100."""
    return 100 * round(scaled(value, num_examples, reference, 0.5, limits) / 100)


def early_stopping(profile: DataProfile, monitor: str | None = None) -> dict[str, Any]:
    """Options that stop a run which no longer improves, if there is validation data to see it."""
    if not profile.has_valid:
        return {}
    return {"num_validations": NUM_VALIDATIONS, "patience": PATIENCE, **({} if monitor is None else {"monitor": monitor})}


def training_flops(num_parameters: float, num_tokens: float) -> float:
    """Forward and backward pass: 6 operations per weight and token."""
    return 6.0 * num_parameters * num_tokens
