"""Import BERT, RoBERTa, DistilBERT and GPT-2 from a local Hugging Face directory. Llama and its family are in `hf_llama`,
encoder-decoders in `hf_seq2seq`.

Nothing is downloaded, and no code of the directory is run: weights are read from safetensors, never from a pickle.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.errors import ModelError
from weft.interop import hf_names, hf_tokenizer
from weft.interop.hf_checkpoint import Checkpoint, HFConfig, meta_tensors, output_bias, reorder
from weft.interop.hf_llama import LLAMA_FAMILY, plan_llama, renumber_llama
from weft.interop.hf_names import ENCODERS, encoder_mappings, gpt2_mappings, head_mappings
from weft.interop.hf_seq2seq import PLANS, plan_seq2seq
from weft.interop.hf_start_tokens import renumber_seq2seq
from weft.interop.import_run import ImportedRun, ImportPlan, make_run
from weft.models.lm import language_model
from weft.models.masked_lm import masked_language_model
from weft.runs.config import RunConfig

MODEL_TYPES = (*ENCODERS, "gpt2", *LLAMA_FAMILY, *PLANS)


SIZES: Mapping[str, Mapping[str, str]] = {  # our option to their name
    "bert": {
        "hidden_size": "hidden_size", "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads",
        "ffn_dim": "intermediate_size", "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob", "norm_eps": "layer_norm_eps",
    },
    "distilbert": {
        "hidden_size": "dim", "num_layers": "n_layers", "num_heads": "n_heads", "ffn_dim": "hidden_dim", "dropout": "dropout",
        "attention_dropout": "attention_dropout",
    },
    "gpt2": {
        "hidden_size": "n_embd", "num_layers": "n_layer", "num_heads": "n_head", "dropout": "resid_pdrop",
        "embedding_dropout": "embd_pdrop", "attention_dropout": "attn_pdrop", "norm_eps": "layer_norm_epsilon",
    },
}  # fmt: skip


def _sizes_of(config: HFConfig, model_type: str) -> dict[str, Any]:
    """The sizes of a model by our option names."""
    return {ours: config.number(theirs) for ours, theirs in SIZES[model_type].items()}


def _plan_encoder(config: HFConfig, source: Path, original_ids: list[int | None]) -> ImportPlan:
    """The plan to import a BERT, RoBERTa or DistilBERT."""
    names = ENCODERS[config.model_type]
    vocab_size, num_positions = config.number("vocab_size"), config.number("max_position_embeddings")
    config.require("position_embedding_type", ("absolute",))
    config.require("is_decoder", (False,))
    if config.model_type == "roberta":
        config.require("hidden_act", ("gelu",))  # its head always uses GELU
    is_distilbert = config.model_type == "distilbert"
    model = {"arch": "bert", "norm_eps": 1e-12, **_sizes_of(config, "distilbert" if is_distilbert else "bert")}
    model["activation"] = config.activation("activation" if is_distilbert else "hidden_act", "gelu")
    num_segments = config.number("type_vocab_size", 2) if names.has_segments else 0
    checkpoint = Checkpoint(source, names.prefix)
    has_head = names.bias in checkpoint
    # an untied output layer has its own bias
    decoder_bias = names.decoder.replace(".weight", ".bias")
    bias = decoder_bias if not config.tied() and decoder_bias in checkpoint else names.bias
    model |= {
        "segment_embeddings": num_segments > 1,
        "head_transform": has_head,
        "tie_embeddings": config.tied() or not has_head,
    }
    notes = [] if has_head else ["the model has no MLM head; mask prediction will be poor, embeddings and fine-tuning work"]
    if "pooler.dense.weight" in checkpoint:
        notes.append("the pooler is not imported: pooling is an option of the task")

    def tensors(run_config: RunConfig) -> dict[str, Tensor]:
        hidden_size, context_length = model["hidden_size"], run_config.data.context_length
        shapes = meta_tensors(
            lambda: masked_language_model(run_config.model, vocab_size=len(original_ids), max_positions=context_length)
        )
        new = checkpoint.convert(encoder_mappings(names, model["num_layers"]), shapes)
        words = reorder(checkpoint.take(hf_names.TOKENS, (vocab_size, hidden_size)), original_ids, source)
        positions = checkpoint.take(hf_names.POSITIONS, (num_positions, hidden_size))[names.position_offset :].clone()
        if num_segments:  # a single text is a first text: its segment vector can be added to the positions
            segment_vectors = checkpoint.take(hf_names.SEGMENTS, (num_segments, hidden_size))
            positions += segment_vectors[0]
            if num_segments > 1:
                new["encoder.embedder.segments.weight"] = segment_vectors[:2] - segment_vectors[0]
        new |= {
            "encoder.embedder.embedding.weight": words,
            "encoder.stack.positions.table.weight": positions,
            "head.weight": words,
        }
        new["head.bias"] = (
            reorder(checkpoint.take(bias, (vocab_size,)), original_ids, source) if has_head else torch.zeros(len(words))
        )
        if has_head:
            new |= checkpoint.convert(head_mappings(names), shapes)
            if not config.tied():
                new["head.weight"] = reorder(checkpoint.take(names.decoder, (vocab_size, hidden_size)), original_ids, source)
        return new

    data = {"train": False, "read_as": "lines", "context_length": num_positions - names.position_offset}
    return ImportPlan({"task": "masked-lm", "data": data, "model": model}, tensors, notes)


def _plan_gpt2(config: HFConfig, source: Path, original_ids: list[int | None]) -> ImportPlan:
    """The plan to import a GPT-2."""
    for name, default in (
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("add_cross_attention", False),
    ):
        config.require(name, (default,))
    vocab_size, num_positions = config.number("vocab_size"), config.number("n_positions")
    ffn_dim = config.values.get("n_inner") or 4 * config.number("n_embd")
    model = {"arch": "transformer", **_sizes_of(config, "gpt2"), "ffn_dim": ffn_dim, "tie_embeddings": config.tied()}
    model["activation"] = config.activation("activation_function", "gelu_new")
    checkpoint = Checkpoint(source, "transformer.")

    def tensors(run_config: RunConfig) -> dict[str, Tensor]:
        shape, context_length = (vocab_size, model["hidden_size"]), run_config.data.context_length
        shapes = meta_tensors(
            lambda: language_model(run_config.model, vocab_size=len(original_ids), context_length=context_length, vocabulary="")
        )
        words = reorder(checkpoint.take("wte.weight", shape), original_ids, source)
        new = checkpoint.convert(gpt2_mappings(model["num_layers"]), shapes)
        new |= {"embedding.weight": words, "head.weight": words, "head.bias": output_bias(original_ids)}
        if not config.tied():
            new["head.weight"] = reorder(checkpoint.take("lm_head.weight", shape), original_ids, source)
        new["stack.positions.table.weight"] = checkpoint.take("wpe.weight", (num_positions, model["hidden_size"]))
        return new

    data = {"train": False, "read_as": "windows", "context_length": num_positions}
    return ImportPlan({"task": "lm", "data": data, "model": model}, tensors, [])


def import_model(source: Path, output_dir: Path) -> ImportedRun:
    """Import the model of a Hugging Face directory as a run of task 'masked-lm', 'lm' for GPT-2 and Llama, 'seq2seq'
    for encoder-decoders."""
    if not source.is_dir():
        raise ModelError(source, "directory not found")
    config = HFConfig(source, MODEL_TYPES)
    if config.model_type in PLANS:
        tokenizer, original_ids = renumber_seq2seq(config, source)
        return make_run(plan_seq2seq(config, source, original_ids), tokenizer, output_dir, source=config.path)
    if config.model_type in LLAMA_FAMILY:
        tokenizer, original_ids = renumber_llama(config, source)
        return make_run(plan_llama(config, source, original_ids), tokenizer, output_dir, source=config.path)
    tokenizer, original_ids = hf_tokenizer.renumber(source, config.model_type)
    plan = (_plan_gpt2 if config.model_type == "gpt2" else _plan_encoder)(config, source, original_ids)
    return make_run(plan, tokenizer, output_dir, source=config.path)
