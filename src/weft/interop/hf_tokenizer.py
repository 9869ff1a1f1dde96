"""Tokenizers of Hugging Face folders as ours, and back: the same text gives the same tokens, under other numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from weft import files
from weft.errors import ModelError, ResourceError
from weft.text.external_tokenizer import parse_tokenizer, wrap_errors
from weft.text.pipelines import BEGIN, END, SPECIALS, UNK
from weft.text.tokenizers import MAX_BYTES, Tokenizer

GPT2_END = "<|endoftext|>"
DEFAULTS: Mapping[str, Mapping[str, str]] = {
    "bert": {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "distilbert": {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "roberta": {"unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"},
    "gpt2": {"eos": GPT2_END},
}
PADS = ("[PAD]", "<pad>")


class RenumberedTokenizer(NamedTuple):
    tokenizer: Tokenizer
    rows: list[int | None]  # by our number, the number there; None for a token that is new


def special_names(directory: Path, kind: str) -> dict[str, str]:
    """The tokens that stand for something: unk, cls, sep and mask, or eos."""
    given: dict[str, Any] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (directory / name).is_file():
            found = files.read_json(directory / name)
            given |= found if isinstance(found, dict) else {}

    def said(name: str, default: str) -> str:
        value = given.get(f"{name}_token")
        value = value.get("content") if isinstance(value, dict) else value
        return value if isinstance(value, str) else default

    return {name: said(name, default) for name, default in DEFAULTS[kind].items()}


def read_parts(directory: Path, kind: str) -> dict[str, Any]:
    """tokenizer.json, or what it would be: of a vocabulary of word pieces, or of byte pairs and their merges."""
    path = directory / "tokenizer.json"
    if path.is_file():
        found = files.read_json(path, max_bytes=MAX_BYTES)
        if not isinstance(found, dict) or not isinstance(found.get("model"), dict):
            raise ModelError(path, "is no tokenizer: it has no model")
        parse_tokenizer(
            path.read_bytes(), str(path)
        )  # whatever the library refuses has no right numbers, or texts, to be read below
        return found
    given = files.read_json(directory / "tokenizer_config.json") if (directory / "tokenizer_config.json").is_file() else {}
    config = given if isinstance(given, dict) else {}
    if (directory / "vocab.txt").is_file():
        return _word_pieces(directory / "vocab.txt", config, DEFAULTS[kind].get("unk", "[UNK]"))
    if (directory / "vocab.json").is_file() and (directory / "merges.txt").is_file():
        return _byte_pairs(directory, bool(config.get("add_prefix_space", False)))
    raise ModelError(directory, "has no tokenizer.json, nor vocab.txt, nor vocab.json and merges.txt")


def _word_pieces(path: Path, config: Mapping[str, Any], unknown: str) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ModelError(path, f"is larger than {MAX_BYTES >> 20} MB", "no vocabulary is")
        words = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ModelError(path, f"is damaged: byte {error.start} is not UTF-8") from None
    except OSError as error:
        raise ResourceError(path, f"can't be read: {error.strerror}") from None
    accents = config.get("strip_accents")
    with wrap_errors(f"{path}: makes no tokenizer"):
        whole = tokenizers.Tokenizer(models.WordPiece({word: at for at, word in enumerate(words)}, unk_token=unknown))
        whole.normalizer = normalizers.BertNormalizer(
            lowercase=bool(config.get("do_lower_case", True)),
            strip_accents=accents if accents is None else bool(accents),
            handle_chinese_chars=bool(config.get("tokenize_chinese_chars", True)),
        )
    whole.pre_tokenizer, whole.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    found: dict[str, Any] = json.loads(whole.to_str())
    return found


def _byte_pairs(directory: Path, spaced: bool) -> dict[str, Any]:
    with wrap_errors(f"{directory}: its vocab.json and merges.txt can't be read"):
        model = models.BPE.from_file(str(directory / "vocab.json"), str(directory / "merges.txt"))
    whole = tokenizers.Tokenizer(model)
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    whole.decoder = decoders.ByteLevel()
    found: dict[str, Any] = json.loads(whole.to_str())
    return found


def renumber(directory: Path, kind: str) -> RenumberedTokenizer:
    """The tokenizer with <unk>, <s> and </s> as 0, 1, 2; the mask, which is no text, is left out and comes last in `rows`."""
    parts, names = read_parts(directory, kind), special_names(directory, kind)
    model = parts["model"]
    if model.get("type") not in ("WordPiece", "BPE") or not isinstance(model.get("vocab"), dict):
        raise ModelError(directory, f"its tokenizer is of type {model.get('type')!r}", "weft reads WordPiece and BPE")
    added: list[dict[str, Any]] = parts.get("added_tokens") or []
    known: dict[str, int] = {**model["vocab"], **{one["content"]: one["id"] for one in added}}
    for name, token in names.items():
        if token not in known:
            raise ModelError(directory, f"its tokenizer has no token {token!r}, which should be its {name}_token")
    if kind != "gpt2":
        wanted: list[str | None] = [names[name] for name in ("unk", "cls", "sep")]
    elif names["eos"] == END and {UNK, BEGIN} <= set(known):  # one that weft has written
        wanted = [*SPECIALS]
    else:  # GPT-2 has one token for begin and end, and none for what is unknown: bytes never are
        wanted = [None, names["eos"], names["eos"]]
    gone = {*wanted, names.get("mask")}
    others = sorted((token for token in known if token not in gone), key=lambda token: known[token])
    if clash := set(SPECIALS).intersection(others):
        raise ModelError(directory, f"its tokenizer has a token {min(clash)!r} that means something else there")
    kept = [one for one in added if one["content"] in others and not one.get("special")]
    numbers = {token: at for at, token in enumerate([*SPECIALS, *others])}
    loose = {one["content"] for one in kept if one["content"] not in model["vocab"]}
    model["vocab"] = {token: at for token, at in numbers.items() if token not in loose}
    model["unk_token"] = None if model.get("unk_token") is None else UNK
    parts |= {"added_tokens": [{**one, "id": numbers[one["content"]]} for one in kept], "post_processor": None}
    parts |= {"truncation": None, "padding": None}
    rows = [None if token is None else known[token] for token in wanted] + [known[token] for token in others]
    data = json.dumps(parts, ensure_ascii=False).encode()
    return RenumberedTokenizer(
        Tokenizer(data, str(directory / "tokenizer.json")), rows if "mask" not in names else [*rows, known[names["mask"]]]
    )


def special(number: int, content: str) -> dict[str, Any]:
    """An entry of added_tokens."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, **flags, "special": True}


