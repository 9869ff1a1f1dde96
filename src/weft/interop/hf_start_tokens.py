"""The tokenizer of an encoder-decoder of Hugging Face, with the tokens that start its sources and targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft import files
from weft.errors import ModelError
from weft.interop.hf_checkpoint import HFConfig
from weft.interop.hf_tokenizer import (
    PAD_TOKENS,
    RenumberedTokenizer,
    as_tokenizer,
    check_specials,
    read_parts,
    renumber_tokens,
    special_names,
    vocabulary,
)
from weft.text.pipelines import BOS
from weft.text.start_tokens import DEFAULT_START, StartTokens, post_processor

# architectures that start sources with <s>, if the tokenizer does not say it; others start them without a special token
STARTS_WITH_BOS = ("bart",)
# architectures whose decoder starts with </s>, if config.json does not say it; others start with the padding token
DECODER_STARTS_WITH_EOS = ("bart",)


def _processors(processor: Any) -> Iterator[Mapping[str, Any]]:
    """A post-processor, or those in a sequence."""
    if isinstance(processor, Mapping):
        yield processor
        for child in processor.get("processors") or ():
            yield from _processors(child)


def _template(parts: Mapping[str, Any]) -> tuple[list[int], list[int]] | None:
    """The original IDs of the special tokens before and after a text; None if the tokenizer adds none."""
    for processor in _processors(parts.get("post_processor")):
        if processor.get("type") in ("RobertaProcessing", "BertProcessing"):
            return [processor["cls"][1]], [processor["sep"][1]]
        if processor.get("type") == "TemplateProcessing":
            is_text = ["Sequence" in item for item in processor["single"]]
            place = is_text.index(True) if any(is_text) else len(is_text)
            before, after = processor["single"][:place], processor["single"][place + 1 :]
            return _template_ids(processor, before), _template_ids(processor, after)
    return None


def _template_ids(processor: Mapping[str, Any], items: list[Any]) -> list[int]:
    """The IDs of special tokens in a template."""
    names = [item["SpecialToken"]["id"] for item in items if "SpecialToken" in item]
    return [token_id for name in names for token_id in processor["special_tokens"][name]["ids"]]


def _generation_id(config: HFConfig, name: str) -> int | None:
    """A token ID in generation_config.json or config.json; None if it is in neither."""
    path = config.path.with_name("generation_config.json")
    generation = files.read_json(path) if path.is_file() else {}
    for values in (generation if isinstance(generation, dict) else {}, config.values):
        value = values.get(name)
        value = value[0] if isinstance(value, list) and value else value
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise ModelError(config.path, f"{name}: expected a token ID, got {value!r}")
        if value is not None:
            return value
    return None


def renumber_seq2seq(config: HFConfig, directory: Path) -> RenumberedTokenizer:
    """The tokenizer with <unk>, <s> and </s> as 0, 1, 2, and the start tokens of sources and targets.

    <s> is the BOS token of the tokenizer or, if it has none, the token that the decoder reads first: T5 and Marian use the
    padding token for that.
    """
    parts, names = read_parts(directory, config.model_type), special_names(directory, config.model_type)
    vocab = vocabulary(parts, directory)
    check_specials(names, vocab, directory)
    tokens = {token_id: token for token, token_id in vocab.items()}
    eos_id, pad_id = vocab[names["eos"]], next((vocab[name] for name in PAD_TOKENS if name in vocab), None)
    if _generation_id(config, "eos_token_id") not in (None, eos_id):
        raise ModelError(config.path, f"eos_token_id is not the ID of {names['eos']!r} in the tokenizer, {eos_id}")
    template = _template(parts)
    if template is None:
        template = [vocab[BOS]] if config.model_type in STARTS_WITH_BOS and BOS in vocab else [], [eos_id]
    before, after = template
    if after != [eos_id]:
        raise ModelError(directory, f"its tokenizer does not end texts with {names['eos']!r}")
    decoder_start = _generation_id(config, "decoder_start_token_id")
    if decoder_start is None:
        decoder_start = eos_id if config.model_type in DECODER_STARTS_WITH_EOS or pad_id is None else pad_id
    forced = _generation_id(config, "forced_bos_token_id")
    target = [decoder_start, *(before if forced is None else [forced])]
    for token_id in (*before, *target):
        if token_id not in tokens:
            raise ModelError(config.path, f"texts start with token ID {token_id}, which is not in the tokenizer")
    bos = BOS if BOS in vocab else tokens[decoder_start]
    if bos == names["eos"]:
        raise ModelError(directory, f"its tokenizer has no token {BOS!r}, and its decoder starts with {names['eos']!r}")
    ordered = renumber_tokens(parts, vocab, [names["unk"], bos, names["eos"]], removed=set(), directory=directory)
    original_ids = [vocab[token] for token in ordered if token is not None]
    new_ids = {original: token_id for token_id, original in enumerate(original_ids)}
    start = StartTokens(tuple(new_ids[token_id] for token_id in before), tuple(new_ids[token_id] for token_id in target))
    renumbered = vocabulary(parts, directory)
    our_tokens = sorted(renumbered, key=lambda token: renumbered[token])
    parts["post_processor"] = None if start == DEFAULT_START else post_processor(start, our_tokens)
    return RenumberedTokenizer(as_tokenizer(parts, directory), list(original_ids))
