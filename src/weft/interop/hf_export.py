"""Export runs for `AutoModel.from_pretrained` of Hugging Face: encoders as BERT, language models as GPT-2. Encoder-decoders are
in `hf_seq2seq_export`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from weft import files
from weft.errors import UsageError
from weft.interop import hf_names, hf_tokenizer
from weft.interop.hf_export_parts import ACTIVATIONS, ATTENTION, LAYER_NORM_EPS, Exported, check_no_experts, to_hf
from weft.interop.hf_names import BERT, encoder_mappings, gpt2_mappings, head_mappings
from weft.interop.hf_seq2seq_export import export_seq2seq
from weft.interop.hf_shapes import StackTensors, fold_output_bias, pad_heads
from weft.models.config import LanguageModelConfig
from weft.models.encoder_config import MaskedLMConfig
from weft.models.ngram import NgramConfig
from weft.models.seq2seq_config import Seq2SeqConfig
from weft.runs.atomic_dir import staged_directory
from weft.runs.run import AnyRun
from weft.tensors import write_tensors


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


def _check_stack(run: AnyRun) -> Any:
    """The model configuration; an error if Hugging Face has no equivalent of its stack."""
    table = run.config.model
    _require(run, {"layer_type": ATTENTION, "position_encoding": "learned", "norm": "layernorm", "qk_norm": (False, None)})
    _require(run, {"bias": (True, None), "conv_kernel": (None,)})
    check_no_experts(table)
    if not table.ffn_dim:
        raise UsageError(
            "export", "Hugging Face models have a feed-forward sublayer", "train with model.ffn_dim greater than 0"
        )
    _require(run, {"activation": tuple(ACTIVATIONS)})
    return table


def _stack_tensors(run: AnyRun, table: Any, stack: str) -> tuple[StackTensors, list[str]]:
    """The weights of a run with equal numbers of heads in all layers, and notes."""
    tensors, num_heads, num_new = pad_heads(run.model.state_dict(), table, stack=stack)
    norm_eps = LAYER_NORM_EPS if table.norm_eps is None else table.norm_eps
    note = f"{num_new} of {num_heads * table.num_layers} heads are pruned and exported as zeros: same outputs, same size"
    return StackTensors(tensors, table.hidden_size, num_heads, norm_eps), [note] if num_new else []


def _bert(run: AnyRun) -> Exported:
    _require(run, {"layer_type": ATTENTION, "skip_connection": "residual", "norm_position": "post", "embedding_norm": True})
    table = _check_stack(run)
    stacked, notes = _stack_tensors(run, table, "encoder.stack")
    ours = stacked.tensors
    encoder = to_hf(encoder_mappings(BERT, table.num_layers), ours)
    encoder[hf_names.TOKENS] = ours["encoder.embedder.embedding.weight"]
    encoder[hf_names.POSITIONS] = ours["encoder.stack.positions.table.weight"]
    segments = ours.get("encoder.embedder.segments.weight")
    encoder[hf_names.SEGMENTS] = torch.zeros(2, table.hidden_size) if segments is None else segments
    notes.append("the model has no pooler, AutoModel initializes one randomly: use last_hidden_state")
    prefix = BERT.prefix if table.head_transform else ""
    tensors = {f"{prefix}{name}": tensor for name, tensor in encoder.items()}
    if table.head_transform:
        tensors |= to_hf(head_mappings(BERT), ours) | {BERT.bias: ours["head.bias"]}
        if not table.tie_embeddings:
            decoder_bias = BERT.decoder.replace(".weight", ".bias")
            tensors |= {BERT.decoder: ours["head.weight"], decoder_bias: ours["head.bias"].clone()}
    else:
        notes.append("the MLM head is not exported: the head of BERT has one more layer (model.head_transform = true)")
    config = {
        "architectures": ["BertForMaskedLM" if table.head_transform else "BertModel"],
        "model_type": "bert",
        "vocab_size": run.model.mask_id + 1,
        "hidden_size": table.hidden_size,
        "num_hidden_layers": table.num_layers,
        "num_attention_heads": stacked.num_heads,
        "intermediate_size": table.ffn_dim,
        "hidden_act": ACTIVATIONS[table.activation],
        "hidden_dropout_prob": table.dropout,
        "attention_probs_dropout_prob": table.attention_dropout,
        "max_position_embeddings": run.model.max_positions,
        "type_vocab_size": 2,
        "layer_norm_eps": stacked.norm_eps,
        "tie_word_embeddings": table.tie_embeddings,
    }
    tokenizer_json, tokenizer_config = hf_tokenizer.export_tokenizer(
        run.vocabulary, has_mask=True, max_length=run.model.max_positions
    )
    config["pad_token_id"] = next(
        token["id"] for token in tokenizer_json["added_tokens"] if token["content"] == tokenizer_config["pad_token"]
    )
    return Exported(config, tensors, (tokenizer_json, tokenizer_config), notes)


def _gpt2(run: AnyRun) -> Exported:
    _require(run, {"layer_type": ATTENTION, "skip_connection": "residual", "norm_position": "pre", "logit_softcap": 0})
    table = _check_stack(run)
    stacked, notes = _stack_tensors(run, table, "stack")
    tied = table.tie_embeddings
    if stacked.tensors["head.bias"].any():
        stacked, tied = fold_output_bias(stacked, table.num_layers), False
        notes.append(
            f"GPT-2 has no output bias: the exported model is {stacked.num_heads} units wider, "
            f"and a constant unit carries the bias; probabilities are equal"
        )
    ours = stacked.tensors
    tensors = {f"transformer.{name}": tensor for name, tensor in to_hf(gpt2_mappings(table.num_layers), ours).items()}
    tensors["transformer.wte.weight"] = ours["embedding.weight"]
    tensors["transformer.wpe.weight"] = ours["stack.positions.table.weight"]
    tensors |= {} if tied else {"lm_head.weight": ours["head.weight"]}
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": len(ours["embedding.weight"]),
        "n_embd": stacked.hidden_size,
        "n_layer": table.num_layers,
        "n_head": stacked.num_heads,
        "n_inner": table.ffn_dim,
        "n_positions": run.config.data.context_length,
        "activation_function": ACTIVATIONS[table.activation],
        "resid_pdrop": table.dropout,
        "embd_pdrop": table.embedding_dropout,
        "attn_pdrop": table.attention_dropout,
        "layer_norm_epsilon": stacked.norm_eps,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": tied,
    }
    tokenizer = hf_tokenizer.export_tokenizer(run.vocabulary, has_mask=False, max_length=run.model.max_positions)
    return Exported(config, tensors, tokenizer, notes)


EXPORTERS: Mapping[type, Callable[[AnyRun], Exported]] = {
    LanguageModelConfig: _gpt2,
    MaskedLMConfig: _bert,
    Seq2SeqConfig: export_seq2seq,
}


def export_model(run: AnyRun, output_dir: Path) -> list[str]:
    """Write config.json, model.safetensors, tokenizer.json and tokenizer_config.json, and generation_config.json of an
    encoder-decoder. Returns notes on differences."""
    export = EXPORTERS.get(type(run.config.model))
    if export is None:
        is_ngram = isinstance(run.config.model, NgramConfig)
        actual = "is an n-gram model" if is_ngram else f"has task {run.config.task!r}"
        problem = f"{run.directory.path} {actual}; only networks of task 'lm', 'masked-lm' or 'seq2seq' can be exported"
        raise UsageError("export", problem)
    if (file := files.blocking_file(output_dir)) is not None:
        raise UsageError("export", f"{file} is a file, not a directory", "choose another `output_dir`")
    if output_dir.exists() and any(output_dir.iterdir()):
        raise UsageError("export", f"{output_dir} is not empty", "choose another `output_dir`")
    exported = export(run)
    with staged_directory(output_dir, last="config.json") as staging_dir:
        # tied tensors are stored once
        contiguous = {name: tensor.contiguous() for name, tensor in exported.tensors.items()}
        write_tensors(staging_dir / "model.safetensors", contiguous, {"format": "pt"})
        for name, content in zip(("tokenizer.json", "tokenizer_config.json"), exported.tokenizer, strict=True):
            files.write_json(staging_dir / name, content)
        if exported.generation is not None:
            files.write_json(staging_dir / "generation_config.json", exported.generation)
        files.write_json(staging_dir / "config.json", exported.config)
    return exported.notes
