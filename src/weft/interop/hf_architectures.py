"""Which architecture of Hugging Face computes the function of a model, and which options no architecture has.

Only configurations are read, without torch: `weft check` calls this before training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from weft.errors import UsageError
from weft.models.config import LanguageModelConfig, StackConfig
from weft.models.encoder_config import ClassifierConfig, MaskedLMConfig, QAConfig, TaggerConfig, TextEncoderConfig
from weft.models.seq2seq_config import Seq2SeqConfig
from weft.nn.mixers import MIXERS
from weft.runs.config import RunConfig
from weft.text.tokenizer_pair import TokenizerPairConfig

ACTIVATIONS = {"gelu": "gelu", "gelu-tanh": "gelu_new", "relu": "relu", "silu": "silu"}
T5_ACTIVATIONS = {**ACTIVATIONS, "swiglu": "gated-silu", "geglu-tanh": "gated-gelu"}
LM_ACTIVATIONS = {"squared-relu": "relu2", **ACTIVATIONS}  # of models that take any function
LAYER_NORM_EPS = 1e-5  # our default, and that of torch
# layer types that the models of Hugging Face have
ATTENTION = tuple(name for name, row in MIXERS.items() if row.module == "weft.nn.attention.SelfAttention")
SIDES = ("encoder", "decoder")
Allowed = Mapping[str, tuple[Any, ...]]


class Problem(NamedTuple):
    """An option that an architecture does not have, and one that it has."""

    option: str
    fix: str


class Architecture(NamedTuple):
    """An architecture of Hugging Face, and the values of options that it has; of several values, the first is suggested."""

    title: str
    class_name: str
    options: Allowed  # of [model]; of encoder-decoders, those of the encoder and the decoder
    any_head_size: bool = False  # whether heads need not fill the hidden size, but are equal in all layers
    model: Allowed = MappingProxyType({})  # encoder-decoders: options of [model] alone
    equal: tuple[str, ...] = ()  # encoder-decoders: options that both sides have in common


def _check(option: str, value: Any, allowed: tuple[Any, ...]) -> Iterator[Problem]:
    if value not in allowed:
        fix = f"no {option}" if allowed[0] is None else f"{option} = {_toml(allowed[0])}"
        yield Problem(f"{option} = {_toml(value)}", fix)


def _toml(value: Any) -> str:
    """A value as the run file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else repr(value)


def _heads(table: StackConfig) -> set[tuple[int, int]]:
    """Numbers of heads and their sizes."""
    return {table.heads_in_layer(layer) for layer in range(table.num_layers)}


# ---- language models and encoders

BLOCK: Allowed = {"layer_type": ATTENTION, "skip_connection": ("residual",), "conv_kernel": (None,), "num_experts": (None,)}
ROTARY: Allowed = {
    **BLOCK, "norm_position": ("pre",), "position_encoding": ("rotary",), "norm": ("rmsnorm",), "logit_softcap": (0.0,),
    "head_bias": (False,),
}  # fmt: skip
# its queries and keys have the epsilon of the other norms; in weft, theirs is always the default
QK_NORM: Allowed = {**ROTARY, "qk_norm": (True,), "bias": (False,), "norm_eps": (None,)}
LANGUAGE_MODELS: Mapping[str, Architecture] = {
    "gpt2": Architecture(
        "GPT-2",
        "GPT2LMHeadModel",
        {
            **BLOCK, "norm_position": ("pre",), "position_encoding": ("learned",), "norm": ("layernorm",),
            "qk_norm": (False, None), "logit_softcap": (0.0,), "activation": tuple(ACTIVATIONS),
        },
    ),
    "llama": Architecture(
        "Llama", "LlamaForCausalLM", {**ROTARY, "qk_norm": (False, None), "activation": ("swiglu",)}, any_head_size=True
    ),
    "qwen3": Architecture(
        "Qwen3",
        "Qwen3ForCausalLM",
        {**QK_NORM, "activation": ("swiglu",)},
        any_head_size=True,
    ),
    "apertus": Architecture(
        "Apertus",
        "ApertusForCausalLM",
        {**QK_NORM, "activation": tuple(LM_ACTIVATIONS)},
        any_head_size=True,
    ),
    "arcee": Architecture(
        "Arcee",
        "ArceeForCausalLM",
        {**ROTARY, "qk_norm": (False, None), "activation": tuple(LM_ACTIVATIONS)},
        any_head_size=True,
    ),
}  # fmt: skip
BERT: Allowed = {
    **BLOCK, "norm_position": ("post",), "embedding_norm": (True,), "position_encoding": ("learned",), "norm": ("layernorm",),
    "qk_norm": (False, None), "activation": tuple(ACTIVATIONS), "bidirectional": (True,),
}  # fmt: skip
ENCODER = Architecture("BERT", "BertModel", BERT)
ENCODERS: Mapping[type[TextEncoderConfig], Architecture] = {
    MaskedLMConfig: Architecture("BERT", "BertForMaskedLM", BERT),
    ClassifierConfig: Architecture("BERT", "BertForSequenceClassification", {**BERT, "pooling": ("first",)}),
    TaggerConfig: Architecture(
        "BERT", "BertForTokenClassification", {**BERT, "head": ("linear",), "char_encoder": (False, None)}
    ),
    QAConfig: Architecture("BERT", "BertForQuestionAnswering", BERT),
}


