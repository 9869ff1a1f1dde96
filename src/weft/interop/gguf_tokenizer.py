"""Tokenizers of GGUF files. llama.cpp knows the splits of BPE tokenizers by name only: a tokenizer with another split would
give other tokens there, so it is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.runs.config import RunConfig

# regular expressions of pre-tokenizers, by the names of llama.cpp
LLAMA_3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {LLAMA_3: "llama-bpe", LLAMA_3.replace("{1,3}", ""): "qwen2"}
GPT2 = "gpt-2"
OTHER_SPLIT = "llama.cpp would split a text into other tokens"
FIX = "use tokenizer.type = 'byte', or tokenizer.file with a byte-level BPE that splits like GPT-2, Llama 3 or Qwen2"


def split_name(parts: Mapping[str, Any]) -> str | None:
    """The name of the split of a tokenizer.json in llama.cpp; None if it has none."""
    model, pre_tokenizer = parts["model"], parts.get("pre_tokenizer") or {}
    if model["type"] != "BPE" or parts.get("normalizer") is not None or model.get("byte_fallback"):
        return None
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    *splits, last = steps
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    if not model["merges"]:  # every byte is a token, however the text is split
        return GPT2
    if not splits:
        return GPT2 if last.get("use_regex", True) and not model.get("ignore_merges") else None
    pattern = splits[0].get("pattern", {}).get("Regex") if len(splits) == 1 and not last.get("use_regex", True) else None
    name = None if pattern is None else SPLITS.get(pattern)
    # llama.cpp looks whole words up in the vocabulary before it merges, for this split only
    return name if bool(model.get("ignore_merges")) == (name == "llama-bpe") else None


def tokenizer_problems(config: RunConfig) -> list[str]:
    """Why llama.cpp has no equivalent of the tokenizer. A file that is not there is judged when the run is exported."""
    table = config.tokenizer
    if table.file is None:
        if table.type == "byte" and not table.lowercase:
            return []
        option = f"tokenizer.type = {table.type!r}" if table.type != "byte" else "tokenizer.lowercase = true"
        return [f"{option}: {OTHER_SPLIT}; {FIX}"]
    path = Path(table.file)
    if not path.is_file() or split_name(json.loads(path.read_bytes())) is not None:
        return []
    return [f"tokenizer.file = {path.name!r}: {OTHER_SPLIT}; {FIX}"]
