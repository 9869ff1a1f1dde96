"""Import encoder-decoders of Hugging Face, BART, T5, Marian and Pegasus, as runs of task seq2seq.

Where their computation differs from ours, weights are converted so that outputs stay the same:

- T5 does not divide attention scores by the square root of the head size: queries are multiplied by it.
- T5 divides the output of its decoder by the square root of the hidden size if embeddings and output layer share weights: the
  weights are divided by it, and the embeddings scaled again.
- Marian and Pegasus have all sines before all cosines in their positions, ours alternate: all features are reordered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.errors import ModelError, unknown_name
from weft.interop import hf_seq2seq_names as names
from weft.interop.hf_architectures import FAMILY_OPTIONS
from weft.interop.hf_checkpoint import ACTIVATIONS, Checkpoint, HFConfig, meta_tensors, reorder
from weft.interop.hf_seq2seq_names import SIDES, Seq2SeqNames, seq2seq_mappings, sublayers
from weft.interop.import_run import ImportPlan
from weft.models.seq2seq import encoder_decoder
from weft.nn.positions import SinusoidalPositions
from weft.runs.config import RunConfig

POSITION_OFFSET = 2  # number of unused position embeddings of BART before the first
T5_MAX_LENGTH = 512  # its positions are relative and have no limit; it was trained with this length
T5_ACTIVATIONS = {**ACTIVATIONS, "gated-gelu": "geglu-tanh", "gated-gelu_new": "geglu-tanh", "gated-silu": "swiglu"}


# ---- conversion of weights, without changing the function


def feature_order(dim: int) -> Tensor:
    """The index in Marian of each feature of ours, (D,): sin 0, cos 0, sin 1, ... instead of all sines, then all cosines."""
    return torch.arange(dim).view(2, -1).T.flatten()


def sinusoidal_table(max_positions: int, dim: int) -> Tensor:
    """The positions of Marian, (P, D)."""
    ours = SinusoidalPositions(dim).add_to(torch.zeros(1, max_positions, dim), torch.arange(max_positions)[None])[0]
    return ours[:, feature_order(dim).argsort()]


# the dimension of a weight that is read from or added to the residual stream, by the end of its name
STREAM_DIMS = {
    **dict.fromkeys(("embedding.weight", "head.weight", "to_qkv.weight", "to_q.weight", "to_kv.weight", "up_proj.weight"), 1),
    **dict.fromkeys(("to_out.weight", "to_out.bias", "norm.weight", "norm.bias", "input_proj.weight", "input_proj.bias"), 0),
}


def reorder_features(tensors: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """Weights by our names with the features of the residual stream in another order. Shared weights stay shared."""
    done: dict[int, Tensor] = {}

    def reordered(name: str, tensor: Tensor) -> Tensor:
        dim = next((dim for end, dim in STREAM_DIMS.items() if name.endswith(end)), None)
        if dim is None:
            return tensor
        if tensor.data_ptr() not in done:
            done[tensor.data_ptr()] = tensor.index_select(dim, order)
        return done[tensor.data_ptr()]

    return {name: reordered(name, tensor) for name, tensor in tensors.items()}


def scale_queries(tensors: Mapping[str, Tensor], factor: float) -> dict[str, Tensor]:
    """Weights by our names with queries multiplied by a factor."""
    scaled = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith(".to_q.weight"):
            scaled[name] = tensor * factor
        elif name.endswith(".to_qkv.weight"):
            q, k, v = tensor.chunk(3)
            scaled[name] = torch.cat([q * factor, k, v])
    return scaled


# ---- reading


class Embeddings(NamedTuple):
    """The vectors of our tokens, (V, D) each."""

    encoder: Tensor
    decoder: Tensor
    head: Tensor

    def with_smaller_head(self, divisor: float) -> Embeddings:
        """The same with output weights divided by a number, and so are the embeddings if they share weights."""
        head = self.head / divisor
        if self.head is not self.decoder:
            return self._replace(head=head)
        return Embeddings(head if self.encoder is self.decoder else self.encoder / divisor, head, head)

    def tensors(self) -> dict[str, Tensor]:
        """The weights by our names."""
        sides = {f"{side}.embedder.embedding.weight": table for side, table in zip(SIDES, self, strict=False)}
        return {**sides, "head.head.weight": self.head}


class Source(NamedTuple):
    """A model to import."""

    config: HFConfig
    directory: Path
    checkpoint: Checkpoint
    original_ids: list[int | None]

    def embeddings(self) -> Embeddings:
        """The embeddings and output weights in the order of our tokens. Tables that are not in the file are shared ones."""
        shape = self.config.size("vocab_size"), self.config.size("d_model")

        def table(name: str, default: str) -> Tensor:
            return self.checkpoint.take(name if name in self.checkpoint else default, shape)

        encoder_name, decoder_name = (names.SIDE_EMBEDDING.format(side=side) for side in SIDES)
        tables = table(encoder_name, names.SHARED), table(decoder_name, names.SHARED)
        head = table(names.HEAD, decoder_name if decoder_name in self.checkpoint else names.SHARED)
        encoder, decoder, head = (reorder(part, self.original_ids, self.directory) for part in (*tables, head))
        # one tensor if they are equal, which is then stored once
        return Embeddings(*(decoder if torch.equal(part, decoder) else part for part in (encoder, decoder, head)))


def shared_options(embeddings: Embeddings) -> dict[str, bool]:
    """Which tables are equal, as options of [model]."""
    return {
        "share_embeddings": embeddings.encoder is embeddings.decoder,
        "tie_embeddings": embeddings.head is embeddings.decoder,
    }


def _shapes(run_config: RunConfig, vocab_size: int) -> dict[str, Tensor]:
    """Our tensors by name, on the meta device."""
    return meta_tensors(
        lambda: encoder_decoder(
            run_config.model,
            source_vocab_size=vocab_size,
            target_vocab_size=vocab_size,
            max_positions=run_config.data.max_length,
            vocabulary="",
        )
    )


def _num_layers(run_config: RunConfig) -> dict[str, int]:
    return {
        side: table.num_layers for side, table in zip(SIDES, (run_config.model.encoder, run_config.model.decoder), strict=True)
    }


# ---- BART, Marian and Pegasus


class Family(NamedTuple):
    """An architecture with the weight names of BART."""

    names: Seq2SeqNames
    options: Mapping[str, Any]  # of [model]
    required: Mapping[str, Any]  # of config.json


FAMILIES: Mapping[str, Family] = {
    "bart": Family(
        names.BART,
        FAMILY_OPTIONS["bart"],
        {"normalize_before": False, "normalize_embedding": True, "static_position_embeddings": False},
    ),
    "marian": Family(
        names.BART,
        FAMILY_OPTIONS["marian"],
        {"normalize_before": False, "normalize_embedding": False, "static_position_embeddings": True},
    ),
    "pegasus": Family(
        names.PEGASUS,
        FAMILY_OPTIONS["pegasus"],
        {"normalize_before": True, "normalize_embedding": False, "static_position_embeddings": True},
    ),
}


def _check_sinusoidal(source: Source, max_positions: int, hidden_size: int) -> None:
    """Refuse weights of positions, which need not be in the file, that are not sines and cosines."""
    if hidden_size % 2:
        raise ModelError(source.config.path, f"d_model = {hidden_size!r} is not supported, only even numbers")
    for name in (names.POSITIONS.format(side=side) for side in SIDES):
        if name in source.checkpoint:
            table = source.checkpoint.take(name, (max_positions, hidden_size))
            if (table - sinusoidal_table(max_positions, hidden_size)).abs().max() > 1e-3:
                raise ModelError(source.directory, f"{name!r} are not sinusoidal positions")


def _plan_family(source: Source) -> ImportPlan:
    """The plan to import a BART, Marian or Pegasus."""
    config, family = source.config, FAMILIES[source.config.model_type]
    for name, value in {**family.required, "is_decoder": False}.items():
        config.require(name, (value,))
    hidden_size, max_positions = config.size("d_model"), config.size("max_position_embeddings")
    if config.values.get("decoder_vocab_size") not in (None, config.size("vocab_size")):
        raise ModelError(config.path, "decoder_vocab_size differs from vocab_size: two vocabularies are not supported")
    sides = {
        side: {
            "num_layers": config.size(f"{side}_layers"),
            "num_heads": config.size(f"{side}_attention_heads"),
            "ffn_dim": config.size(f"{side}_ffn_dim"),
        }
        for side in SIDES
    }
    embeddings = source.embeddings()
    model = {
        "arch": "transformer",
        "hidden_size": hidden_size,
        "activation": config.activation("activation_function", "gelu"),
        "dropout": config.number("dropout", 0.1),
        "attention_dropout": config.number("attention_dropout", 0.0),
        "scale_embeddings": bool(config.values.get("scale_embedding", False)),
        **shared_options(embeddings),
        **family.options,
        **sides,
    }
    is_sinusoidal = model["position_encoding"] == "sinusoidal"
    if is_sinusoidal:
        _check_sinusoidal(source, max_positions, hidden_size)

    def tensors(run_config: RunConfig) -> dict[str, Tensor]:
        checkpoint, shapes = source.checkpoint, _shapes(run_config, len(source.original_ids))
        new = checkpoint.convert(seq2seq_mappings(family.names, _num_layers(run_config)), shapes) | embeddings.tensors()
        new["head.head.bias"] = torch.zeros(len(source.original_ids))
        if names.LOGITS_BIAS in checkpoint:
            bias = checkpoint.take(names.LOGITS_BIAS, (1, config.size("vocab_size")))[0]
            new["head.head.bias"] = reorder(bias, source.original_ids, source.directory)
        if is_sinusoidal:
            return reorder_features(new, feature_order(hidden_size))
        for side in SIDES:
            table = checkpoint.take(names.POSITIONS.format(side=side), (max_positions + POSITION_OFFSET, hidden_size))
            new[f"{side}.stack.positions.table.weight"] = table[POSITION_OFFSET:].clone()
            for part in ("weight", "bias"):
                norm = f"{names.EMBEDDING_NORM.format(side=side)}.{part}"
                new[f"{side}.stack.input_proj.{part}"] = checkpoint.take(norm, (hidden_size,))
        return new

    data = {"train": False, "max_length": max_positions}
    return ImportPlan({"task": "seq2seq", "data": data, "model": model}, tensors, [])


# ---- T5


def _t5_activation(config: HFConfig) -> str:
    value = str(config.values.get("feed_forward_proj", "relu"))
    if value not in T5_ACTIVATIONS:
        raise ModelError(f"{config.path}: feed_forward_proj", *unknown_name("activation", value, T5_ACTIVATIONS))
    return T5_ACTIVATIONS[value]


def _plan_t5(source: Source) -> ImportPlan:
    """The plan to import a T5, original or 1.1."""
    config = source.config
    for name, value in (
        ("relative_attention_num_buckets", 32),
        ("relative_attention_max_distance", 128),
        ("is_decoder", False),
    ):
        config.require(name, (value,))
    hidden_size, num_heads, head_dim = (config.size(name) for name in ("d_model", "num_heads", "d_kv"))
    num_layers, embeddings = config.size("num_layers"), source.embeddings()
    decoder_layers = num_layers if config.values.get("num_decoder_layers") is None else config.size("num_decoder_layers")
    shared = shared_options(embeddings)
    is_scaled = config.values.get("scale_decoder_outputs", config.tied())
    if is_scaled:  # the output of the decoder is divided by the square root of the hidden size
        embeddings = embeddings.with_smaller_head(math.sqrt(hidden_size))
    activation = _t5_activation(config)
    model = {
        "arch": "transformer",
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "head_dim": head_dim,
        "ffn_dim": config.size("d_ff"),
        "activation": activation,
        "dropout": config.number("dropout_rate", 0.1),
        "attention_dropout": config.number("dropout_rate", 0.1),
        "position_encoding": "relative-bias",
        "norm": "rmsnorm",
        "norm_eps": config.number("layer_norm_epsilon", 1e-6),
        "bias": False,
        "head_bias": False,
        "scale_embeddings": bool(is_scaled and shared["tie_embeddings"]),
        **shared,
        "encoder": {"num_layers": num_layers},
        "decoder": {"num_layers": decoder_layers},
    }
    t5 = names.GATED_T5 if str(config.values.get("feed_forward_proj")).startswith("gated-") else names.T5

    def tensors(run_config: RunConfig) -> dict[str, Tensor]:
        shapes = _shapes(run_config, len(source.original_ids))
        new = source.checkpoint.convert(seq2seq_mappings(t5, _num_layers(run_config)), shapes) | embeddings.tensors()
        for side, count in _num_layers(run_config).items():
            bias = source.checkpoint.take(names.RELATIVE_BIAS.format(side=side), (32, num_heads))
            new |= {f"{sublayers(side, layer)[0]}.mixer.positions.table.weight": bias for layer in range(count)}
        return scale_queries(new, math.sqrt(head_dim))

    n_positions = config.size("n_positions", T5_MAX_LENGTH)
    return ImportPlan({"task": "seq2seq", "data": {"train": False, "max_length": n_positions}, "model": model}, tensors, [])


PLANS: Mapping[str, Callable[[Source], ImportPlan]] = {**dict.fromkeys(FAMILIES, _plan_family), "t5": _plan_t5}


def plan_seq2seq(config: HFConfig, directory: Path, original_ids: list[int | None]) -> ImportPlan:
    """The plan to import an encoder-decoder."""
    config.require("is_encoder_decoder", (True,))
    prefix = names.T5.prefix if config.model_type == "t5" else names.BART.prefix
    return PLANS[config.model_type](Source(config, directory, Checkpoint(directory, prefix), original_ids))
