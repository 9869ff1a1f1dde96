"""Export encoder-decoders as the architecture of Hugging Face that computes the same function: BART, Marian, Pegasus or T5."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from weft.errors import UsageError
from weft.interop import hf_seq2seq_names as names
from weft.interop.hf_architectures import ACTIVATIONS, SIDES, T5_ACTIVATIONS, Architecture
from weft.interop.hf_export_parts import Comparison, Exported, to_hf, with_biases
from weft.interop.hf_seq2seq import FAMILIES, POSITION_OFFSET, feature_order, reorder_features, scale_queries, sinusoidal_table
from weft.interop.hf_seq2seq_names import seq2seq_mappings, sublayers
from weft.interop.hf_tokenizer import PAD_TOKENS, export_seq2seq_tokenizer
from weft.models.seq2seq import embedding_scales
from weft.nn.choices import GATED_ACTIVATIONS
from weft.runs.run import AnyRun
from weft.text.tokenizers import Tokenizer

RMS_NORM_EPS = torch.finfo(torch.float32).eps  # the default of torch


# ---- BART, Marian and Pegasus


def _family(model_type: str, run: AnyRun) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config, max_length = run.config.model, run.config.data.max_length
    hidden_size, family = config.decoder.hidden_size, FAMILIES[model_type]
    tables = dict(zip(SIDES, (config.encoder, config.decoder), strict=True))
    mappings = list(seq2seq_mappings(family.names, {side: table.num_layers for side, table in tables.items()}))
    ours = with_biases(run.model.state_dict(), mappings)
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


CONVERTERS: Mapping[str, Callable[[str, AnyRun], tuple[dict[str, Any], dict[str, Tensor]]]] = {
    "bart": _family, "marian": _marian, "pegasus": _family, "t5": _t5,
}  # fmt: skip


def _pad_id(tokenizer: Tokenizer) -> int:
    """The token that pads batches: any is possible, because the attention mask hides it."""
    tokens = [tokenizer.id_to_token(token_id) for token_id in range(tokenizer.vocab_size)]
    start = tokenizer.start_tokens.target[0]
    default = tokenizer.unk_id if start == tokenizer.eos_id else start
    return next((tokens.index(name) for name in PAD_TOKENS if name in tokens), default)


def _comparison(run: AnyRun) -> Comparison:
    """Log-probabilities of all next target tokens; each row is both a source and a target."""

    def ours(tokens: Tensor) -> Tensor:
        y, _ = run.model(tokens, run.model.encode(tokens, torch.ones_like(tokens, dtype=torch.bool)))
        logits: Tensor = run.model.head.head.logits(y)
        return logits.log_softmax(-1)

    def theirs(model: Any, tokens: Tensor) -> Tensor:
        mask = torch.ones_like(tokens)
        logits: Tensor = model(input_ids=tokens, attention_mask=mask, decoder_input_ids=tokens).logits
        return logits.log_softmax(-1)

    return Comparison(ours, theirs, run.vocabulary.target.vocab_size, run.config.data.max_length)


def export_seq2seq(run: AnyRun, model_type: str, architecture: Architecture) -> Exported:
    """An encoder-decoder as BART, Marian, Pegasus or T5."""
    tokenizer, max_length = run.vocabulary.target, run.config.data.max_length
    values, tensors = CONVERTERS[model_type](model_type, run)
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
    return Exported(config, tensors, files, notes if is_separate else [], _comparison(run), generation)
