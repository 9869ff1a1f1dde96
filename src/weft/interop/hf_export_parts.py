"""What the exports to Hugging Face have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from weft.errors import UsageError
from weft.interop.hf_names import WeightMapping
from weft.models.config import StackConfig
from weft.nn.attention import SelfAttention
from weft.nn.mixers import MIXERS

ACTIVATIONS = {"gelu": "gelu", "gelu-tanh": "gelu_new", "relu": "relu", "silu": "silu"}
# layer types that the models of Hugging Face have
ATTENTION = tuple(name for name, row in MIXERS.items() if row.factory is SelfAttention)
LAYER_NORM_EPS = 1e-5  # our default, and that of torch


def check_no_experts(table: StackConfig) -> None:
    """Refuse a mixture of experts: the Hugging Face models that weft writes have dense feed-forward layers."""
    if table.num_experts is not None:
        problem = f"Hugging Face has no equivalent of model.num_experts = {table.num_experts}"
        raise UsageError("export", problem, "train without experts")


class Exported(NamedTuple):
    """The content of an exported directory, and notes on differences."""

    config: dict[str, Any]  # config.json
    tensors: dict[str, Tensor]  # model.safetensors
    tokenizer: tuple[dict[str, Any], dict[str, Any]]  # tokenizer.json and tokenizer_config.json
    notes: list[str]
    generation: dict[str, Any] | None = None  # generation_config.json


def to_hf(mappings: Iterable[WeightMapping], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors by their names in Hugging Face."""
    tensors: dict[str, Tensor] = {}
    for mapping in mappings:
        tensor = ours[mapping.ours].T if mapping.transposed else ours[mapping.ours]
        tensors |= zip(mapping.theirs, tensor.chunk(len(mapping.theirs)), strict=True)
    return tensors
