"""What the exports to Hugging Face have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.interop.hf_names import WeightMapping


class Comparison(NamedTuple):
    """How an exported model is compared with the run. Both functions get tokens (B, T), without padding."""

    ours: Callable[[Tensor], Tensor]  # to log-probabilities, or to hidden states of a model without an output layer
    theirs: Callable[[Any, Tensor], Tensor]  # from the model of transformers
    vocab_size: int
    max_length: int | None  # None: no limit


class Exported(NamedTuple):
    """The content of an exported directory, notes on differences, and the comparison of the model with the run."""

    config: dict[str, Any]  # config.json
    tensors: dict[str, Tensor]  # model.safetensors
    tokenizer: tuple[dict[str, Any], dict[str, Any]]  # tokenizer.json and tokenizer_config.json
    notes: list[str]
    comparison: Comparison
    generation: dict[str, Any] | None = None  # generation_config.json


def to_hf(mappings: Iterable[WeightMapping], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors by their names in Hugging Face."""
    tensors: dict[str, Tensor] = {}
    for mapping in mappings:
        tensor = ours[mapping.ours].T if mapping.transposed else ours[mapping.ours]
        tensors |= zip(mapping.theirs, tensor.chunk(len(mapping.theirs)), strict=True)
    return tensors


def with_biases(ours: Mapping[str, Tensor], mappings: Iterable[WeightMapping]) -> dict[str, Tensor]:
    """Weights with biases of zeros where the model has none, but the exported model has."""
    weights = {mapping.ours: f"{mapping.ours.removesuffix('bias')}weight" for mapping in mappings if mapping.ours not in ours}
    return {**ours, **{name: torch.zeros(len(ours[weight])) for name, weight in weights.items() if weight in ours}}
