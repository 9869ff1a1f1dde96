"""Export encoder-decoders as the architecture of Hugging Face that computes the same function: BART, Marian, Pegasus or T5."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.errors import UsageError
from weft.interop import hf_seq2seq_names as names
from weft.interop.hf_export_parts import ACTIVATIONS, ATTENTION, LAYER_NORM_EPS, Exported, check_no_experts, to_hf
from weft.interop.hf_names import WeightMapping
from weft.interop.hf_seq2seq import FAMILIES, POSITION_OFFSET, feature_order, reorder_features, scale_queries, sinusoidal_table
from weft.interop.hf_seq2seq_names import SIDES, seq2seq_mappings, sublayers
from weft.interop.hf_tokenizer import PAD_TOKENS, export_seq2seq_tokenizer
from weft.models.config import StackConfig
from weft.models.seq2seq import embedding_scales
from weft.models.seq2seq_config import Seq2SeqConfig
from weft.nn.choices import GATED_ACTIVATIONS
from weft.runs.run import AnyRun
from weft.text.tokenizer_pair import TokenizerPair
from weft.text.tokenizers import Tokenizer

T5_ACTIVATIONS = {**ACTIVATIONS, "swiglu": "gated-silu", "geglu-tanh": "gated-gelu"}
RMS_NORM_EPS = torch.finfo(torch.float32).eps  # the default of torch


# ---- options without an equivalent


class Problem(NamedTuple):
    """An option that an architecture does not have, and one that it has."""

    option: str
    fix: str


class Architecture(NamedTuple):
    """An architecture of Hugging Face, and the values of options that it has; of several values, the first is suggested."""

    title: str
    class_name: str
    stack: Mapping[str, tuple[Any, ...]]  # options of the encoder and the decoder
    model: Mapping[str, tuple[Any, ...]]  # options of [model]
    equal: tuple[str, ...]  # options that the encoder and the decoder have in common
    any_head_size: bool  # whether heads need not fill the hidden size, but are equal on both sides
    convert: Callable[[str, AnyRun], tuple[dict[str, Any], dict[str, Tensor]]]  # to config.json and tensors


def _check(option: str, value: Any, allowed: tuple[Any, ...]) -> Iterator[Problem]:
    if value not in allowed:
        yield Problem(f"{option} = {value!r}", f"{option} = {allowed[0]!r}")


def _stack_problems(config: Seq2SeqConfig, allowed: Mapping[str, tuple[Any, ...]]) -> Iterator[Problem]:
    for option, values in allowed.items():
        encoder, decoder = (getattr(table, option) for table in (config.encoder, config.decoder))
        if encoder == decoder:
            yield from _check(f"model.{option}", encoder, values)
        else:
            yield from _check(f"model.encoder.{option}", encoder, values)
            yield from _check(f"model.decoder.{option}", decoder, values)


def _heads(table: StackConfig) -> set[tuple[int, int]]:
    """Numbers of heads and their sizes."""
    return {table.heads_in_layer(layer) for layer in range(table.num_layers)}


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


def problems(run: AnyRun, architecture: Architecture) -> list[Problem]:
    """What the architecture does not have."""
    config, vocabulary = run.config.model, run.vocabulary
    for table in (config.encoder, config.decoder):
        check_no_experts(table)
    found = [
        *_stack_problems(config, architecture.stack),
        *_check("model.encoder.bidirectional", config.encoder.bidirectional, (True,)),
        *_check("model.encoder.reverse_source", config.encoder.reverse_source, (False,)),
        *(
            problem
            for name, allowed in architecture.model.items()
            for problem in _check(f"model.{name}", getattr(config, name), allowed)
        ),
    ]
    for option in architecture.equal:
        encoder, decoder = getattr(config.encoder, option), getattr(config.decoder, option)
        if encoder != decoder:
            fix = f"equal values of model.encoder.{option} and model.decoder.{option}"
            found.append(Problem(f"model.encoder.{option} = {encoder!r} with model.decoder.{option} = {decoder!r}", fix))
    if not (config.encoder.ffn_dim and config.decoder.ffn_dim):
        found.append(Problem("model.ffn_dim = 0", "model.ffn_dim greater than 0"))
    if "sinusoidal" in architecture.stack["position_encoding"] and config.decoder.hidden_size % 2:
        found.append(Problem(f"model.hidden_size = {config.decoder.hidden_size}", "an even model.hidden_size"))
    found += _head_problems(config, any_size=architecture.any_head_size)
    if not vocabulary.is_shared:
        found.append(Problem("two tokenizers", "one [tokenizer] for both sides"))
    return found


# ---- BART, Marian and Pegasus


def _biased(ours: Mapping[str, Tensor], mappings: list[WeightMapping]) -> dict[str, Tensor]:
    """Weights with biases of zeros where the model has none."""
    missing = [mapping.ours for mapping in mappings if mapping.ours not in ours]
    return {**ours, **{name: torch.zeros(len(ours[name.removesuffix("bias") + "weight"])) for name in missing}}


def _family(model_type: str, run: AnyRun) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config, max_length = run.config.model, run.config.data.max_length
    hidden_size, family = config.decoder.hidden_size, FAMILIES[model_type]
    tables = dict(zip(SIDES, (config.encoder, config.decoder), strict=True))
    mappings = list(seq2seq_mappings(family.names, {side: table.num_layers for side, table in tables.items()}))
    ours = _biased(run.model.state_dict(), mappings)
    is_sinusoidal = config.decoder.position_encoding == "sinusoidal"
    if is_sinusoidal:
        ours = reorder_features(ours, feature_order(hidden_size).argsort())
    tensors = to_hf(mappings, ours)
    for side in SIDES:
        if is_sinusoidal:
            table = sinusoidal_table(max_length, hidden_size)
        else:
            table = torch.cat([torch.zeros(POSITION_OFFSET, hidden_size), ours[f"{side}.stack.positions.table.weight"]])
        tensors[names.POSITIONS.format(side=side)] = table
        for part in ("weight", "bias") if config.decoder.embedding_norm else ():
            tensors[f"{names.EMBEDDING_NORM.format(side=side)}.{part}"] = ours[f"{side}.stack.input_proj.{part}"]
        if not (config.share_embeddings and config.tie_embeddings):  # the shared table does not replace them
            tensors[names.SIDE_EMBEDDING.format(side=side)] = ours[f"{side}.embedder.embedding.weight"].clone()
    if config.share_embeddings or model_type != "marian":  # without shared embeddings, Marian does not have this table
        tensors[names.SHARED] = ours["decoder.embedder.embedding.weight"]
    tensors = {f"{family.names.prefix}{name}": tensor for name, tensor in tensors.items()}
    tensors[names.LOGITS_BIAS] = ours.get("head.head.bias", torch.zeros(len(ours["head.head.weight"])))[None]
    if not (config.share_embeddings and config.tie_embeddings):
        tensors[names.HEAD] = ours["head.head.weight"].clone()
    values: dict[str, Any] = {
        "d_model": hidden_size,
        "max_position_embeddings": max_length,
        "activation_function": ACTIVATIONS[config.decoder.activation],
        "dropout": config.decoder.dropout,
        "attention_dropout": config.decoder.attention_dropout or 0.0,
        "scale_embedding": embedding_scales(config)[1] != 1.0,
        "tie_word_embeddings": config.tie_embeddings and (config.share_embeddings or model_type == "marian"),
        "forced_eos_token_id": None,
    }
    for side, stack in tables.items():
        values |= {f"{side}_layers": stack.num_layers, f"{side}_attention_heads": stack.heads_in_layer(0)[0]}
        values[f"{side}_ffn_dim"] = stack.ffn_dim
    return values, tensors


def _marian(model_type: str, run: AnyRun) -> tuple[dict[str, Any], dict[str, Tensor]]:
    values, tensors = _family(model_type, run)
    values["share_encoder_decoder_embeddings"] = run.config.model.share_embeddings
    return values, tensors


# ---- T5


def _t5(model_type: str, run: AnyRun) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = run.config.model
    encoder, decoder = config.encoder, config.decoder
    num_heads, head_dim = decoder.heads_in_layer(0)
    ours = scale_queries(run.model.state_dict(), 1 / math.sqrt(head_dim))
    mappings = seq2seq_mappings(
        names.GATED_T5 if decoder.activation in GATED_ACTIVATIONS else names.T5,
        {"encoder": encoder.num_layers, "decoder": decoder.num_layers},
    )
    tensors = to_hf(mappings, ours)
    for side in SIDES:
        tensors[names.RELATIVE_BIAS.format(side=side)] = ours[f"{sublayers(side, 0)[0]}.mixer.positions.table.weight"]
    scale = embedding_scales(config)[1]
    tensors[names.SHARED] = ours["decoder.embedder.embedding.weight"] * scale
    # T5 divides the output by the square root of the hidden size if, and only if, tie_word_embeddings is true
    is_tied = config.tie_embeddings and scale != 1.0
    if not is_tied:
        tensors[names.HEAD] = ours["head.head.weight"].clone()
    values = {
        "d_model": decoder.hidden_size,
        "d_kv": head_dim,
        "d_ff": decoder.ffn_dim,
        "num_layers": encoder.num_layers,
        "num_decoder_layers": decoder.num_layers,
        "num_heads": num_heads,
        "relative_attention_num_buckets": len(tensors[names.RELATIVE_BIAS.format(side="encoder")]),
        "relative_attention_max_distance": 128,
        "dropout_rate": decoder.dropout,
        "layer_norm_epsilon": RMS_NORM_EPS if decoder.norm_eps is None else decoder.norm_eps,
        "feed_forward_proj": T5_ACTIVATIONS[decoder.activation],
        "n_positions": run.config.data.max_length,
        "tie_word_embeddings": is_tied,
    }
    return values, tensors


# ---- all


STACK: Mapping[str, tuple[Any, ...]] = {
    "layer_type": ATTENTION, "skip_connection": ("residual",), "qk_norm": (False, None), "conv_kernel": (None,),
}  # fmt: skip
LAYER_NORM: Mapping[str, tuple[Any, ...]] = {
    "norm": ("layernorm",), "norm_eps": (LAYER_NORM_EPS, None), "activation": tuple(ACTIVATIONS),
}  # fmt: skip
MODEL: Mapping[str, tuple[Any, ...]] = {"attention": ("scaled-dot",), "copy_mechanism": (False,), "logit_softcap": (0.0,)}
SIZES = ("hidden_size", "activation")


def _family_stack(model_type: str) -> dict[str, tuple[Any, ...]]:
    """The options of the stacks of a family."""
    options = {"embedding_norm": False, **FAMILIES[model_type].options}
    return {**STACK, **{name: (value,) for name, value in options.items()}, **LAYER_NORM}


ARCHITECTURES: Mapping[str, Architecture] = {
    "bart": Architecture("BART", "BartForConditionalGeneration", _family_stack("bart"), MODEL, SIZES, False, _family),
    "marian": Architecture("Marian", "MarianMTModel", _family_stack("marian"), MODEL, SIZES, False, _marian),
    "pegasus": Architecture(
        "Pegasus", "PegasusForConditionalGeneration", _family_stack("pegasus"), MODEL, SIZES, False, _family
    ),
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
        {**MODEL, "share_embeddings": (True,), "head_bias": (False,)},
        (*SIZES, "ffn_dim", "norm_eps"),
        True,
        _t5,
    ),
}


def _nearest(run: AnyRun) -> str:
    """The architecture that computes the same function; an error that names the options that the nearest one does not have."""
    found = {model_type: problems(run, architecture) for model_type, architecture in ARCHITECTURES.items()}
    model_type = min(found, key=lambda name: len(found[name]))
    if found[model_type]:
        options, fixes = (", ".join(texts) for texts in zip(*found[model_type], strict=True))
        title = ARCHITECTURES[model_type].title
        raise UsageError("export", f"{title}, the nearest architecture, has no equivalent of {options}", f"train with {fixes}")
    return model_type


def _pad_id(tokenizer: Tokenizer) -> int:
    """The token that pads batches: any is possible, because the attention mask hides it."""
    tokens = [tokenizer.id_to_token(token_id) for token_id in range(tokenizer.vocab_size)]
    start = tokenizer.start_tokens.target[0]
    default = tokenizer.unk_id if start == tokenizer.eos_id else start
    return next((tokens.index(name) for name in PAD_TOKENS if name in tokens), default)


def export_seq2seq(run: AnyRun) -> Exported:
    """An encoder-decoder as BART, Marian, Pegasus or T5."""
    if not isinstance(run.vocabulary, TokenizerPair):
        problem = f"{run.directory.path} is a {run.spec.model_noun}: its masks or sentinels are not tokens of its tokenizer"
        raise UsageError("export", problem, "train a seq2seq model that starts from it, and export that")
    model_type = _nearest(run)
    architecture, tokenizer, max_length = ARCHITECTURES[model_type], run.vocabulary.target, run.config.data.max_length
    values, tensors = architecture.convert(model_type, run)
    decoder_start, *forced = tokenizer.start_tokens.target
    if len(forced) > 1:
        raise UsageError("export", f"its decoder starts with {1 + len(forced)} tokens; Hugging Face models have at most 2")
    pad_id = _pad_id(tokenizer)
    token_ids = {
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": pad_id,
        "decoder_start_token_id": decoder_start,
        **({"forced_bos_token_id": forced[0]} if forced else {}),
    }
    config = {
        "architectures": [architecture.class_name],
        "model_type": model_type,
        "is_encoder_decoder": True,
        "vocab_size": tokenizer.vocab_size,
        **values,
        **token_ids,
    }
    # predictions never contain <unk> and <s>
    generation = {
        **token_ids,
        "max_new_tokens": max_length - len(tokenizer.start_tokens.target),
        "bad_words_ids": [[tokenizer.unk_id], [tokenizer.bos_id]],
    }
    files = export_seq2seq_tokenizer(tokenizer, pad_id=pad_id, max_length=max_length)
    is_separate = not run.config.model.share_embeddings and model_type != "marian"
    notes = [f"source and target have their own embeddings, which {architecture.title} has since transformers 5"]
    return Exported(config, tensors, files, notes if is_separate else [], generation)
