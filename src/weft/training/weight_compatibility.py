"""The options that determine the function that a network computes with its weights.

Two runs may have tensors of the same names and shapes and compute different functions, if they differ in heads, positions,
activations, norms or directions. Every option counts unless it is listed here, so that new options are compared by default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.models.config import StackConfig
from weft.nn.choices import ROPE_THETA
from weft.text.tokenizers import Tokenizer

if TYPE_CHECKING:
    from weft.runs.config import RunConfig

# options that affect training or initialization only
TRAIN_ONLY_OPTIONS = {"dropout", "attention_dropout", "embedding_dropout", "word_dropout", "zero_init", "class_weight"}
TRAIN_ONLY_OPTIONS |= {"weight_dropout", "variational_dropout", "word_type_dropout"}
TRAIN_ONLY_OPTIONS |= {"activation_regularization", "temporal_activation_regularization"}
TRAIN_ONLY_OPTIONS |= {"balance_loss_weight"}
TRAIN_ONLY_OPTIONS |= {"sentence_pairs", "mask_prob", "masking", "lora_output"}
TRAIN_ONLY_OPTIONS |= {"algorithm", "samples_per_prompt", "max_new_tokens", "kl_weight", "clip_range", "updates_per_rollout"}
TRAIN_ONLY_OPTIONS |= {"value_weight", "gae_lambda", "dpo_beta"}
# options that change names or shapes of weights: weights that differ are new or unused, or their shapes are rejected
SHAPE_OPTIONS = {
    "num_layers",
    "hidden_size",
    "embedding_dim",
    "segment_embeddings",
    "encoder",
    "decoder",
    "char_encoder",
    "bridge",
    "copy_mechanism",
    "scale_embeddings",  # embeddings are rescaled
    "lora_rank",  # other adapters are merged
}
# options that only the weights above the stack depend on
HEAD_OPTIONS = {"pooling", "head_transform", "head", "head_bias", "logit_softcap"}
# untied weights cannot initialize tied ones, but tied weights can initialize untied ones
TIE_OPTIONS = {"tie_embeddings", "share_embeddings"}
# a model without biases can initialize one with biases, which start at 0, but not the other way round
BIAS_OPTIONS = {"bias", "head_bias"}
ABSENT = "absent"  # value of the options of a part that the network does not have; it is not compared
MAX_VALUE_CHARS = 60


class Part(NamedTuple):
    """A part of a network: the options that determine what it computes, by their names in the run file."""

    options: Mapping[str, Any]
    span: int | None = None  # number of positions that causal attention sees; None: no causal attention

    def differences(self, other: Part) -> list[str]:
        """Describe each option that differs, such as `model.num_heads: 4 there, 8 here`; "there" is the other part."""
        differing = []
        for name in sorted({*self.options, *other.options}):
            ours, theirs = self.options.get(name), other.options.get(name)
            option = name.rpartition(".")[2]
            is_possible = (option in TIE_OPTIONS and not ours) or (option in BIAS_OPTIONS and ours)
            if ABSENT in (ours, theirs) or is_possible:
                continue
            if _comparable(ours) != _comparable(theirs):
                differing.append(f"{name}: {_format_value(theirs)} there, {_format_value(ours)} here")
        return differing

    def in_other_table(self, old: str, new: str) -> Part:
        """The same part with the options of table `old` in table `new`."""
        return self._replace(options={f"{new}{name.removeprefix(old)}": self.options[name] for name in self.options})


def _comparable(value: Any) -> Any:
    """The value to compare: options that are off or not available are equal."""
    return None if value in (None, False, 0, "none") else value


def _format_value(value: Any) -> str:
    text = "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}..."


def one_value(values: list[Any]) -> Any:
    """The value of all layers if they have the same, else the list."""
    return values[0] if values and all(value == values[0] for value in values) else values


def in_table(table: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with the dotted names that they have in a run file."""
    return {f"{table}.{name}": value for name, value in options.items()}


def tokenizer_options(tokenizer: Tokenizer) -> dict[str, Any]:
    """The tokenizer, which determines the tokens of the rows of an embedding or a head."""
    return {"tokenizer": tokenizer.hash[:8]}


