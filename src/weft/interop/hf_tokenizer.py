"""Convert tokenizers of Hugging Face to ours and back. The tokens of a text stay the same; their IDs change."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from weft import files
from weft.errors import ModelError, ResourceError
from weft.text.external_tokenizer import parse_tokenizer, wrap_errors
from weft.text.pipelines import BOS, EOS, SPECIALS, UNK
from weft.text.start_tokens import post_processor
from weft.text.tokenizers import MAX_BYTES, Tokenizer

GPT2_END = "<|endoftext|>"
DEFAULT_SPECIALS: Mapping[str, Mapping[str, str]] = {
    "bert": {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "distilbert": {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "roberta": {"unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"},
    "gpt2": {"eos": GPT2_END},
    **{name: {"unk": UNK, "eos": EOS} for name in ("bart", "t5", "marian", "pegasus")},
}
NO_SEGMENTS = ["input_ids", "attention_mask"]  # inputs of models that do not have token_type_ids
PAD_TOKENS = ("[PAD]", "<pad>")
# SentencePiece files, and how to get a tokenizer.json
SAVE = "write one with AutoTokenizer.from_pretrained and save_pretrained of transformers"
SENTENCEPIECE = {
    "source.spm": (
        "write one with the pieces of source.spm and the IDs of vocab.json, as a Unigram model of the package tokenizers"
    ),
    **dict.fromkeys(("spiece.model", "sentencepiece.bpe.model", "tokenizer.model"), SAVE),
}


class RenumberedTokenizer(NamedTuple):
    tokenizer: Tokenizer
    original_ids: list[int | None]  # by our token ID; None for a new token


def declared_specials(directory: Path) -> dict[str, str]:
    """The special tokens that tokenizer_config.json and special_tokens_map.json name, by role: unk, bos, eos, cls, ..."""
    config: dict[str, Any] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (directory / name).is_file():
            content = files.read_json(directory / name)
            config |= content if isinstance(content, dict) else {}
    values = {name: value.get("content") if isinstance(value, dict) else value for name, value in config.items()}
    roles = {name.removesuffix("_token"): value for name, value in values.items() if name.endswith("_token")}
    return {role: value for role, value in roles.items() if isinstance(value, str)}


def special_names(directory: Path, model_type: str) -> dict[str, str]:
    """The special tokens by role: unk, cls, sep and mask, or eos."""
    declared = declared_specials(directory)
    return {name: declared.get(name, default) for name, default in DEFAULT_SPECIALS[model_type].items()}


def read_parts(directory: Path, model_type: str) -> dict[str, Any]:
    """The content of tokenizer.json, or its equivalent from a WordPiece vocabulary or from BPE vocabulary and merges."""
    path = directory / "tokenizer.json"
    if path.is_file():
        parts = files.read_json(path, max_bytes=MAX_BYTES)
        if not isinstance(parts, dict) or not isinstance(parts.get("model"), dict):
            raise ModelError(path, "not a tokenizer: model is missing")
        parse_tokenizer(path.read_bytes(), str(path))  # validates IDs and strings that are used below
        return parts
    content = files.read_json(directory / "tokenizer_config.json") if (directory / "tokenizer_config.json").is_file() else {}
    config = content if isinstance(content, dict) else {}
    if (directory / "vocab.txt").is_file():
        return _wordpiece(directory / "vocab.txt", config, DEFAULT_SPECIALS.get(model_type, {}).get("unk", "[UNK]"))
    if (directory / "vocab.json").is_file() and (directory / "merges.txt").is_file():
        return _bpe(directory, bool(config.get("add_prefix_space", False)))
    if spm := next((name for name in SENTENCEPIECE if (directory / name).is_file()), None):
        problem = f"{spm} is a SentencePiece file, which is not read, and there is no tokenizer.json"
        raise ModelError(directory, problem, SENTENCEPIECE[spm])
    raise ModelError(directory, "no tokenizer.json, no vocab.txt, and no vocab.json with merges.txt")


def _wordpiece(path: Path, config: Mapping[str, Any], unknown: str) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ModelError(path, f"larger than {MAX_BYTES >> 20} MB; not a vocabulary")
        words = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise ModelError(path, f"corrupted: invalid UTF-8 at byte {error.start}") from None
    except OSError as error:
        raise ResourceError(path, f"cannot read the file: {error.strerror}") from None
    strip_accents = config.get("strip_accents")
    with wrap_errors(f"{path}: not a valid vocabulary"):
        tokenizer = tokenizers.Tokenizer(
            models.WordPiece({word: token_id for token_id, word in enumerate(words)}, unk_token=unknown)
        )
        tokenizer.normalizer = normalizers.BertNormalizer(
            lowercase=bool(config.get("do_lower_case", True)),
            strip_accents=strip_accents if strip_accents is None else bool(strip_accents),
            handle_chinese_chars=bool(config.get("tokenize_chinese_chars", True)),
        )
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    parts: dict[str, Any] = json.loads(tokenizer.to_str())
    return parts


def _bpe(directory: Path, add_prefix_space: bool) -> dict[str, Any]:
    with wrap_errors(f"{directory}: cannot read vocab.json and merges.txt"):
        model = models.BPE.from_file(str(directory / "vocab.json"), str(directory / "merges.txt"))
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    parts: dict[str, Any] = json.loads(tokenizer.to_str())
    return parts


def vocabulary(parts: Mapping[str, Any], directory: Path) -> dict[str, int]:
    """The token IDs of a tokenizer.json."""
    model, tokens = parts["model"], parts["model"].get("vocab")
    if model.get("type") == "Unigram" and isinstance(tokens, list):
        tokens = {piece: token_id for token_id, (piece, _) in enumerate(tokens)}
    elif model.get("type") not in ("WordPiece", "BPE") or not isinstance(tokens, dict):
        raise ModelError(directory, f"tokenizer type {model.get('type')!r} is not supported, only WordPiece, BPE and Unigram")
    return {**tokens, **{token["content"]: token["id"] for token in parts.get("added_tokens") or []}}


def check_specials(names: Mapping[str, str], vocab: Mapping[str, int], directory: Path) -> None:
    """Refuse a tokenizer without one of its special tokens."""
    for name, token in names.items():
        if token not in vocab:
            raise ModelError(directory, f"the {name}_token {token!r} is not in the vocabulary of the tokenizer")


def renumber(directory: Path, model_type: str) -> RenumberedTokenizer:
    """The tokenizer with <unk>, <s> and </s> as 0, 1, 2. The mask token is not in the tokenizer; its ID is the last of
    `original_ids`."""
    parts, names = read_parts(directory, model_type), special_names(directory, model_type)
    vocab = vocabulary(parts, directory)
    check_specials(names, vocab, directory)
    if model_type != "gpt2":
        specials: list[str | None] = [names[name] for name in ("unk", "cls", "sep")]
    elif names["eos"] == EOS and {UNK, BOS} <= set(vocab):  # exported by weft
        specials = [*SPECIALS]
    else:  # GPT-2 has one token for BOS and EOS and no unknown token, because it is byte-level
        specials = [None, names["eos"], names["eos"]]
    tokens = renumber_tokens(parts, vocab, specials, removed={names.get("mask")}, directory=directory)
    parts["post_processor"] = None
    original_ids = [None if token is None else vocab[token] for token in tokens]
    if "mask" in names:
        original_ids.append(vocab[names["mask"]])
    return RenumberedTokenizer(as_tokenizer(parts, directory), original_ids)


def renumber_tokens(
    parts: dict[str, Any],
    vocab: Mapping[str, int],
    specials: Sequence[str | None],
    *,
    removed: set[str | None],
    directory: Path,
) -> list[str | None]:
    """Make <unk>, <s> and </s>, which are called `specials` in the tokenizer, the first tokens of `parts`, and leave out
    those that are `removed`. Returns the original tokens by new ID."""
    model, added = parts["model"], parts.get("added_tokens") or []
    ordinary = sorted((token for token in vocab if token not in {*specials, *removed}), key=lambda token: vocab[token])
    if clash := set(SPECIALS).intersection(ordinary):
        raise ModelError(directory, f"the tokenizer uses {min(clash)!r} as an ordinary token")
    added = [token for token in added if token["content"] in set(ordinary) and not token.get("special")]
    is_unigram = model["type"] == "Unigram"
    scores: dict[str, float] = dict(model["vocab"]) if is_unigram else {}
    in_model = scores if is_unigram else model["vocab"]
    added_only = {token["content"] for token in added if token["content"] not in in_model}
    if is_unigram:  # the ID of a token is its place in the list
        ordinary.sort(key=lambda token: token in added_only)
    token_ids = {token: token_id for token_id, token in enumerate([*SPECIALS, *ordinary])}
    tokens = [token for token in token_ids if token not in added_only]
    if is_unigram:
        originals = dict(zip(SPECIALS, specials, strict=True))
        lowest = min(scores.values(), default=0.0)
        model["vocab"] = [[token, scores.get(originals.get(token, token) or token, lowest)] for token in tokens]
        model["unk_id"] = None if model.get("unk_id") is None else SPECIALS.index(UNK)
        parts["pre_tokenizer"] = _splitting_specials(parts.get("pre_tokenizer"))
    else:
        model["vocab"] = {token: token_ids[token] for token in tokens}
        model["unk_token"] = None if model.get("unk_token") is None else UNK
    parts |= {"added_tokens": [{**token, "id": token_ids[token["content"]]} for token in added]}
    parts |= {"truncation": None, "padding": None}
    return [*specials, *ordinary]


def _splitting_specials(pre_tokenizer: Any) -> dict[str, Any]:
    """A pre-tokenizer that splits <unk>, <s> and </s> in a text: a unigram model would take them for the special tokens."""
    split = {"type": "Split", "pattern": {"Regex": "<(?=(?:/?s|unk)>)"}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, *([] if pre_tokenizer is None else [pre_tokenizer])]}


def as_tokenizer(parts: Mapping[str, Any], directory: Path) -> Tokenizer:
    """Our tokenizer with the content of a tokenizer.json."""
    return Tokenizer(json.dumps(parts, ensure_ascii=False).encode(), str(directory / "tokenizer.json"))


def _special_token(token_id: int, content: str) -> dict[str, Any]:
    """An entry of added_tokens for a special token."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, **flags, "special": True}


