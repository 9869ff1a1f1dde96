"""Import language models of the Llama family from Hugging Face: Llama, Mistral and Qwen2, as runs of task lm.

Their layers are ours with rotary positions, RMSNorm and SwiGLU; rotated coordinates are paired as in ours. What has no option
in weft is converted so that outputs stay the same:

- Grouped-query attention: each key-value head is copied for every query head that uses it.
- Biases of some linear layers only: the others get biases that are 0.
- A sliding window of Mistral is the context length, which limits attention in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.errors import ModelError
from weft.interop.hf_checkpoint import Checkpoint, HFConfig, output_bias, reorder
from weft.interop.hf_tokenizer import (
    RenumberedTokenizer,
    as_tokenizer,
    check_specials,
    declared_specials,
    read_parts,
    renumber_tokens,
    vocabulary,
)
from weft.interop.import_run import ImportPlan
from weft.nn.choices import ROPE_THETA
from weft.runs.config import RunConfig

ATTENTION = ("q_proj", "k_proj", "v_proj")
DEFAULT_POSITIONS: Mapping[str, int] = {"llama": 2048, "mistral": 131072, "qwen2": 32768}  # as in transformers
LLAMA_FAMILY = tuple(DEFAULT_POSITIONS)


class Sizes(NamedTuple):
    """Sizes of a model, and its linear layers with biases, as a part of their names."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_dim: int
    biased: frozenset[str]


