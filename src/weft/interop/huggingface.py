"""Import BERT, RoBERTa, DistilBERT and GPT-2 from a local Hugging Face directory.

Nothing is downloaded, and no code of the directory is run: weights are read from safetensors, never from a pickle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft import files
from weft.errors import ModelError, unknown_name
from weft.interop import hf_names, hf_tokenizer
from weft.interop.hf_names import ENCODERS, WeightMapping, encoder_mappings, gpt2_mappings, head_mappings
from weft.interop.import_run import ImportedRun, ImportPlan, make_run
from weft.models.lm import language_model
from weft.models.masked_lm import masked_language_model
from weft.runs.config import RunConfig
from weft.tensors import read_external
from weft.text.tokenizers import Tokenizer

MODEL_TYPES = (*ENCODERS, "gpt2")
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "relu": "relu"}
ZERO_PROB_LOGIT = -1e4  # logit of a token that is never predicted: exp gives 0


# ---- reading a directory


class Checkpoint:
    """The tensors of a directory, by name and expected shape."""

    def __init__(self, directory: Path, prefix: str) -> None:
        self.directory = directory
        # older files call the weights of norms gamma and beta
        tensors = {
            name.replace(".gamma", ".weight").replace(".beta", ".bias"): tensor for name, tensor in _tensors(directory).items()
        }
        self.tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor in float32; an error if it is missing, has another shape, or is not usable."""
        if name not in self.tensors:
            raise ModelError(self.directory, f"tensor {name!r} ({_sizes(shape)}) is missing")
        tensor = self.tensors[name]
        if tuple(tensor.shape) != shape:
            raise ModelError(self.directory, f"{name!r} is {_sizes(tensor.shape)}, expected {_sizes(shape)} from config.json")
        if not tensor.is_floating_point():  # quantized weights are integers with a separate scale
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise ModelError(self.directory, f"{name!r} is quantized ({dtype})", "save the model in float32 or bfloat16")
        weights = tensor.float()
        if not weights.isfinite().all():
            raise ModelError(self.directory, f"{name!r} contains NaN or infinite values; the file is corrupted")
        return weights

    def convert(self, mappings: Iterable[WeightMapping], shapes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our tensors by name; `shapes` contains tensors with the expected shapes."""
        return {mapping.ours: self._convert(mapping, tuple(shapes[mapping.ours].shape)) for mapping in mappings}

    def _convert(self, mapping: WeightMapping, shape: tuple[int, ...]) -> Tensor:
        part_shape = (shape[0] // len(mapping.theirs), *shape[1:])
        parts = [self.take(name, part_shape[::-1] if mapping.transposed else part_shape) for name in mapping.theirs]
        return torch.cat([part.T if mapping.transposed else part for part in parts]).contiguous()


def _sizes(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


def _is_file_name(name: Any) -> bool:
    """Whether it is a plain file name: not a path, and printable."""
    return isinstance(name, str) and name != "" and Path(name).name == name and "\0" not in name and name.isprintable()


def _tensors(directory: Path) -> dict[str, Tensor]:
    if (directory / "model.safetensors").is_file():
        return read_external(directory / "model.safetensors")[0]
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        content = files.read_json(index)
        weight_map = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(weight_map, dict) or not all(map(_is_file_name, weight_map.values())):
            raise ModelError(index, "corrupted: weight_map must contain names of files in this directory")
        shards = [read_external(directory / name)[0] for name in sorted(set(weight_map.values()))]
        return {name: tensor for shard in shards for name, tensor in shard.items()}
    if any(directory.glob("pytorch_model*.bin")):
        raise ModelError(
            directory, "pytorch_model.bin is a pickle, which can run code and is not loaded", "convert it to safetensors"
        )
    raise ModelError(directory, "model.safetensors is missing")


class HFConfig:
    """A config.json with typed access to its values."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "config.json"
        values = files.read_json(self.path)
        if not isinstance(values, dict):
            raise ModelError(self.path, "corrupted: not a JSON object")
        self.values: dict[str, Any] = values
        self.model_type = str(values.get("model_type"))
        if self.model_type not in MODEL_TYPES:
            raise ModelError(f"{self.path}: model_type", *unknown_name("architecture", self.model_type, MODEL_TYPES))

    def number(self, name: str, default: float | None = None) -> Any:
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(self.path, f"{name}: expected a number, got {value!r}")
        return value

    def activation(self, name: str, default: str) -> str:
        value = self.values.get(name, default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise ModelError(f"{self.path}: {name}", *unknown_name("activation", str(value), ACTIVATIONS))
        return ACTIVATIONS[value]

    def require(self, name: str, allowed: tuple[Any, ...]) -> None:
        """Reject a value with which the model would compute another function than our layers."""
        value = self.values.get(name, allowed[0])
        if value not in allowed:
            raise ModelError(self.path, f"{name} = {value!r} is not supported, only {allowed[0]!r}")

    def tied(self) -> bool:
        return bool(self.values.get("tie_word_embeddings", True))


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


def _meta_tensors(build: Callable[[], nn.Module]) -> dict[str, Tensor]:
    """Our tensors by name, on the meta device."""
    with torch.device("meta"):
        return build().state_dict()


def _sizes_of(config: HFConfig, model_type: str) -> dict[str, Any]:
    """The sizes of a model by our option names."""
    return {ours: config.number(theirs) for ours, theirs in SIZES[model_type].items()}


def _reorder(table: Tensor, original_ids: list[int | None], source: Path) -> Tensor:
    """An embedding or output bias in the order of our token IDs; zeros for new tokens."""
    max_id = max(token_id or 0 for token_id in original_ids)
    if max_id >= len(table):
        raise ModelError(source, f"its tokenizer has token ID {max_id}, but its embedding has {len(table)} rows")
    reordered = table[torch.tensor([token_id or 0 for token_id in original_ids])]
    reordered[torch.tensor([token_id is None for token_id in original_ids])] = 0.0
    return reordered


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
        shapes = _meta_tensors(
            lambda: masked_language_model(run_config.model, vocab_size=len(original_ids), max_positions=context_length)
        )
        new = checkpoint.convert(encoder_mappings(names, model["num_layers"]), shapes)
        words = _reorder(checkpoint.take(hf_names.TOKENS, (vocab_size, hidden_size)), original_ids, source)
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
            _reorder(checkpoint.take(bias, (vocab_size,)), original_ids, source) if has_head else torch.zeros(len(words))
        )
        if has_head:
            new |= checkpoint.convert(head_mappings(names), shapes)
            if not config.tied():
                new["head.weight"] = _reorder(checkpoint.take(names.decoder, (vocab_size, hidden_size)), original_ids, source)
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
        shapes = _meta_tensors(
            lambda: language_model(run_config.model, vocab_size=len(original_ids), context_length=context_length, vocabulary="")
        )
        words = _reorder(checkpoint.take("wte.weight", shape), original_ids, source)
        new = checkpoint.convert(gpt2_mappings(model["num_layers"]), shapes)
        new |= {"embedding.weight": words, "head.weight": words, "head.bias": torch.zeros(len(words))}
        if not config.tied():
            new["head.weight"] = _reorder(checkpoint.take("lm_head.weight", shape), original_ids, source)
        new["stack.positions.table.weight"] = checkpoint.take("wpe.weight", (num_positions, model["hidden_size"]))
        # <|endoftext|> becomes </s> only; <s> and a missing <unk> are never predicted
        for token_id in (Tokenizer.unk_id, Tokenizer.bos_id):
            if original_ids[token_id] in (None, original_ids[Tokenizer.eos_id]):
                new["head.bias"][token_id] = ZERO_PROB_LOGIT
        return new

    data = {"train": False, "read_as": "windows", "context_length": num_positions}
    return ImportPlan({"task": "lm", "data": data, "model": model}, tensors, [])


def import_model(source: Path, output_dir: Path) -> ImportedRun:
    """Import the model of a Hugging Face directory as a run of task 'masked-lm', or 'lm' for GPT-2."""
    if not source.is_dir():
        raise ModelError(source, "directory not found")
    config = HFConfig(source)
    tokenizer, original_ids = hf_tokenizer.renumber(source, config.model_type)
    plan = (_plan_gpt2 if config.model_type == "gpt2" else _plan_encoder)(config, source, original_ids)
    return make_run(plan, tokenizer, output_dir, source=config.path)