def _stack_problems(model: StackConfig, architecture: Architecture) -> list[Problem]:
    """What an architecture with one stack does not have."""
    if model.layer_type not in ATTENTION:
        return [*_check("model.layer_type", model.layer_type, ATTENTION)]  # its other options follow from it
    found = [
        problem
        for option, allowed in architecture.options.items()
        if option != "activation" or model.ffn_dim
        for problem in _check(f"model.{option}", getattr(model, option), allowed)
    ]
    if not model.ffn_dim:
        found.append(Problem("model.ffn_dim = 0", "model.ffn_dim greater than 0"))
    heads = f"model.num_heads = {model.num_heads!r} with model.head_dim = {model.head_dim!r}"
    sizes = {size for _, size in _heads(model)}
    if architecture.any_head_size:
        if len(_heads(model)) > 1:
            found.append(Problem(heads, "model.num_heads as one number"))
    elif len(sizes) > 1 or model.hidden_size % max(sizes) or max(_heads(model))[0] > model.hidden_size // max(sizes):
        fix = f"heads of one size that fit into model.hidden_size = {model.hidden_size}"
        found.append(Problem(heads, fix))
    return found


# ---- encoder-decoders

STACK: Allowed = {
    "layer_type": ATTENTION, "skip_connection": ("residual",), "qk_norm": (False, None), "conv_kernel": (None,),
    "num_experts": (None,),
}  # fmt: skip
LAYER_NORM: Allowed = {
    "norm": ("layernorm",), "norm_eps": (LAYER_NORM_EPS, None), "activation": tuple(ACTIVATIONS),
}  # fmt: skip
MODEL: Allowed = {"attention": ("scaled-dot",), "copy_mechanism": (False,), "logit_softcap": (0.0,)}
SIZES = ("hidden_size", "activation")
SINUSOIDAL = {"position_encoding": "sinusoidal", "norm": "layernorm"}
# options of encoder and decoder
FAMILY_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "bart": {"position_encoding": "learned", "norm": "layernorm", "norm_position": "post", "embedding_norm": True},
    "marian": {**SINUSOIDAL, "norm_position": "post"},
    "pegasus": {**SINUSOIDAL, "norm_position": "pre"},
}


def _family(title: str, class_name: str, model_type: str) -> Architecture:
    options = {"embedding_norm": False, **FAMILY_OPTIONS[model_type]}
    stack = {**STACK, **{name: (value,) for name, value in options.items()}, **LAYER_NORM}
    return Architecture(title, class_name, stack, model=MODEL, equal=SIZES)


SEQ2SEQ: Mapping[str, Architecture] = {
    "bart": _family("BART", "BartForConditionalGeneration", "bart"),
    "marian": _family("Marian", "MarianMTModel", "marian"),
    "pegasus": _family("Pegasus", "PegasusForConditionalGeneration", "pegasus"),
    "t5": Architecture(
        "T5",
        "T5ForConditionalGeneration",
        {
            **STACK,
            "position_encoding": ("relative-bias",),
            "norm": ("rmsnorm",),
            "norm_position": ("pre",),
            "embedding_norm": (False,),
            "bias": (False,),
            "activation": tuple(T5_ACTIVATIONS),
        },
        any_head_size=True,
        model={**MODEL, "share_embeddings": (True,), "head_bias": (False,)},
        equal=(*SIZES, "ffn_dim", "norm_eps"),
    ),
}


def _side_problems(config: Seq2SeqConfig, allowed: Allowed) -> Iterator[Problem]:
    for option, values in allowed.items():
        encoder, decoder = (getattr(table, option) for table in (config.encoder, config.decoder))
        if encoder == decoder:
            yield from _check(f"model.{option}", encoder, values)
        else:
            yield from _check(f"model.encoder.{option}", encoder, values)
            yield from _check(f"model.decoder.{option}", decoder, values)


def _head_problems(config: Seq2SeqConfig, *, any_size: bool) -> Iterator[Problem]:
    """Heads must be equal in all layers; with `any_size`, on both sides, else they must fill the hidden size."""
    encoder, decoder = config.encoder, config.decoder
    if not (encoder.traits.attends and decoder.traits.attends):
        return
    if any_size and _heads(encoder) | _heads(decoder) != _heads(encoder):
        yield Problem("different heads in encoder and decoder", "equal model.num_heads and model.head_dim")
    for side, table in zip(SIDES, (encoder, decoder), strict=True):
        heads = _heads(table)
        option = f"model.{side}.num_heads = {table.num_heads!r} with head_dim = {table.head_dim!r}"
        if len(heads) > 1 or (not any_size and any(math.prod(head) != table.hidden_size for head in heads)):
            yield Problem(option, f"model.{side}.num_heads as one number, and without head_dim")
    if {decoder.cross_heads_in_layer(layer) for layer in range(decoder.num_layers)} != _heads(decoder):
        yield Problem(f"model.decoder.num_cross_heads = {decoder.num_cross_heads!r}", "num_cross_heads equal to num_heads")


