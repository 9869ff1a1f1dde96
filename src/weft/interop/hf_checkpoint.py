"""Read the weights and the config.json of a local Hugging Face directory.

No code of the directory is run: weights are read from safetensors, never from a pickle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft import files
from weft.errors import ModelError, unknown_name
from weft.interop.hf_names import WeightMapping
from weft.nn.meta import meta_device
from weft.tensors import read_external
from weft.text.tokenizers import Tokenizer

ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "relu": "relu", "silu": "silu", "swish": "silu",
}  # fmt: skip


ZERO_PROB_LOGIT = -1e4  # logit of a token that is never predicted: exp gives 0


class Checkpoint:
    """The tensors of a directory, by name and expected shape."""

    def __init__(self, directory: Path, prefix: str) -> None:
        self.directory = directory
        # older files call the weights of norms gamma and beta
        tensors = {
            name.replace(".gamma", ".weight").replace(".beta", ".bias"): tensor for name, tensor in _tensors(directory).items()
        }
        self.tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor in float32; an error if it is missing, has another shape, or is not usable."""
        if name not in self.tensors:
            raise ModelError(self.directory, f"tensor {name!r} ({_sizes(shape)}) is missing")
        tensor = self.tensors[name]
        if tuple(tensor.shape) != shape:
            raise ModelError(self.directory, f"{name!r} is {_sizes(tensor.shape)}, expected {_sizes(shape)} from config.json")
        if not tensor.is_floating_point():  # quantized weights are integers with a separate scale
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise ModelError(self.directory, f"{name!r} is quantized ({dtype})", "save the model in float32 or bfloat16")
        weights = tensor.float()
        if not weights.isfinite().all():
            raise ModelError(self.directory, f"{name!r} contains NaN or infinite values; the file is corrupted")
        return weights

    def convert(self, mappings: Iterable[WeightMapping], shapes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our tensors by name; `shapes` contains tensors with the expected shapes."""
        return {mapping.ours: self._convert(mapping, tuple(shapes[mapping.ours].shape)) for mapping in mappings}

    def _convert(self, mapping: WeightMapping, shape: tuple[int, ...]) -> Tensor:
        part_shape = (shape[0] // len(mapping.theirs), *shape[1:])
        parts = [self.take(name, part_shape[::-1] if mapping.transposed else part_shape) for name in mapping.theirs]
        return torch.cat([part.T if mapping.transposed else part for part in parts]).contiguous()


def _sizes(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


def _is_file_name(name: Any) -> bool:
    """Whether it is a plain file name: not a path, and printable."""
    return isinstance(name, str) and name != "" and Path(name).name == name and "\0" not in name and name.isprintable()


def _tensors(directory: Path) -> dict[str, Tensor]:
    if (directory / "model.safetensors").is_file():
        return read_external(directory / "model.safetensors")[0]
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        content = files.read_json(index)
        weight_map = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(weight_map, dict) or not all(map(_is_file_name, weight_map.values())):
            raise ModelError(index, "corrupted: weight_map must contain names of files in this directory")
        shards = [read_external(directory / name)[0] for name in sorted(set(weight_map.values()))]
        return {name: tensor for shard in shards for name, tensor in shard.items()}
    if any(directory.glob("pytorch_model*.bin")):
        raise ModelError(
            directory, "pytorch_model.bin is a pickle, which can run code and is not loaded", "convert it to safetensors"
        )
    raise ModelError(directory, "model.safetensors is missing")


class HFConfig:
    """A config.json with typed access to its values."""

    def __init__(self, directory: Path, model_types: Iterable[str]) -> None:
        self.path = directory / "config.json"
        values = files.read_json(self.path)
        if not isinstance(values, dict):
            raise ModelError(self.path, "corrupted: not a JSON object")
        self.values: dict[str, Any] = values
        self.model_type = str(values.get("model_type"))
        if self.model_type not in model_types:
            raise ModelError(f"{self.path}: model_type", *unknown_name("architecture", self.model_type, model_types))

    def number(self, name: str, default: float | None = None) -> Any:
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(self.path, f"{name}: expected a number, got {value!r}")
        return value

    def size(self, name: str, default: int | None = None) -> int:
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ModelError(self.path, f"{name}: expected an integer greater than 0, got {value!r}")
        return value

    def activation(self, name: str, default: str) -> str:
        value = self.values.get(name, default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise ModelError(f"{self.path}: {name}", *unknown_name("activation", str(value), ACTIVATIONS))
        return ACTIVATIONS[value]

    def require(self, name: str, allowed: tuple[Any, ...]) -> None:
        """Reject a value with which the model would compute another function than our layers."""
        value = self.values.get(name, allowed[0])
        if value not in allowed:
            raise ModelError(self.path, f"{name} = {value!r} is not supported, only {allowed[0]!r}")

    def tied(self) -> bool:
        return bool(self.values.get("tie_word_embeddings", True))


def meta_tensors(build: Callable[[], nn.Module]) -> dict[str, Tensor]:
    """Our tensors by name, on the meta device."""
    with meta_device():
        return build().state_dict()


def reorder(table: Tensor, original_ids: list[int | None], source: Path) -> Tensor:
    """An embedding or output bias in the order of our token IDs; zeros for new tokens."""
    max_id = max(token_id or 0 for token_id in original_ids)
    if max_id >= len(table):
        raise ModelError(source, f"its tokenizer has token ID {max_id}, but its embedding has {len(table)} rows")
    reordered = table[torch.tensor([token_id or 0 for token_id in original_ids])]
    reordered[torch.tensor([token_id is None for token_id in original_ids])] = 0.0
    return reordered


def output_bias(original_ids: list[int | None]) -> Tensor:
    """The output bias of a language model that has none: 0, except that a new <unk>, and an <s> that is the same token as </s>,
    are never predicted."""
    bias = torch.zeros(len(original_ids))
    for token_id in (Tokenizer.unk_id, Tokenizer.bos_id):
        if original_ids[token_id] in (None, original_ids[Tokenizer.eos_id]):
            bias[token_id] = ZERO_PROB_LOGIT
    return bias
