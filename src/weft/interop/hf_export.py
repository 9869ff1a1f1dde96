"""A run as a Hugging Face folder that `AutoModel.from_pretrained` loads: encoders as BERT, language models as GPT-2."""

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
ATTENTION = tuple(name for name, row in MIXERS.items() if row.make is SelfAttention)  # what all layers there are made of
LAYER_EPS = 1e-5  # of our layer norms, unless the table says otherwise


def _need(run: AnyRun, wanted: Mapping[str, Any]) -> None:
    """Refuse a model with a part that has no form there, by the name of its option."""
    for option, values in wanted.items():
        found = getattr(run.config.model, option)
        allowed = values if isinstance(values, tuple) else (values,)
        if found not in allowed:
            raise UsageError(
                "export", f"model.{option} is {found!r}, which Hugging Face's model has not", f"it has {allowed[0]!r}"
            )


def _common(run: AnyRun) -> Any:
    """The table, if its stack is one of attention as it is there."""
    table = run.config.model
    _need(run, {"layer_type": ATTENTION, "position_encoding": "learned", "norm": "layernorm", "qk_norm": (False, None)})
    if not isinstance(table.ffn_dim, int):
        raise UsageError("export", f"model.ffn_dim is {table.ffn_dim!r}", "there it is a number")
    _need(run, {"activation": tuple(ACTIVATIONS)})
    return table


def _stacked(run: AnyRun, table: Any, stack: str) -> tuple[StackTensors, list[str]]:
    """The weights of a run, its heads as they are there, and what is to be said of them."""
    tensors, heads, new = with_all_heads(run.model.state_dict(), table, stack=stack)
    eps = LAYER_EPS if table.norm_eps is None else table.norm_eps
    lost = (
        f"{new} of {heads * table.num_layers} heads, which it has lost, are there as zeros: it says the same, and is no smaller"
    )
    return StackTensors(tensors, table.hidden_size, heads, eps), [lost] if new else []


def _theirs(rows: Iterable[Row], ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for row in rows:
        tensor = ours[row.ours].T if row.transposed else ours[row.ours]
        found |= zip(row.theirs, tensor.chunk(len(row.theirs)), strict=True)
    return found


def _bert(run: AnyRun) -> tuple[dict[str, Any], dict[str, Tensor], list[str]]:
    _need(run, {"layer_type": ATTENTION, "skip_connection": "post-norm", "embedding_norm": True})
    table = _common(run)
    stacked, notes = _stacked(run, table, "encoder.stack")
    ours = stacked.tensors
    encoder = _theirs(encoder_rows(BERT, table.num_layers), ours)
    encoder[hf_names.WORDS] = ours["encoder.embedder.embedding.weight"]
    encoder[hf_names.PLACES] = ours["encoder.stack.positions.table.weight"]
    kinds = ours.get("encoder.embedder.segments.weight")
    encoder[hf_names.KINDS] = torch.zeros(2, table.hidden_size) if kinds is None else kinds
    notes.append("it has no pooler, which AutoModel makes up: use last_hidden_state")
    prefix = BERT.prefix if table.head_transform else ""
    tensors = {f"{prefix}{name}": one for name, one in encoder.items()}
    if table.head_transform:
        tensors |= _theirs(head_rows(BERT), ours) | {BERT.bias: ours["head.bias"]}
        if not table.tie_embeddings:
            own = BERT.decoder.replace(".weight", ".bias")
            tensors |= {BERT.decoder: ours["head.weight"], own: ours["head.bias"].clone()}
    else:
        notes.append("its head of words is left out, for BERT's has a layer more (model.head_transform = true)")
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
    _need(run, {"layer_type": ATTENTION, "skip_connection": "residual", "logit_softcap": "none"})
    table = _common(run)
    stacked, notes = _stacked(run, table, "stack")
    tied = table.tie_embeddings
    if stacked.tensors["head.bias"].any():
        stacked, tied = fold_output_bias(stacked, table.num_layers), False
        notes.append(
            f"its output has a bias for each token, which GPT-2's has not: it is {stacked.heads} wider there, "
            f"and a column of ones carries it; probabilities are equal"
        )
    ours = stacked.tensors
    tensors = {f"transformer.{name}": one for name, one in _theirs(gpt2_rows(table.num_layers), ours).items()}
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
    """What models of one table are there."""

    build: Callable[[AnyRun], tuple[dict[str, Any], dict[str, Tensor], list[str]]]  # config, tensors, what is not as it was
    masks: bool  # whether its tokenizer has a mask


FORMS: Mapping[type, Form] = {LanguageModelConfig: Form(_gpt2, masks=False), MaskedLMConfig: Form(_bert, masks=True)}


def export_model(run: AnyRun, output_dir: Path) -> list[str]:
    """Write config.json, model.safetensors, tokenizer.json and tokenizer_config.json; what is not as it was, in words."""
    form = FORMS.get(type(run.config.model))
    if form is None:
        counted = isinstance(run.config.model, NgramConfig)
        what = "an n-gram model" if counted else f"a run of task {run.config.task!r}"
        raise UsageError("export", f"{run.directory.path} is {what}", "only networks of 'lm' and 'masked-lm' have a form there")
    if (file := files.blocking_file(output_dir)) is not None:
        raise UsageError("export", f"{file} is a file, not a folder", "choose another --output-dir")
    if output_dir.exists() and any(output_dir.iterdir()):
        raise UsageError("export", f"{output_dir} is not empty", "choose another --output-dir")
    config, tensors, notes = form.build(run)
    parts, about = hf_tokenizer.export_tokenizer(run.vocabulary, masks=form.masks, max_length=run.model.max_positions)
    if form.masks:
        config["pad_token_id"] = next(one["id"] for one in parts["added_tokens"] if one["content"] == about["pad_token"])
    with staged_directory(output_dir, last="config.json") as place:
        # tied tensors are there once
        write_tensors(place / "model.safetensors", {name: one.contiguous() for name, one in tensors.items()}, {"format": "pt"})
        files.write_json(place / "tokenizer.json", parts)
        files.write_json(place / "tokenizer_config.json", about)
        files.write_json(place / "config.json", config)
    return notes
