"""Export language models as GGUF files, which llama.cpp and programs based on it run: those that are a Llama or a Qwen3.

The rows of queries and keys of a Llama are reordered: in llama.cpp, its rotary positions turn neighboring coordinates, in weft
and Hugging Face those that are half a head apart. Both compute the same scores.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import UsageError
from weft.interop.export_record import ExportCheck, ExportOptions, check_output_dir, write_export_record
from weft.interop.gguf_tokenizer import FIX, OTHER_SPLIT, split_name, tokenizer_problems
from weft.interop.hf_architectures import LANGUAGE_MODELS, language_model_problems, nearest_language_model
from weft.models.config import LanguageModelConfig
from weft.runs.atomic_dir import staged_directory
from weft.runs.config import RunConfig
from weft.runs.run import AnyRun

if TYPE_CHECKING:
    from torch import Tensor

FILE = "model.gguf"
ARCHITECTURES = {name: LANGUAGE_MODELS[name] for name in ("llama", "qwen3")}
NEVER_MERGED = "<unk> <unk>"  # llama.cpp refuses a file without merges; a text never starts with these symbols
QUANTIZATIONS = {"f16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0"}  # file types


def problems(config: RunConfig) -> list[str]:
    """Why llama.cpp cannot run a model."""
    if LanguageModelConfig not in type(config.model).__mro__:
        return [f"arch {config.arch!r} of task {config.task!r} is not a language model of layers"]
    return [*language_model_problems(config.model, ARCHITECTURES), *tokenizer_problems(config)]


def _neighbors(rows: Tensor, num_heads: int) -> Tensor:
    """Rows of queries or keys, (H * E, ...), so that coordinates that are turned together are neighbors."""
    return rows.view(num_heads, 2, -1, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def _layer_tensors(ours: Mapping[str, Tensor], layer: int, table: LanguageModelConfig) -> Iterator[tuple[str, Tensor]]:
    """The weights of a layer by their names in GGUF, with queries and keys as in weft."""
    theirs = f"blk.{layer}."
    attention, ffn = (f"stack.layers.{2 * layer + part}." for part in (0, 1))
    yield f"{theirs}attn_norm.weight", ours[f"{attention}norm.weight"]
    yield f"{theirs}ffn_norm.weight", ours[f"{ffn}norm.weight"]
    parts = {
        f"{attention}mixer.to_qkv": ("attn_q", "attn_k", "attn_v"),
        f"{attention}mixer.to_out": ("attn_output",),
        f"{ffn}mixer.up_proj": ("ffn_gate", "ffn_up"),
        f"{ffn}mixer.to_out": ("ffn_down",),
    }
    for name, names in parts.items():
        for suffix in ("weight",) if table.bias is False else ("weight", "bias"):
            chunks = ours[f"{name}.{suffix}"].chunk(len(names))
            yield from ((f"{theirs}{part}.{suffix}", chunk) for part, chunk in zip(names, chunks, strict=True))


def _tensors(run: AnyRun, arch: str) -> Iterator[tuple[str, Tensor]]:
    """The weights by their names in GGUF."""
    import torch

    from weft.interop.hf_lm_export import language_model_tensors

    table: LanguageModelConfig = run.config.model
    ours = language_model_tensors(run)
    num_heads, head_dim = table.heads_in_layer(0)
    yield "token_embd.weight", ours["embedding.weight"]
    yield "output_norm.weight", ours["stack.final_norm.weight"]
    if not table.tie_embeddings:
        yield "output.weight", ours["head.weight"]
    for layer in range(table.num_layers):
        for name, tensor in _layer_tensors(ours, layer, table):
            is_turned = arch == "llama" and name.split(".")[2] in ("attn_q", "attn_k")
            yield name, _neighbors(tensor, num_heads) if is_turned else tensor
        if table.qk_norm:  # ours has no weights
            yield from ((f"blk.{layer}.attn_{part}_norm.weight", torch.ones(head_dim)) for part in "qk")


def _write_sizes(writer: Any, run: AnyRun) -> None:
    from weft.interop.hf_lm_export import rms_norm_eps, rope_theta

    table: LanguageModelConfig = run.config.model
    num_heads, head_dim = table.heads_in_layer(0)
    writer.add_context_length(run.model.context_length)
    writer.add_embedding_length(table.hidden_size)
    writer.add_block_count(table.num_layers)
    writer.add_feed_forward_length(table.ffn_dim)
    writer.add_head_count(num_heads)
    writer.add_head_count_kv(num_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(rope_theta(table))
    writer.add_layer_norm_rms_eps(rms_norm_eps(table))
    writer.add_vocab_size(run.vocabulary.vocab_size)


def _write_tokenizer(writer: Any, run: AnyRun) -> list[str]:
    """Write tokens and merges. Returns notes."""
    from gguf import TokenType

    from weft.data.bos import read_bos

    tokenizer, parts = run.vocabulary, json.loads(run.vocabulary.data)
    name = split_name(parts)
    if name is None:
        raise UsageError("export", f"tokenizer.json: {OTHER_SPLIT}", FIX)
    tokens = [tokenizer.id_to_token(token_id) for token_id in range(tokenizer.vocab_size)]
    added = {token["content"] for token in parts.get("added_tokens") or []}
    types = [TokenType.USER_DEFINED if token in added else TokenType.NORMAL for token in tokens]
    types[: tokenizer.eos_id + 1] = [TokenType.CONTROL] * (tokenizer.eos_id + 1)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in parts["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(name)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges or [NEVER_MERGED])
    bos_ids = read_bos(run.path, tokenizer)
    writer.add_bos_token_id(bos_ids[0])
    writer.add_eos_token_id(tokenizer.eos_id)
    writer.add_unk_token_id(tokenizer.unk_id)
    writer.add_add_bos_token(len(bos_ids) == 1)
    note = f"texts start with {tokenizer.decode(bos_ids)!r}, which llama.cpp does not add: put it before each prompt"
    return [] if len(bos_ids) == 1 else [note]


def _write(run: AnyRun, arch: str, path: Path, quantization: str | None) -> list[str]:
    """Write the file. Returns notes."""
    import gguf

    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(run.path.name)
    _write_sizes(writer, run)
    notes = _write_tokenizer(writer, run)
    file_type = "ALL_F32" if quantization is None else QUANTIZATIONS[quantization]
    writer.add_file_type(gguf.LlamaFileType[file_type])
    kind = gguf.GGMLQuantizationType["F32" if quantization is None else quantization.upper()]
    block = gguf.GGML_QUANT_SIZES[kind][0]
    for name, tensor in _tensors(run, arch):
        array = tensor.detach().float().contiguous().numpy()
        is_matrix = array.ndim == 2 and array.shape[1] % block == 0
        used = kind if is_matrix else gguf.GGMLQuantizationType.F32  # as llama.cpp's own converter does
        writer.add_tensor(name, gguf.quants.quantize(array, used), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return notes


def _compare(run: AnyRun, path: Path, *, is_exact: bool) -> ExportCheck:
    """The difference between the run and the model that the file describes."""
    from weft.interop.gguf_check import GGUFModel
    from weft.interop.hf_check import compare
    from weft.interop.hf_lm_export import comparison

    of_file = comparison(run)._replace(theirs=lambda model, tokens: model.log_probs(tokens))
    return compare(run, of_file, GGUFModel(path), is_exact=is_exact)


def export(run: AnyRun, output_dir: Path, options: ExportOptions) -> list[str]:
    """Write model.gguf, compare it with the run, and write export.json and the model card. Returns notes."""
    from weft.interop.model_card import write_card

    check_output_dir(output_dir)
    found = nearest_language_model(run.config.model, ARCHITECTURES)
    with staged_directory(output_dir, last=FILE) as staging_dir:
        notes = _write(run, found.model_type, staging_dir / FILE, options.quantization)
        check = _compare(run, staging_dir / FILE, is_exact=options.quantization is None)
        call = f"llama-completion -m {FILE} -p PROMPT --temp 0"
        write_export_record(staging_dir, run=run.path, name="gguf", check=check, call=call, packages=["gguf", "torch"])
        write_card(run, "gguf", staging_dir, options, notes)
    return notes
