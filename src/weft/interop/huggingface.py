"""Hugging Face folders: a BERT, RoBERTa, DistilBERT or GPT-2 as a run, and a run as a folder that `AutoModel` loads.

Nothing is fetched, and no code of a folder is run: weights are safetensors, never a pickle.
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
from weft.interop.hf_names import ENCODERS, Row, encoder_rows, gpt2_rows, head_rows
from weft.interop.import_run import ImportedRun, ImportPlan, make_run
from weft.models.lm import language_model
from weft.models.masked_lm import masked_language_model
from weft.runs.config import RunConfig
from weft.tensors import read_foreign
from weft.text.tokenizers import Tokenizer

KINDS = (*ENCODERS, "gpt2")
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "relu": "relu"}
NEVER = -1e4  # the score of a token that is never said: e to the power of it is 0


# ---- reading a folder


class Checkpoint:
    """The tensors of a folder; each is asked for by name and shape."""

    def __init__(self, directory: Path, prefix: str) -> None:
        self.where = directory
        # older files name the weights of norms by their letters in the paper
        read = {name.replace(".gamma", ".weight").replace(".beta", ".bias"): one for name, one in _tensors(directory).items()}
        self.tensors = {name.removeprefix(prefix): one for name, one in read.items()}

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in self.tensors:
            raise ModelError(self.where, f"has no tensor {name!r}, of {_sizes(shape)} numbers by its config.json")
        found = self.tensors[name]
        if tuple(found.shape) != shape:
            raise ModelError(self.where, f"{name!r} is {_sizes(found.shape)}, but {_sizes(shape)} by its config.json")
        if not found.is_floating_point():  # whole numbers are no weights, but parts of them, with a scale elsewhere
            kind = str(found.dtype).removeprefix("torch.")
            raise ModelError(self.where, f"{name!r} holds {kind}, so it is quantised", "save it in float32 or bfloat16 first")
        weights = found.float()
        if not weights.isfinite().all():  # one such number, and all that it says is NaN
            raise ModelError(self.where, f"{name!r} holds NaN or infinite numbers, so it is damaged", "get or save it again")
        return weights

    def rows(self, rows: Iterable[Row], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our tensors, in the shapes of `wanted`."""
        return {row.ours: self._row(row, tuple(wanted[row.ours].shape)) for row in rows}

    def _row(self, row: Row, shape: tuple[int, ...]) -> Tensor:
        each = (shape[0] // len(row.theirs), *shape[1:])
        parts = [self.take(name, each[::-1] if row.transposed else each) for name in row.theirs]
        return torch.cat([part.T if row.transposed else part for part in parts]).contiguous()


def _sizes(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape))


def _is_file_name(name: Any) -> bool:
    """Whether it names a file of a folder: no path, and nothing that no name may hold."""
    return isinstance(name, str) and name != "" and Path(name).name == name and "\0" not in name and name.isprintable()


def _tensors(directory: Path) -> dict[str, Tensor]:
    if (directory / "model.safetensors").is_file():
        return read_foreign(directory / "model.safetensors")[0]
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        found = files.read_json(index)
        places = found.get("weight_map") if isinstance(found, dict) else None
        if not isinstance(places, dict) or not all(map(_is_file_name, places.values())):
            raise ModelError(index, "is damaged: its weight_map names no files of this folder")
        return {name: one for part in sorted(set(places.values())) for name, one in read_foreign(directory / part)[0].items()}
    if any(directory.glob("pytorch_model*.bin")):
        raise ModelError(
            directory, "has its weights in pytorch_model.bin, a pickle, which could run code", "save it as safetensors first"
        )
    raise ModelError(directory, "has no model.safetensors")


