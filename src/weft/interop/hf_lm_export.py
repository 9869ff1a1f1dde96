"""Export language models: as GPT-2, or, with rotary positions and RMSNorm, as Llama, Qwen3, Apertus or Arcee."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from weft.data.bos import read_bos
from weft.interop.hf_architectures import ACTIVATIONS, LAYER_NORM_EPS, LM_ACTIVATIONS, Architecture
from weft.interop.hf_export_parts import Comparison, Exported, to_hf, with_biases
from weft.interop.hf_names import WeightMapping, gpt2_mappings
from weft.interop.hf_shapes import StackTensors, fold_output_bias, pad_heads
from weft.interop.hf_tokenizer import export_lm_tokenizer
from weft.models.config import LanguageModelConfig
from weft.nn.choices import GATED_ACTIVATIONS, ROPE_THETA
from weft.nn.lora import merge_adapters
from weft.runs.run import AnyRun

RMS_NORM_EPS = torch.finfo(torch.float32).eps  # the default of torch
NORMS = {"apertus": ("attention_layernorm", "feedforward_layernorm")}  # of other models: as in Llama
LLAMA_NORMS = ("input_layernorm", "post_attention_layernorm")


def comparison(run: AnyRun) -> Comparison:
    """Log-probabilities of all next tokens."""

    def ours(tokens: Tensor) -> Tensor:
        log_probs: Tensor = run.model.head(run.model(tokens)[0])
        return log_probs

    def theirs(model: Any, tokens: Tensor) -> Tensor:
        logits: Tensor = model(input_ids=tokens).logits
        return logits.log_softmax(-1)

    return Comparison(ours, theirs, run.vocabulary.vocab_size, run.model.context_length)


def _generation(run: AnyRun) -> dict[str, Any]:
    """generation_config.json: which tokens weft never generates, and whether </s> ends a text."""
    decode = run.spec.decode
    suppressed = [] if decode is None else decode.suppressed_tokens(run)
    eos_id = None if decode is None else decode.eos_id(run)
    tokenizer = run.vocabulary
    return {
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": eos_id,
        "pad_token_id": tokenizer.unk_id,
        "suppress_tokens": suppressed or None,
    }


def language_model_tensors(run: AnyRun) -> dict[str, Tensor]:
    """The weights by our names, with adapters merged into them."""
    tensors = merge_adapters(run.model.state_dict())
    return tensors if "head.bias" in tensors else {**tensors, "head.bias": run.model.head.bias}


# ---- GPT-2


def export_gpt2(run: AnyRun) -> Exported:
    table: LanguageModelConfig = run.config.model
    mappings = list(gpt2_mappings(table.num_layers))
    biased = with_biases(language_model_tensors(run), mappings)
    ours, num_heads, num_new = pad_heads(biased, table, stack="stack")
    notes = [f"{num_new} of {num_heads * table.num_layers} heads are pruned and exported as zeros: same outputs, same size"]
    notes = notes if num_new else []
    norm_eps = LAYER_NORM_EPS if table.norm_eps is None else table.norm_eps
    stacked, tied = StackTensors(ours, table.hidden_size, num_heads, norm_eps), table.tie_embeddings
    if ours["head.bias"].any():
        stacked, tied = fold_output_bias(stacked, table.num_layers), False
        notes.append(
            f"GPT-2 has no output bias: the exported model is {stacked.num_heads} units wider, "
            f"and a constant unit carries the bias; probabilities are equal"
        )
    ours = stacked.tensors
    tensors = {f"transformer.{name}": tensor for name, tensor in to_hf(mappings, ours).items()}
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
        "n_positions": run.model.context_length,
        "activation_function": ACTIVATIONS[table.activation or "gelu"],
        "resid_pdrop": table.dropout,
        "embd_pdrop": table.embedding_dropout,
        "attn_pdrop": table.attention_dropout,
        "layer_norm_epsilon": stacked.norm_eps,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": tied,
    }
    return _exported(run, config, tensors, notes)


def _exported(run: AnyRun, config: dict[str, Any], tensors: dict[str, Tensor], notes: list[str]) -> Exported:
    bos_ids = read_bos(run.path, run.vocabulary)
    tokenizer = export_lm_tokenizer(run.vocabulary, bos_ids, max_length=run.model.context_length)
    return Exported(config, tensors, tokenizer, notes, comparison(run), _generation(run))


# ---- Llama and its relatives


def rotary_mappings(model_type: str, table: LanguageModelConfig) -> Iterator[WeightMapping]:
    """The weights of a Llama, Qwen3, Apertus or Arcee."""
    attention_norm, ffn_norm = NORMS.get(model_type, LLAMA_NORMS)
    up_proj = ("gate_proj", "up_proj") if table.activation in GATED_ACTIVATIONS else ("up_proj",)
    suffixes = ("weight",) if table.bias is False else ("weight", "bias")
    for layer in range(table.num_layers):
        theirs = f"model.layers.{layer}."
        attention, ffn = (f"stack.layers.{2 * layer + part}" for part in (0, 1))
        yield WeightMapping(f"{attention}.norm.weight", (f"{theirs}{attention_norm}.weight",))
        yield WeightMapping(f"{ffn}.norm.weight", (f"{theirs}{ffn_norm}.weight",))
        parts = {
            f"{attention}.mixer.to_qkv": tuple(f"self_attn.{name}_proj" for name in "qkv"),
            f"{attention}.mixer.to_out": ("self_attn.o_proj",),
            f"{ffn}.mixer.up_proj": tuple(f"mlp.{name}" for name in up_proj),
            f"{ffn}.mixer.to_out": ("mlp.down_proj",),
        }
        for ours, names in parts.items():
            for suffix in suffixes:
                yield WeightMapping(f"{ours}.{suffix}", tuple(f"{theirs}{name}.{suffix}" for name in names))
    yield WeightMapping("stack.final_norm.weight", ("model.norm.weight",))
    yield WeightMapping("embedding.weight", ("model.embed_tokens.weight",))


def rope_theta(table: LanguageModelConfig) -> float:
    return ROPE_THETA if table.rope_theta is None else table.rope_theta


def rms_norm_eps(table: LanguageModelConfig) -> float:
    return RMS_NORM_EPS if table.norm_eps is None else table.norm_eps


def export_rotary(run: AnyRun, model_type: str, architecture: Architecture) -> Exported:
    table: LanguageModelConfig = run.config.model
    ours = language_model_tensors(run)
    tensors = to_hf(rotary_mappings(model_type, table), ours)
    num_heads, head_dim = table.heads_in_layer(0)
    if table.qk_norm:  # ours has no weights
        names = [f"model.layers.{layer}.self_attn.{part}_norm.weight" for layer in range(table.num_layers) for part in "qk"]
        tensors |= {name: torch.ones(head_dim) for name in names}
    tensors |= {} if table.tie_embeddings else {"lm_head.weight": ours["head.weight"]}
    has_bias, theta = table.bias is not False, rope_theta(table)
    config = {
        "architectures": [architecture.class_name],
        "model_type": model_type,
        "vocab_size": run.vocabulary.vocab_size,
        "hidden_size": table.hidden_size,
        "num_hidden_layers": table.num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_heads,
        "head_dim": head_dim,
        "intermediate_size": table.ffn_dim,
        "hidden_act": {"swiglu": "silu", **LM_ACTIVATIONS}[table.activation or "gelu"],
        "attention_bias": has_bias,
        "mlp_bias": has_bias,
        "attention_dropout": table.attention_dropout,
        "max_position_embeddings": run.model.context_length,
        "rms_norm_eps": rms_norm_eps(table),
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "rope_theta": theta,
        "bos_token_id": run.vocabulary.bos_id,
        "eos_token_id": run.vocabulary.eos_id,
        "tie_word_embeddings": table.tie_embeddings,
    }
    return _exported(run, config, tensors, [])