def export_encoder_tokenizer(
    tokenizer: Tokenizer, *, has_mask: bool, max_length: int | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json of an encoder. The tokenizer adds <s> and </s> around texts; with `has_mask`, it
    has one more token, the mask."""
    parts = json.loads(tokenizer.data)
    tokens = [tokenizer.id_to_token(token_id) for token_id in range(tokenizer.vocab_size)]
    pad = next((name for name in PAD_TOKENS if name in tokens), UNK)  # any token is possible: the attention mask hides it
    names = {"unk_token": UNK, "bos_token": BOS, "eos_token": EOS, "cls_token": BOS, "sep_token": EOS, "pad_token": pad}
    template_tokens = {
        name: {"id": name, "ids": [token_id], "tokens": [name]} for token_id, name in enumerate(SPECIALS) if token_id
    }
    begin, end = ({"SpecialToken": {"id": name, "type_id": 0}} for name in (BOS, EOS))
    first, second = ({"Sequence": {"id": name, "type_id": type_id}} for type_id, name in enumerate("AB"))
    second_end = {"SpecialToken": {"id": EOS, "type_id": 1}}
    pair = [begin, first, end, second, second_end]
    parts["post_processor"] = {
        "type": "TemplateProcessing", "single": pair[:3], "pair": pair, "special_tokens": template_tokens,
    }  # fmt: skip
    if has_mask:
        tokens.append(next(name for name in ("[MASK]", "<mask>", "<|mask|>") if name not in tokens))
        names["mask_token"] = tokens[-1]
    parts, config = _with_specials(parts, tokens, names, max_length)
    return parts, {**config, "model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}


def export_lm_tokenizer(
    tokenizer: Tokenizer, bos_ids: Sequence[int], *, max_length: int | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json of a language model. The tokenizer adds the tokens that precede a text."""
    parts = json.loads(tokenizer.data)
    tokens = [tokenizer.id_to_token(token_id) for token_id in range(tokenizer.vocab_size)]
    begin = {"SpecialToken": {"id": BOS, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": type_id}} for type_id, name in enumerate("AB"))
    parts["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [begin, first],
        "pair": [begin, first, second],
        "special_tokens": {BOS: {"id": BOS, "ids": list(bos_ids), "tokens": [tokens[token_id] for token_id in bos_ids]}},
    }
    names = {"unk_token": UNK, "bos_token": BOS, "eos_token": EOS, "pad_token": UNK}  # the attention mask hides padding
    parts, config = _with_specials(parts, tokens, names, max_length)
    return parts, {**config, "padding_side": "left", "model_input_names": NO_SEGMENTS}


def export_seq2seq_tokenizer(
    tokenizer: Tokenizer, *, pad_id: int, max_length: int | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json of an encoder-decoder. The tokenizer adds start tokens and </s> to sources."""
    parts = json.loads(tokenizer.data)
    tokens = [tokenizer.id_to_token(token_id) for token_id in range(tokenizer.vocab_size)]
    parts["post_processor"] = post_processor(tokenizer.start_tokens, tokens)
    names = {"unk_token": UNK, "bos_token": BOS, "eos_token": EOS, "pad_token": tokens[pad_id]}
    parts, config = _with_specials(parts, tokens, names, max_length)
    return parts, {**config, "model_input_names": NO_SEGMENTS}


def _with_specials(
    parts: dict[str, Any], tokens: list[str], names: Mapping[str, str], max_length: int | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json with special tokens by their names in Hugging Face."""
    specials = [_special_token(tokens.index(name), name) for name in dict.fromkeys(names.values())]
    ordinary = [token for token in parts.get("added_tokens") or [] if token["content"] not in names.values()]
    parts["added_tokens"] = sorted([*specials, *ordinary], key=lambda token: token["id"])
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **names, "clean_up_tokenization_spaces": False}
    return parts, config if max_length is None else {**config, "model_max_length": max_length}