def stack_options(config: StackConfig, layers: int) -> dict[str, Any]:
    """The options of the first `layers` layers of a stack, with equivalent values made equal."""
    ignored = TRAIN_ONLY_OPTIONS | SHAPE_OPTIONS | HEAD_OPTIONS | TIE_OPTIONS
    options = {name: getattr(config, name) for name in type(config).model_fields if name not in ignored}
    if config.ffn_dim:
        options["ffn_dim"] = "some"  # its size is part of the shapes of weights
    if config.traits.attends:
        num_heads, head_dims = zip(*(config.heads_in_layer(layer) for layer in range(layers)), strict=True)
        options |= {"num_heads": one_value(list(num_heads)), "head_dim": one_value(list(head_dims))}
    if config.alibi_slopes is not None:
        options["alibi_slopes"] = config.alibi_slopes[:layers]
    if config.rope_theta == ROPE_THETA:
        options["rope_theta"] = None
    if config.norm == "layernorm":
        options["norm_eps"] = 1e-5 if config.norm_eps is None else config.norm_eps
    options.pop("num_cross_heads", None)  # belongs to cross-attention
    return options


def head_options(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in type(config).model_fields if name in HEAD_OPTIONS | {"tie_embeddings"}}


def attention_span(config: StackConfig, max_length: int) -> int | None:
    """The attention span of a stack that is trained on `max_length` positions."""
    return max_length if config.traits.attends and not config.bidirectional else None


def encoder_parts(
    config: RunConfig, tokens: Tokenizer, layers: Mapping[str, int], *, max_length: int, head: Mapping[str, Any]
) -> dict[str, Part]:
    """The parts of a network with one stack, which counts as an encoder, and a head. `head` has options of the head outside
    [model]."""
    model: StackConfig = config.model
    return {
        "encoder.embedder": Part(tokenizer_options(tokens)),
        "encoder.stack": Part(in_table("model", stack_options(model, layers["encoder"])), attention_span(model, max_length)),
        "head": Part({**in_table("model", head_options(model)), **head}),
    }


# ---- specification of a task


def _unchanged(name: str) -> str:
    return name


def _one_stack(model: Any) -> dict[str, int]:
    return {"encoder": model.num_layers}


def one_mask(config: RunConfig) -> int:
    return 1


def no_noise_tokens(config: RunConfig) -> int:
    return 0


def _one_scale(model: Any) -> dict[str, float]:
    return {"encoder": 1.0}


class Weights(NamedTuple):
    """Names and meaning of the weights of a task's networks, for initialization from other runs. The defaults describe an
    encoder with a head. All functions of [model] receive the resolved table."""

    # from the configuration, the vocabulary, and the number of layers of each stack: the parts of the network
    parts: Callable[[RunConfig, Any, Mapping[str, int]], dict[str, Part]]
    layers: Callable[[Any], dict[str, int]] = _one_stack  # from [model]: the number of layers of each stack
    scales: Callable[[Any], dict[str, float]] = _one_scale  # from [model]: the factor of each embedding
    encoder_name: Callable[[str], str] = _unchanged  # from the name of a weight: its name in a network with an encoder
    # rows of the embeddings and of the output layer after the tokens of the tokenizer: masks, sentinels
    num_noise_tokens: Callable[[RunConfig], int] = one_mask
    is_causal: bool = False  # predicts the next token: can initialize a decoder, and has no encoder
    # from the name of a weight of a language model, and [model]: its name in the decoder
    decoder_name: Callable[[str, Any], str] | None = None


def weights_of(config: RunConfig) -> Weights | None:
    """The weights specification of the task of a run; None if its model is not a network."""
    return None if config.preset.estimator.network_task is None else config.spec.weights


def layers_of(config: RunConfig) -> dict[str, int]:
    """The number of layers of each stack; empty if the model is not a network."""
    weights = weights_of(config)
    return {} if weights is None else weights.layers(config.model)


def parts_of(config: RunConfig, tokenizer: Any, layers: Mapping[str, int]) -> dict[str, Part]:
    """The parts of a run's network with these numbers of layers; a single stack is an encoder. Empty if the model is not a
    network."""
    weights = weights_of(config)
    return {} if weights is None else weights.parts(config, tokenizer, layers)


def embedding_scale(config: RunConfig) -> dict[str, float]:
    """The factor that the vectors of each embedding are multiplied by."""
    weights = weights_of(config)
    return {} if weights is None else weights.scales(config.model)
