"""The weights of a run as a model specification of CTranslate2.

Shapes: D hidden size, H heads of size E, V vocabulary size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from ctranslate2.specs import Activation, TransformerDecoderModelSpec, TransformerSpec
from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec
from torch import Tensor

from weft.interop.ctranslate2_options import NORM_EPS, norm_eps
from weft.models.config import LanguageModelConfig, StackConfig
from weft.models.seq2seq import embedding_scales
from weft.models.seq2seq_config import Seq2SeqConfig
from weft.nn.choices import ROPE_THETA
from weft.nn.positions import SinusoidalPositions

ACTIVATIONS = {
    "relu": Activation.RELU,
    "gelu": Activation.GELU,
    "gelu-tanh": Activation.GELUTanh,
    "silu": Activation.SWISH,
    "squared-relu": Activation.RELU,  # relu(x)^2 = relu(x) x: a gate with its own input
    "swiglu": Activation.SWISH,
    "geglu-tanh": Activation.GELUTanh,
}
GATED = ("squared-relu", "swiglu", "geglu-tanh")
RELATIVE_BIAS_DISTANCE = 128  # of nn.positions.RelativeBias


class _Stack(NamedTuple):
    """A stack whose weights are converted."""

    tensors: Mapping[str, Tensor]
    prefix: str  # of the names of its weights
    config: StackConfig
    num_positions: int  # rows of a table of positions
    sublayers: int = 2  # in each layer; 3 with cross-attention
    cross_heads: Sequence[int] = ()  # the number of heads of cross-attention in each layer

    @property
    def num_heads(self) -> int:
        """The number of heads of all layers, which layers with fewer are padded to."""
        return max(*(self.config.heads_in_layer(layer)[0] for layer in range(self.config.num_layers)), *self.cross_heads, 0)

    @property
    def head_dim(self) -> int:
        return self.config.heads_in_layer(0)[1]

    def name(self, layer: int, sublayer: int) -> str:
        """The name of a sublayer of a layer."""
        return f"{self.prefix}.layers.{self.sublayers * layer + sublayer}"

    def options(self) -> dict[str, Any]:
        """The arguments that encoder and decoder specifications have in common."""
        config, position = self.config, self.config.position_encoding
        options = {
            "num_layers": config.num_layers,
            "num_heads": self.num_heads,
            "pre_norm": not config.is_post_norm,
            "activation": ACTIVATIONS[config.activation or "gelu"],
            "ffn_glu": config.activation in GATED,
            "rms_norm": config.norm == "rmsnorm",
            "head_dim": self.head_dim,
            "relative_position": position == "relative",
            "relative_attention_bias": position == "relative-bias",
            "qk_norm": bool(config.qk_norm),
        }
        if position == "rotary":
            theta = config.rope_theta or ROPE_THETA
            options |= {"rotary_dim": self.head_dim, "rotary_interleave": False, "rotary_base": theta}
        return options


def _set_linear(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = weight.float().contiguous().numpy()
    if bias is not None:
        spec.bias = bias.float().contiguous().numpy()


def _set_norm(spec: Any, tensors: Mapping[str, Tensor], name: str) -> None:
    spec.gamma = tensors[f"{name}.weight"].float().numpy()
    if f"{name}.bias" in tensors:
        spec.beta = tensors[f"{name}.bias"].float().numpy()


def _set_sublayer_norm(spec: Any, stack: _Stack, name: str) -> None:
    _set_norm(spec, stack.tensors, f"{name}.connection.norm" if stack.config.is_post_norm else f"{name}.norm")


def _padded(stack: _Stack, name: str, *, parts: int, input_size: int) -> tuple[Tensor, Tensor | None]:
    """Weight (parts H E, D) and bias of a projection to `parts` of queries, keys and values, padded with heads of zeros."""
    weight = stack.tensors.get(f"{name}.weight", torch.zeros(0, input_size))
    bias = stack.tensors.get(f"{name}.bias")
    num_new = stack.num_heads * stack.head_dim - len(weight) // parts
    padded = F.pad(weight.reshape(parts, -1, input_size), (0, 0, 0, num_new)).flatten(0, 1)
    return padded, None if bias is None else F.pad(bias.view(parts, -1), (0, num_new)).flatten()


def _set_output(spec: Any, stack: _Stack, name: str) -> None:
    """The output projection of attention; that of attention without heads is a bias alone."""
    weight = stack.tensors.get(f"{name}.to_out.weight", torch.zeros(stack.config.hidden_size, 0))
    bias = stack.tensors.get(f"{name}.to_out.bias", stack.tensors.get(f"{name}.bias"))
    _set_linear(spec, F.pad(weight, (0, stack.num_heads * stack.head_dim - weight.size(1))), bias)


def _set_self_attention(spec: Any, stack: _Stack, layer: int) -> None:
    name, config = stack.name(layer, 0), stack.config
    weight, bias = _padded(stack, f"{name}.mixer.to_qkv", parts=3, input_size=config.hidden_size)
    if config.qk_norm:
        # the norm of queries and keys has torch's epsilon, but CTranslate2 has one epsilon e for all norms: queries and keys
        # that are s times larger have the effective epsilon e / s^2
        scale = math.sqrt(norm_eps(config) / NORM_EPS["rmsnorm"])
        rows = torch.tensor([scale, scale, 1.0], dtype=torch.float64).repeat_interleave(len(weight) // 3)
        weight = (weight.double() * rows[:, None]).float()
        bias = None if bias is None else (bias.double() * rows).float()
        spec.q_norm.gamma = spec.k_norm.gamma = torch.ones(stack.head_dim).numpy()
    _set_linear(spec.linear[0], weight, bias)
    _set_output(spec.linear[1], stack, f"{name}.mixer")
    _set_sublayer_norm(spec.layer_norm, stack, name)
    if config.position_encoding == "relative":
        # a layer without heads has no positions
        keys = stack.tensors.get(f"{name}.mixer.positions.keys.weight", torch.zeros(3, stack.head_dim)).float()
        spec.relative_position_keys, spec.relative_position_values = keys.numpy(), torch.zeros_like(keys).numpy()
    if config.position_encoding == "relative-bias":
        shared = stack.tensors[f"{stack.name(0, 0)}.mixer.positions.table.weight"]
        spec.relative_attention_bias = shared.float().numpy()
        spec.relative_attention_max_distance = torch.tensor(RELATIVE_BIAS_DISTANCE, dtype=torch.int32).numpy()


def _set_cross_attention(spec: Any, stack: _Stack, layer: int, memory_size: int) -> None:
    name = stack.name(layer, 1)
    _set_linear(spec.linear[0], *_padded(stack, f"{name}.mixer.to_q", parts=1, input_size=stack.config.hidden_size))
    _set_linear(spec.linear[1], *_padded(stack, f"{name}.mixer.to_kv", parts=2, input_size=memory_size))
    _set_output(spec.linear[2], stack, f"{name}.mixer")
    _set_sublayer_norm(spec.layer_norm, stack, name)


def _set_feed_forward(spec: Any, stack: _Stack, layer: int) -> None:
    name, activation = stack.name(layer, stack.sublayers - 1), stack.config.activation
    weight, bias = stack.tensors[f"{name}.mixer.up_proj.weight"], stack.tensors.get(f"{name}.mixer.up_proj.bias")
    if activation in GATED:
        halves = [weight, weight] if activation == "squared-relu" else list(weight.chunk(2))
        biases = [bias, bias] if bias is None or activation == "squared-relu" else list(bias.chunk(2))
        for part, half, half_bias in zip((spec.linear_0, spec.linear_0_noact), halves, biases, strict=True):
            _set_linear(part, half, half_bias)
    else:
        _set_linear(spec.linear_0, weight, bias)
    to_out = f"{name}.mixer.to_out"
    _set_linear(spec.linear_1, stack.tensors[f"{to_out}.weight"], stack.tensors.get(f"{to_out}.bias"))
    _set_sublayer_norm(spec.layer_norm, stack, name)


def _positions(stack: _Stack) -> Tensor:
    """The vectors that are added to the embeddings, (positions, D); zeros if there are none."""
    size = stack.config.hidden_size
    match stack.config.position_encoding:
        case "learned":
            return stack.tensors[f"{stack.prefix}.positions.table.weight"]
        case "sinusoidal":
            zeros = torch.zeros(1, stack.num_positions, size)
            return SinusoidalPositions(size).add_to(zeros, torch.arange(stack.num_positions)[None])[0]
    return torch.zeros(stack.num_positions, size)


def _set_stack(spec: Any, stack: _Stack, memory_size: int | None = None) -> None:
    """Everything but embeddings and output layer."""
    config = stack.config
    if config.position_encoding in ("none", "learned", "sinusoidal"):
        spec.position_encodings.encodings = _positions(stack).float().numpy()
    if not config.is_post_norm:
        _set_norm(spec.layer_norm, stack.tensors, f"{stack.prefix}.final_norm")
    if f"{stack.prefix}.input_proj.weight" in stack.tensors:
        _set_norm(spec.layernorm_embedding, stack.tensors, f"{stack.prefix}.input_proj")
    for layer, layer_spec in enumerate(spec.layer):
        _set_self_attention(layer_spec.self_attention, stack, layer)
        if memory_size is not None:
            _set_cross_attention(layer_spec.attention, stack, layer, memory_size)
        _set_feed_forward(layer_spec.ffn, stack, layer)


def _set_output_layer(spec: Any, tensors: Mapping[str, Tensor], name: str, softcap: float) -> None:
    _set_linear(spec.projection, tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))
    if softcap:
        spec.final_logit_softcapping = torch.tensor(softcap).numpy()


def _window(config: StackConfig, context_length: int) -> int | None:
    """The sliding window of self-attention. Texts are never longer than a table of learned positions; then there is none,
    because CTranslate2 4.8.4 cannot score texts of different lengths at once with one."""
    return None if config.position_encoding == "learned" else context_length


def seq2seq_spec(
    tensors: Mapping[str, Tensor], config: Seq2SeqConfig, num_positions: tuple[int, int], context_length: int
) -> TransformerSpec:
    """The specification of an encoder-decoder; `num_positions` of the encoder and the decoder, whose self-attention sees
    `context_length` tokens."""
    scales = embedding_scales(config)
    encoder = _Stack(tensors, "encoder.stack", config.encoder, num_positions[0])
    cross_heads = [config.decoder.cross_heads_in_layer(layer)[0] for layer in range(config.decoder.num_layers)]
    decoder = _Stack(tensors, "decoder.stack", config.decoder, num_positions[1], 3, cross_heads)
    spec = TransformerSpec(
        TransformerEncoderSpec(**encoder.options(), layernorm_embedding=config.encoder.embedding_norm),
        TransformerDecoderSpec(
            **decoder.options(),
            layernorm_embedding=config.decoder.embedding_norm,
            alibi=config.decoder.position_encoding == "alibi",
            sliding_window=_window(config.decoder, context_length),
        ),
    )
    for layer in spec.decoder.layer if _window(config.decoder, context_length) else ():
        del layer.attention.sliding_window  # cross-attention sees the whole source
    _set_stack(spec.encoder, encoder)
    _set_stack(spec.decoder, decoder, memory_size=config.encoder.hidden_size)
    spec.encoder.embeddings[0].weight = tensors["encoder.embedder.embedding.weight"].float().numpy()
    spec.decoder.embeddings.weight = tensors["decoder.embedder.embedding.weight"].float().numpy()
    spec.encoder.scale_embeddings, spec.decoder.scale_embeddings = (scale != 1.0 for scale in scales)
    _set_output_layer(spec.decoder, tensors, "head.head", config.logit_softcap)
    spec.config.layer_norm_epsilon = norm_eps(config.decoder)
    return spec


def language_model_spec(
    tensors: Mapping[str, Tensor], config: LanguageModelConfig, num_positions: int, context_length: int
) -> TransformerDecoderModelSpec:
    """The specification of a language model that attends to `context_length` tokens."""
    stack = _Stack(tensors, "stack", config, num_positions)
    spec = TransformerDecoderModelSpec(
        TransformerDecoderSpec(
            **stack.options(),
            with_encoder_attention=False,
            alibi=config.position_encoding == "alibi",
            sliding_window=_window(config, context_length),
        )
    )
    _set_stack(spec.decoder, stack)
    spec.decoder.embeddings.weight = tensors["embedding.weight"].float().numpy()
    spec.decoder.scale_embeddings = False
    _set_output_layer(spec.decoder, tensors, "head", config.logit_softcap)
    spec.config.layer_norm_epsilon = norm_eps(config)
    return spec