def _is_shared(tokenizer: TokenizerPairConfig) -> bool:
    """Whether both sides have one tokenizer, or the same file."""
    source, target = tokenizer.source, tokenizer.target
    return source is None or target is None or (source.file is not None and source.file == target.file)


def _seq2seq_problems(config: RunConfig, architecture: Architecture) -> list[Problem]:
    """What an architecture of encoder-decoders does not have."""
    model: Seq2SeqConfig = config.model
    found = [
        *_side_problems(model, architecture.options),
        *_check("model.encoder.bidirectional", model.encoder.bidirectional, (True,)),
        *_check("model.encoder.reverse_source", model.encoder.reverse_source, (False,)),
        *(
            problem
            for name, allowed in architecture.model.items()
            for problem in _check(f"model.{name}", getattr(model, name), allowed)
        ),
    ]
    for option in architecture.equal:
        encoder, decoder = getattr(model.encoder, option), getattr(model.decoder, option)
        if encoder != decoder:
            fix = f"equal values of model.encoder.{option} and model.decoder.{option}"
            found.append(Problem(f"model.encoder.{option} = {encoder!r} with model.decoder.{option} = {decoder!r}", fix))
    if not (model.encoder.ffn_dim and model.decoder.ffn_dim):
        found.append(Problem("model.ffn_dim = 0", "model.ffn_dim greater than 0"))
    if "sinusoidal" in architecture.options["position_encoding"] and model.decoder.hidden_size % 2:
        found.append(Problem(f"model.hidden_size = {model.decoder.hidden_size}", "an even model.hidden_size"))
    found += _head_problems(model, any_size=architecture.any_head_size)
    if not _is_shared(config.tokenizer):
        found.append(Problem("two tokenizers", "one [tokenizer] for both sides"))
    return found


# ---- all


class Nearest(NamedTuple):
    """The architecture that has most options of a model, its model_type, and the options that it does not have."""

    model_type: str
    architecture: Architecture
    problems: list[Problem]
    is_only: bool  # whether there was no choice

    def refusal(self) -> tuple[str, str]:
        """Problem and fix of an error."""
        options, fixes = (", ".join(texts) for texts in zip(*self.problems, strict=True))
        nearest = "" if self.is_only else ", the nearest architecture,"
        return f"{self.architecture.title}{nearest} has no equivalent of {options}", f"train with {fixes}"


def _choose(architectures: Mapping[str, Architecture], problems: Callable[[Architecture], list[Problem]]) -> Nearest:
    found = {model_type: problems(architecture) for model_type, architecture in architectures.items()}
    model_type = min(found, key=lambda name: len(found[name]))
    return Nearest(model_type, architectures[model_type], found[model_type], len(architectures) == 1)


def nearest_language_model(model: StackConfig, architectures: Mapping[str, Architecture]) -> Nearest:
    """The nearest of some architectures of language models."""
    return _choose(architectures, lambda architecture: _stack_problems(model, architecture))


def nearest(config: RunConfig) -> Nearest:
    """The nearest architecture of Hugging Face; an error if there is none for this kind of model."""
    model = config.model
    if LanguageModelConfig in type(model).__mro__:  # also one that is trained to respond
        return nearest_language_model(model, LANGUAGE_MODELS)
    if type(model) is Seq2SeqConfig:
        if not isinstance(config.tokenizer, TokenizerPairConfig):
            problem = f"the run is a {config.spec.model_noun}: its masks or sentinels are not tokens of its tokenizer"
            raise UsageError("export", problem, "train a seq2seq model that starts from it, and export that")
        return _choose(SEQ2SEQ, lambda architecture: _seq2seq_problems(config, architecture))
    if type(model) not in ENCODERS:
        raise UsageError("export", f"arch {config.arch!r} of task {config.task!r} has no equivalent in Hugging Face")
    return _choose({"bert": ENCODERS[type(model)]}, lambda architecture: _stack_problems(model, architecture))


def _refusals(found: Nearest) -> list[str]:
    return ["; ".join(found.refusal())] if found.problems else []


def language_model_problems(model: StackConfig, architectures: Mapping[str, Architecture]) -> list[str]:
    """Why a language model is none of these architectures; [] if it is one."""
    return _refusals(nearest_language_model(model, architectures))


def encoder_problems(model: TextEncoderConfig) -> list[str]:
    """Why the encoder of a model, without its output layer, is no BERT; [] if it is one."""
    return _refusals(_choose({"bert": ENCODER}, lambda architecture: _stack_problems(model, architecture)))


def problems(config: RunConfig) -> list[str]:
    """Why a model cannot be exported to Hugging Face; [] if it can."""
    try:
        found = nearest(config)
    except UsageError as error:
        return ["; ".join(filter(None, (error.problem, error.fix)))]
    return _refusals(found)