class HFConfig:
    """config.json, each number asked for by name."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "config.json"
        found = files.read_json(self.path)
        if not isinstance(found, dict):
            raise ModelError(self.path, "is damaged: it holds no table")
        self.values: dict[str, Any] = found
        self.kind = str(found.get("model_type"))
        if self.kind not in KINDS:
            raise ModelError(f"{self.path}: model_type", *unknown_name("architecture", self.kind, KINDS))

    def number(self, name: str, default: float | None = None) -> Any:
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(self.path, f"{name} is {value!r}", "a number was expected")
        return value

    def activation(self, name: str, default: str) -> str:
        value = self.values.get(name, default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise ModelError(f"{self.path}: {name}", *unknown_name("activation", str(value), ACTIVATIONS))
        return ACTIVATIONS[value]

    def refuse(self, name: str, allowed: tuple[Any, ...]) -> None:
        """Refuse what would compute something else than our layers do."""
        value = self.values.get(name, allowed[0])
        if value not in allowed:
            raise ModelError(self.path, f"{name} is {value!r}, which weft has not", f"only {allowed[0]!r} can be imported")

    def tied(self) -> bool:
        return bool(self.values.get("tie_word_embeddings", True))


SIZES: Mapping[str, Mapping[str, str]] = {  # by option of ours, the name there
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


def import_model(source: Path, output_dir: Path) -> ImportedRun:
    """The model of a Hugging Face folder as a run: of task 'masked-lm', or 'lm' where it is a GPT-2."""
    if not source.is_dir():
        raise ModelError(source, "no such folder")
    config = HFConfig(source)
    tokenizer, rows = hf_tokenizer.renumber(source, config.kind)
    plan = _gpt2(config, source, rows) if config.kind == "gpt2" else _encoder(config, source, rows)
    return make_run(plan, tokenizer, output_dir, where=config.path)


def _shapes(build: Callable[[], nn.Module]) -> dict[str, Tensor]:
    """Our tensors by name, without their numbers."""
    with torch.device("meta"):
        return build().state_dict()


def _table(config: HFConfig, kind: str) -> dict[str, Any]:
    """The sizes of a model, by our names."""
    return {ours: config.number(theirs) for ours, theirs in SIZES[kind].items()}


def _words(table: Tensor, rows: list[int | None], where: Path) -> Tensor:
    """An embedding in our order; a token that is new there has zeros."""
    if max(row or 0 for row in rows) >= len(table):
        raise ModelError(
            where, f"its tokenizer has tokens up to {max(row or 0 for row in rows)}, its embedding {len(table)} rows"
        )
    found = table[torch.tensor([row or 0 for row in rows])]
    found[torch.tensor([row is None for row in rows])] = 0.0
    return found


def _encoder(config: HFConfig, source: Path, rows: list[int | None]) -> ImportPlan:
    """A BERT, RoBERTa or DistilBERT."""
    names, vocabulary, places = ENCODERS[config.kind], config.number("vocab_size"), config.number("max_position_embeddings")
    config.refuse("position_embedding_type", ("absolute",))
    config.refuse("is_decoder", (False,))
    if config.kind == "roberta":
        config.refuse("hidden_act", ("gelu",))  # its head has that one, whatever its layers have
    distilled = config.kind == "distilbert"
    model = {"arch": "bert", "norm_eps": 1e-12, **_table(config, "distilbert" if distilled else "bert")}
    model["activation"] = config.activation("activation" if distilled else "hidden_act", "gelu")
    segments, found = config.number("type_vocab_size", 2) if names.segments else 0, Checkpoint(source, names.prefix)
    headed = names.bias in found
    # an output of its own has a bias of its own
    own = names.decoder.replace(".weight", ".bias")
    bias = own if not config.tied() and own in found else names.bias
    model |= {"segment_embeddings": segments > 1, "head_transform": headed, "tie_embeddings": config.tied() or not headed}
    notes = [] if headed else ["it has no head of words: gaps can't be filled well, vectors and fine-tuning are as there"]
    if "pooler.dense.weight" in found:
        notes.append("its pooler is left out: weft pools as it is told")

    def tensors(settings: RunConfig) -> dict[str, Tensor]:
        width, window = model["hidden_size"], settings.data.context_length
        wanted = _shapes(lambda: masked_language_model(settings.model, vocab_size=len(rows), max_positions=window))
        new = found.rows(encoder_rows(names, model["num_layers"]), wanted)
        words = _words(found.take(hf_names.WORDS, (vocabulary, width)), rows, source)
        place = found.take(hf_names.PLACES, (places, width))[names.offset :].clone()
        if segments:  # a text alone is a first text: what is added to all of it can as well stand with the positions
            kinds = found.take(hf_names.KINDS, (segments, width))
            place += kinds[0]
            if segments > 1:
                new["encoder.embedder.segments.weight"] = kinds[:2] - kinds[0]
        new |= {"encoder.embedder.embedding.weight": words, "encoder.stack.positions.table.weight": place, "head.weight": words}
        new["head.bias"] = _words(found.take(bias, (vocabulary,)), rows, source) if headed else torch.zeros(len(words))
        if headed:
            new |= found.rows(head_rows(names), wanted)
            if not config.tied():
                new["head.weight"] = _words(found.take(names.decoder, (vocabulary, width)), rows, source)
        return new

    data = {"train": False, "read_as": "lines", "context_length": places - names.offset}
    return ImportPlan({"task": "masked-lm", "data": data, "model": model}, tensors, notes)


def _gpt2(config: HFConfig, source: Path, rows: list[int | None]) -> ImportPlan:
    for name, usual in (
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("add_cross_attention", False),
    ):
        config.refuse(name, (usual,))
    vocabulary, places = config.number("vocab_size"), config.number("n_positions")
    hidden = config.values.get("n_inner") or 4 * config.number("n_embd")
    model = {"arch": "transformer", **_table(config, "gpt2"), "ffn_dim": hidden, "tie_embeddings": config.tied()}
    model["activation"] = config.activation("activation_function", "gelu_new")
    found = Checkpoint(source, "transformer.")

    def tensors(settings: RunConfig) -> dict[str, Tensor]:
        shape, window = (vocabulary, model["hidden_size"]), settings.data.context_length
        wanted = _shapes(lambda: language_model(settings.model, vocab_size=len(rows), context_length=window, vocabulary=""))
        words = _words(found.take("wte.weight", shape), rows, source)
        new = found.rows(gpt2_rows(model["num_layers"]), wanted)
        new |= {"embedding.weight": words, "head.weight": words, "head.bias": torch.zeros(len(words))}
        if not config.tied():
            new["head.weight"] = _words(found.take("lm_head.weight", shape), rows, source)
        new["stack.positions.table.weight"] = found.take("wpe.weight", (places, model["hidden_size"]))
        # what ends a text there is </s> here, and only that
        new["head.bias"][[at for at in (Tokenizer.unk_id, Tokenizer.bos_id) if rows[at] in (None, rows[Tokenizer.eos_id])]] = (
            NEVER
        )
        return new

    data = {"train": False, "read_as": "windows", "context_length": places}
    return ImportPlan({"task": "lm", "data": data, "model": model}, tensors, [])