def export_tokenizer(tokenizer: Tokenizer, *, masks: bool, max_length: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json; texts get <s> and </s> around them, where there are gaps to fill."""
    parts = json.loads(tokenizer.data)
    known = [tokenizer.id_to_token(number) for number in range(tokenizer.vocab_size)]
    names = {"unk_token": UNK, "bos_token": BEGIN, "eos_token": END}
    if masks:
        mask = next(name for name in ("[MASK]", "<mask>", "<|mask|>") if name not in known)
        pad = next((name for name in PADS if name in known), UNK)  # under the mask of attention, any will do
        names |= {"cls_token": BEGIN, "sep_token": END, "mask_token": mask, "pad_token": pad}
        marks = {name: {"id": name, "ids": [at], "tokens": [name]} for at, name in enumerate(SPECIALS) if at}
        begin, end = ({"SpecialToken": {"id": name, "type_id": 0}} for name in (BEGIN, END))
        first, second = ({"Sequence": {"id": name, "type_id": at}} for at, name in enumerate("AB"))
        after = {"SpecialToken": {"id": END, "type_id": 1}}
        pair = [begin, first, end, second, after]
        parts["post_processor"] = {
            "type": "TemplateProcessing", "single": pair[:3], "pair": pair, "special_tokens": marks,
        }  # fmt: skip
        known.append(mask)
    specials = [special(known.index(name), name) for name in dict.fromkeys(names.values())]
    loose = [one for one in parts.get("added_tokens") or [] if one["content"] not in names.values()]
    parts["added_tokens"] = sorted([*specials, *loose], key=lambda one: one["id"])
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **names, "clean_up_tokenization_spaces": False}
    return parts, config if max_length is None else {**config, "model_max_length": max_length}
