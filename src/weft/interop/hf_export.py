"""Export runs for `AutoModel.from_pretrained` of Hugging Face: encoders as BERT, language models as GPT-2."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft import files
from weft.errors import UsageError
from weft.interop import hf_names, hf_tokenizer
from weft.interop.hf_names import BERT, Row, encoder_rows, gpt2_rows, head_rows
from weft.interop.hf_shapes import StackTensors, fold_output_bias, with_all_heads
from weft.models.config import LanguageModelConfig
from weft.models.encoder_config import MaskedLMConfig
from weft.models.ngram import NgramConfig
from weft.nn.attention import SelfAttention
from weft.nn.mixers import MIXERS
from weft.runs.atomic_dir import staged_directory
from weft.runs.run import AnyRun
from weft.tensors import write_tensors

ACTIVATIONS = {"gelu": "gelu", "gelu-tanh": "gelu_new", "relu": "relu"}
ATTENTION = tuple(
    name for name, row in MIXERS.items() if row.factory is SelfAttention
)  # the only layer types of BERT and GPT-2
LAYER_NORM_EPS = 1e-5  # our default


def _require(run: AnyRun, required: Mapping[str, Any]) -> None:
    """Reject a model with an option value that the Hugging Face model does not support."""
    for option, values in required.items():
        value = getattr(run.config.model, option)
        allowed = values if isinstance(values, tuple) else (values,)
        if value not in allowed:
            raise UsageError(
                "export",
                f"Hugging Face has no equivalent of model.{option} = {value!r}",
                f"train with model.{option} = {allowed[0]!r}",
            )


def _common(run: AnyRun) -> Any:
    """The model configuration; an error if its stack has no equivalent."""
    table = run.config.model
    _require(run, {"layer_type": ATTENTION, "position_encoding": "learned", "norm": "layernorm", "qk_norm": (False, None)})
    if not table.ffn_dim:
        raise UsageError(
            "export", "Hugging Face models have a feed-forward sublayer", "train with model.ffn_dim greater than 0"
        )
    _require(run, {"activation": tuple(ACTIVATIONS)})
    return table


def _stack_tensors(run: AnyRun, table: Any, stack: str) -> tuple[StackTensors, list[str]]:
    """The weights of a run with equal numbers of heads in all layers, and notes."""
    tensors, heads, new = with_all_heads(run.model.state_dict(), table, stack=stack)
    eps = LAYER_NORM_EPS if table.norm_eps is None else table.norm_eps
    note = f"{new} of {heads * table.num_layers} heads are pruned and exported as zeros: same outputs, same size"
    return StackTensors(tensors, table.hidden_size, heads, eps), [note] if new else []


def _theirs(rows: Iterable[Row], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for row in rows:
        tensor = ours[row.ours].T if row.transposed else ours[row.ours]
        tensors |= zip(row.theirs, tensor.chunk(len(row.theirs)), strict=True)
    return tensors


def _bert(run: AnyRun) -> tuple[dict[str, Any], dict[str, Tensor], list[str]]:
    _require(run, {"layer_type": ATTENTION, "skip_connection": "residual", "norm_position": "post", "embedding_norm": True})
    table = _common(run)
    stacked, notes = _stack_tensors(run, table, "encoder.stack")
    ours = stacked.tensors
    encoder = _theirs(encoder_rows(BERT, table.num_layers), ours)
    encoder[hf_names.TOKENS] = ours["encoder.embedder.embedding.weight"]
    encoder[hf_names.POSITIONS] = ours["encoder.stack.positions.table.weight"]
    segments = ours.get("encoder.embedder.segments.weight")
    encoder[hf_names.SEGMENTS] = torch.zeros(2, table.hidden_size) if segments is None else segments
    notes.append("the model has no pooler, AutoModel initializes one randomly: use last_hidden_state")
    prefix = BERT.prefix if table.head_transform else ""
    tensors = {f"{prefix}{name}": tensor for name, tensor in encoder.items()}
    if table.head_transform:
        tensors |= _theirs(head_rows(BERT), ours) | {BERT.bias: ours["head.bias"]}
        if not table.tie_embeddings:
            own = BERT.decoder.replace(".weight", ".bias")
            tensors |= {BERT.decoder: ours["head.weight"], own: ours["head.bias"].clone()}
    else:
        notes.append("the MLM head is not exported: the head of BERT has one more layer (model.head_transform = true)")
    config = {
        "architectures": ["BertForMaskedLM" if table.head_transform else "BertModel"],
        "model_type": "bert",
        "vocab_size": run.model.mask_id + 1,
        "hidden_size": table.hidden_size,
        "num_hidden_layers": table.num_layers,
        "num_attention_heads": stacked.heads,
        "intermediate_size": table.ffn_dim,
        "hidden_act": ACTIVATIONS[table.activation],
        "hidden_dropout_prob": table.dropout,
        "attention_probs_dropout_prob": table.attention_dropout,
        "max_position_embeddings": run.model.max_positions,
        "type_vocab_size": 2,
        "layer_norm_eps": stacked.eps,
        "tie_word_embeddings": table.tie_embeddings,
    }
    return config, tensors, notes


def _gpt2(run: AnyRun) -> tuple[dict[str, Any], dict[str, Tensor], list[str]]:
    _require(run, {"layer_type": ATTENTION, "skip_connection": "residual", "norm_position": "pre", "logit_softcap": 0})
    table = _common(run)
    stacked, notes = _stack_tensors(run, table, "stack")
    tied = table.tie_embeddings
    if stacked.tensors["head.bias"].any():
        stacked, tied = fold_output_bias(stacked, table.num_layers), False
        notes.append(
            f"GPT-2 has no output bias: the exported model is {stacked.heads} units wider, "
            f"and a constant unit carries the bias; probabilities are equal"
        )
    ours = stacked.tensors
    tensors = {f"transformer.{name}": tensor for name, tensor in _theirs(gpt2_rows(table.num_layers), ours).items()}
    tensors["transformer.wte.weight"] = ours["embedding.weight"]
    tensors["transformer.wpe.weight"] = ours["stack.positions.table.weight"]
    tensors |= {} if tied else {"lm_head.weight": ours["head.weight"]}
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": len(ours["embedding.weight"]),
        "n_embd": stacked.width,
        "n_layer": table.num_layers,
        "n_head": stacked.heads,
        "n_inner": table.ffn_dim,
        "n_positions": run.config.data.context_length,
        "activation_function": ACTIVATIONS[table.activation],
        "resid_pdrop": table.dropout,
        "embd_pdrop": table.embedding_dropout,
        "attn_pdrop": table.attention_dropout,
        "layer_norm_epsilon": stacked.eps,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": tied,
    }
    return config, tensors, notes


class Form(NamedTuple):
    """How models of one configuration class are exported."""

    build: Callable[[AnyRun], tuple[dict[str, Any], dict[str, Tensor], list[str]]]  # config, tensors, notes
    masks: bool  # whether its tokenizer has a mask token


FORMS: Mapping[type, Form] = {LanguageModelConfig: Form(_gpt2, masks=False), MaskedLMConfig: Form(_bert, masks=True)}


def export_model(run: AnyRun, output_dir: Path) -> list[str]:
    """Write config.json, model.safetensors, tokenizer.json and tokenizer_config.json. Returns notes on differences."""
    form = FORMS.get(type(run.config.model))
    if form is None:
        is_ngram = isinstance(run.config.model, NgramConfig)
        actual = "is an n-gram model" if is_ngram else f"has task {run.config.task!r}"
        raise UsageError("export", f"{run.directory.path} {actual}; only networks of task 'lm' or 'masked-lm' can be exported")
    if (file := files.blocking_file(output_dir)) is not None:
        raise UsageError("export", f"{file} is a file, not a directory", "choose another `output_dir`")
    if output_dir.exists() and any(output_dir.iterdir()):
        raise UsageError("export", f"{output_dir} is not empty", "choose another `output_dir`")
    config, tensors, notes = form.build(run)
    parts, tokenizer_config = hf_tokenizer.export_tokenizer(
        run.vocabulary, masks=form.masks, max_length=run.model.max_positions
    )
    if form.masks:
        config["pad_token_id"] = next(
            token["id"] for token in parts["added_tokens"] if token["content"] == tokenizer_config["pad_token"]
        )
    with staged_directory(output_dir, last="config.json") as staging_dir:
        # tied tensors are stored once
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        write_tensors(staging_dir / "model.safetensors", contiguous, {"format": "pt"})
        files.write_json(staging_dir / "tokenizer.json", parts)
        files.write_json(staging_dir / "tokenizer_config.json", tokenizer_config)
        files.write_json(staging_dir / "config.json", config)
    return notes