def _read_sizes(config: HFConfig) -> Sizes:
    hidden_size, num_heads = config.size("hidden_size"), config.size("num_attention_heads")

    def optional(name: str, default: int) -> int:
        return default if config.values.get(name) is None else config.size(name)

    num_kv_heads = optional("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ModelError(
            config.path, f"num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}"
        )
    if hidden_size % num_heads and config.values.get("head_dim") is None:
        raise ModelError(config.path, f"hidden_size {hidden_size} is not divisible by num_attention_heads {num_heads}")
    biased: set[str] = set(ATTENTION) if config.model_type == "qwen2" else set()
    if config.model_type == "llama":
        biased |= {*ATTENTION, "o_proj"} if config.values.get("attention_bias") else set()
        biased |= {"gate_proj", "up_proj", "down_proj"} if config.values.get("mlp_bias") else set()
    return Sizes(
        vocab_size=config.size("vocab_size"),
        hidden_size=hidden_size,
        num_layers=config.size("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=optional("head_dim", hidden_size // num_heads),
        ffn_dim=config.size("intermediate_size"),
        biased=frozenset(biased),
    )


def _rope_theta(config: HFConfig) -> float:
    """The base of the frequencies; an error for rotary positions that are scaled or partial."""
    theta, partial = config.values.get("rope_theta"), config.values.get("partial_rotary_factor")
    for name in ("rope_scaling", "rope_parameters"):  # the second since transformers 5, with rope_theta in it
        table = config.values.get(name) or {}
        if not isinstance(table, dict):
            raise ModelError(config.path, f"{name}: expected an object, got {table!r}")
        kind = table.get("rope_type", table.get("type", "default"))
        if kind != "default":
            problem = f"{name}: rotary positions of type {kind!r} are not supported, only 'default'"
            raise ModelError(config.path, problem, "use a model without rope scaling")
        theta, partial = table.get("rope_theta", theta), table.get("partial_rotary_factor", partial)
    if partial not in (None, 1):
        raise ModelError(config.path, f"partial_rotary_factor = {partial!r} is not supported, only 1.0")
    theta = ROPE_THETA if theta is None else theta
    if isinstance(theta, bool) or not isinstance(theta, int | float):
        raise ModelError(config.path, f"rope_theta: expected a number, got {theta!r}")
    return float(theta)


def _context_length(config: HFConfig) -> int:
    """The number of positions that attention sees: those of the model, or its sliding window."""
    positions = config.size("max_position_embeddings", DEFAULT_POSITIONS[config.model_type])
    if config.model_type == "mistral" and config.values.get("sliding_window") is not None:
        return min(positions, config.size("sliding_window"))
    config.require("use_sliding_window", (False, None))
    kinds = config.values.get("layer_types") or ["full_attention"]
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise ModelError(config.path, f"layer_types = {kinds!r} is not supported, only 'full_attention' in all layers")
    return positions


class _Reader(NamedTuple):
    """Reads the weights of layers by our names."""

    checkpoint: Checkpoint
    sizes: Sizes

    def linear(self, name: str, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Weight and bias of a linear layer; zeros if it has no bias."""
        weight = self.checkpoint.take(f"{name}.weight", shape)
        has_bias = name.rpartition(".")[2] in self.sizes.biased
        return weight, self.checkpoint.take(f"{name}.bias", shape[:1]) if has_bias else torch.zeros(shape[0])

    def joined(self, prefix: str, names: tuple[str, ...], rows: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Weight and bias of several linear layers of the hidden state as one. Key-value heads are copied."""
        weights, biases = [], []
        for name, num_rows in zip(names, rows, strict=True):
            weight, bias = self.linear(prefix + name, (num_rows, self.sizes.hidden_size))
            if name in ("k_proj", "v_proj"):
                weight, bias = self._copied(weight), self._copied(bias)
            weights.append(weight)
            biases.append(bias)
        return torch.cat(weights), torch.cat(biases)

    def _copied(self, rows: Tensor) -> Tensor:
        """The rows of each key-value head, once for every head that uses it: (KV * E, ...) to (H * E, ...)."""
        copies = self.sizes.num_heads // self.sizes.num_kv_heads
        return rows.view(-1, self.sizes.head_dim, *rows.shape[1:]).repeat_interleave(copies, 0).flatten(0, 1)

    def layer(self, index: int) -> Iterator[tuple[str, Tensor]]:
        sizes, theirs = self.sizes, f"layers.{index}."
        attention, ffn = (f"stack.layers.{2 * index + part}" for part in (0, 1))
        for ours, name in ((attention, "input_layernorm"), (ffn, "post_attention_layernorm")):
            yield f"{ours}.norm.weight", self.checkpoint.take(f"{theirs}{name}.weight", (sizes.hidden_size,))
        query_rows, kv_rows = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
        parts = {
            f"{attention}.mixer.to_qkv": self.joined(f"{theirs}self_attn.", ATTENTION, (query_rows, kv_rows, kv_rows)),
            f"{attention}.mixer.to_out": self.linear(f"{theirs}self_attn.o_proj", (sizes.hidden_size, query_rows)),
            f"{ffn}.mixer.up_proj": self.joined(f"{theirs}mlp.", ("gate_proj", "up_proj"), (sizes.ffn_dim, sizes.ffn_dim)),
            f"{ffn}.mixer.to_out": self.linear(f"{theirs}mlp.down_proj", (sizes.hidden_size, sizes.ffn_dim)),
        }
        for ours, (weight, bias) in parts.items():
            yield f"{ours}.weight", weight
            if sizes.biased:
                yield f"{ours}.bias", bias


def _notes(sizes: Sizes) -> list[str]:
    if sizes.num_kv_heads == sizes.num_heads:
        return []
    return [
        f"grouped-query attention: the {sizes.num_kv_heads} key-value heads are copied for {sizes.num_heads} heads; outputs "
        f"are equal, the model is larger, and training changes each copy"
    ]


def plan_llama(config: HFConfig, source: Path, original_ids: list[int | None]) -> ImportPlan:
    """The plan to import a Llama, Mistral or Qwen2."""
    config.require("hidden_act", ("silu", "swish"))
    if config.values.get("quantization_config") is not None:
        raise ModelError(config.path, "the model is quantized (quantization_config)", "save the model in float32 or bfloat16")
    sizes, theta, context_length = _read_sizes(config), _rope_theta(config), _context_length(config)
    tied = bool(config.values.get("tie_word_embeddings", False))
    model: dict[str, Any] = {
        "arch": "transformer",
        "position_encoding": "rotary",
        "norm": "rmsnorm",
        "activation": "swiglu",
        "hidden_size": sizes.hidden_size,
        "num_layers": sizes.num_layers,
        "num_heads": sizes.num_heads,
        "head_dim": sizes.head_dim,
        "ffn_dim": sizes.ffn_dim,
        "bias": bool(sizes.biased),
        "norm_eps": config.number("rms_norm_eps", 1e-6),
        "dropout": 0.0,
        "attention_dropout": config.number("attention_dropout", 0.0),
        "tie_embeddings": tied,
    }
    model |= {} if theta == ROPE_THETA else {"rope_theta": theta}
    # without a bias, training adds none, so that the run can be exported again
    bias = output_bias(original_ids)
    model |= {} if bias.any() else {"head_bias": False}
    reader = _Reader(Checkpoint(source, "model."), sizes)

    def tensors(run_config: RunConfig) -> dict[str, Tensor]:
        shape = sizes.vocab_size, sizes.hidden_size
        new = {name: tensor for index in range(sizes.num_layers) for name, tensor in reader.layer(index)}
        new["stack.final_norm.weight"] = reader.checkpoint.take("norm.weight", (sizes.hidden_size,))
        words = reorder(reader.checkpoint.take("embed_tokens.weight", shape), original_ids, source)
        head = words if tied else reorder(reader.checkpoint.take("lm_head.weight", shape), original_ids, source)
        new |= {"embedding.weight": words, "head.weight": head}
        return {**new, "head.bias": bias} if bias.any() else new

    data = {"train": False, "read_as": "windows", "context_length": context_length}
    return ImportPlan({"task": "lm", "data": data, "model": model}, tensors, _notes(sizes))


def renumber_llama(config: HFConfig, directory: Path) -> RenumberedTokenizer:
    """The tokenizer with <unk>, <s> and </s> as 0, 1, 2. BOS and EOS are those of the tokenizer or, if it names none, of
    config.json; without BOS, <s> is the EOS token. A byte-level tokenizer has no unknown token."""
    parts, declared = read_parts(directory, config.model_type), declared_specials(directory)
    vocab = vocabulary(parts, directory)
    tokens = {token_id: token for token, token_id in vocab.items()}
    names: dict[str, str] = {role: token for role, token in declared.items() if role in ("bos", "eos")}
    check_specials(names, vocab, directory)
    for role in ("bos", "eos"):
        value = config.values.get(f"{role}_token_id")
        token_id = value[0] if isinstance(value, list) and value else value
        if role not in names and isinstance(token_id, int) and token_id in tokens:
            names[role] = tokens[token_id]
    if "eos" not in names:
        raise ModelError(
            directory, "neither the tokenizer nor config.json names its end token", "set eos_token in tokenizer_config.json"
        )
    eos, bos = names["eos"], names.get("bos", names["eos"])
    candidates = (declared.get("unk"), parts["model"].get("unk_token"))
    unk = next((token for token in candidates if token in vocab and token not in (bos, eos)), None)
    ordered = renumber_tokens(parts, vocab, [unk, bos, eos], removed=set(), directory=directory)
    parts["post_processor"] = None
    original_ids = [None if token is None else vocab[token] for token in ordered]
    return RenumberedTokenizer(as_tokenizer(parts, directory), original_ids)
