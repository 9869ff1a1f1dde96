"""Untrusted tokenizers and model directories: read, or rejected in one line; no panic, bounded memory."""

from __future__ import annotations

import copy
import json
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Theirs
from tokenizers import decoders, models, pre_tokenizers, trainers

from weft.errors import ModelError
from weft.interop.hf_tokenizer import RenumberedTokenizer, renumber
from weft.interop.huggingface import Checkpoint
from weft.text import external_tokenizer as foreign
from weft.text.tokenizers import Tokenizer, from_vocab


def parts_of(model_type: str) -> dict[str, Any]:
    """A small tokenizer.json in the format of BERT or GPT-2."""
    if model_type == "bert":
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##a", "##b", "the"]
        full = Theirs(models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
        full.pre_tokenizer, full.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
        full.add_special_tokens(["[MASK]"])
    else:
        full = Theirs(models.BPE())
        full.pre_tokenizer, full.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=30, special_tokens=["<|endoftext|>"], show_progress=False)
        full.train_from_iterator(["the river by the cat"] * 9, trainer)
    data: dict[str, Any] = json.loads(full.to_str())
    return data


# ---- a small fuzzer

VALUES = [None, True, -1, 1.5, 2**63, 10**30, "", "a", "\ud800", "\0", [], {}, ["a"], {"a": 1}, "[MASK]"]


def key_paths(value: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if prefix:
        yield prefix
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from key_paths(value[key], (*prefix, key))


def changed(value: Any, chance: random.Random) -> Any:
    """A copy with one value changed, removed or renamed."""
    new = copy.deepcopy(value)
    every = list(key_paths(new))
    *path, last = chance.choice([index for index in every if len(index) <= 2] if chance.random() < 0.4 else every)
    inner = new
    for key in path:
        inner = inner[key]
    variant = chance.randrange(4)
    if variant == 0:
        del inner[last]
    elif variant == 1 and isinstance(inner, dict):
        inner[chance.choice(["a", "\ud800", "<s>", "content"])] = inner.pop(last)
    else:
        inner[last] = chance.choice(VALUES)
    return new


@pytest.mark.parametrize("model_type", ["bert", "gpt2"])
def test_a_damaged_tokenizer_is_rejected_in_one_line_or_works(model_type, tmp_path):
    chance, full, refused = random.Random(7), parts_of(model_type), 0
    for _ in range(150):
        mutant = json.dumps(changed(full, chance)).encode()
        if chance.random() < 0.2:
            index = chance.randrange(len(mutant))
            mutant = mutant[:index] + bytes([chance.randrange(256)]) + mutant[index + 1 :]
        (tmp_path / "tokenizer.json").write_bytes(mutant)
        try:
            actual = renumber(tmp_path, model_type)
        except ModelError as error:
            refused += 1
            assert str(error).startswith(str(tmp_path)) and "\n" not in str(error)
        else:
            assert isinstance(actual, RenumberedTokenizer) and len(actual.tokenizer.encode("the cat")) >= 0
    assert 20 < refused < 150


def test_a_vocabulary_that_is_not_valid_text_is_rejected(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(b"[UNK]\n[CLS]\n\xff\n")
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ModelError) as caught:
        renumber(tmp_path, "bert")
    assert str(caught.value) == f"{tmp_path / 'vocab.txt'}: corrupted: invalid UTF-8 at byte 12"
    words = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "the"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    assert renumber(tmp_path, "bert").original_ids == [0, 1, 2, 4, 3]
    (tmp_path / "tokenizer_config.json").write_text('{"strip_accents": "yes"}')
    assert renumber(tmp_path, "bert").original_ids == [0, 1, 2, 4, 3]


# ---- rules that take all the time or the memory


def with_rules(**rules: Any) -> bytes:
    return json.dumps({**json.loads(from_vocab(["a", "b"]).data), **rules}).encode()


def test_a_backtracking_pattern_gives_a_one_line_error(capfd):
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    tokenizer = Tokenizer(with_rules(pre_tokenizer=split), "here")
    for ask in (tokenizer.encode, tokenizer.offsets, lambda text: tokenizer.unknown_parts([text])):
        with pytest.raises(ModelError) as caught:
            ask("a" * 40 + "b")
        message = "tokenizer: cannot encode a text: Onig: Regex search error: retry-limit-in-match over"
        assert str(caught.value) == message
    assert capfd.readouterr() == ("", "")  # the library's own message is suppressed
    assert tokenizer.encode("a").tolist() == [3]


def replace(text: str, by: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": text}, "content": by}


def several(key: str, *rules: Any) -> dict[str, Any]:
    return {"type": "Sequence", key: list(rules)}


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            {"normalizer": several("normalizers", *[replace("a", "a" * 100)] * 4)},
            "normalizer can make a text 100,000,000 times as long; the limit is 64",
        ),
        (
            {"normalizer": {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "b" * 64}},
            "normalizer can make a text 65 times as long; the limit is 64",
        ),
        (
            {"decoder": several("decoders", *[replace("a", "aa")] * 7)},
            "decoder can make a text 128 times as long; the limit is 64",
        ),
        (
            {"normalizer": {"type": "Prepend", "prepend": "b" * 1025}},
            "Prepend rule with 1,025 characters; the limit is 1,024",
        ),
    ],
)
def test_rules_that_expand_a_text_are_rejected(rules, message):
    with pytest.raises(ModelError) as caught:
        Tokenizer(with_rules(**rules), "here")
    assert str(caught.value) == f"here: {message}"


def test_common_rules_are_read():
    """The rules of Llama, ALBERT and T5."""
    spaces = several("normalizers", {"type": "Prepend", "prepend": "▁"}, replace(" ", "▁"))
    quotes = several("normalizers", replace("``", '"'), replace("''", '"'), {"type": "Lowercase"})
    double = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}
    for normalizer in (spaces, quotes, several("normalizers", double, replace(" ", "▁"))):
        assert len(Tokenizer(with_rules(normalizer=normalizer), "here").encode("a  b")) > 0


def test_stderr_is_restored_after_concurrent_use(capfd):
    """Threads may tokenize at the same time."""
    gate = threading.Barrier(4)

    def work() -> None:
        gate.wait()
        for _ in range(200):
            with foreign.wrap_errors("x"):
                pass

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    gate.wait()
    for thread in threads:
        thread.join()
    os.write(2, b"here")
    assert capfd.readouterr().err == "here"


# ---- files that an index names


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "../x", "a/b", "", 3, None, ["a"]])
def test_an_index_that_names_a_file_outside_its_directory_is_rejected(name, tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": name}}))
    with pytest.raises(ModelError) as caught:
        Checkpoint(tmp_path, "")
    assert str(caught.value) == f"{index}: corrupted: weight_map must contain names of files in this directory"


def test_a_huge_tokenizer_file_is_not_read(tmp_path: Path):
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate((128 << 20) + 1)
    with pytest.raises(ModelError) as caught:
        Tokenizer.load(tmp_path / "tokenizer.json")
    assert str(caught.value) == f"{tmp_path / 'tokenizer.json'}: larger than 128 MB; not a tokenizer file"
    with pytest.raises(ModelError) as caught:
        renumber(tmp_path, "bert")
    assert str(caught.value) == f"{tmp_path / 'tokenizer.json'}: file is larger than 128 MB"
    (tmp_path / "tokenizer.json").rename(tmp_path / "vocab.txt")
    with pytest.raises(ModelError) as caught:
        renumber(tmp_path, "bert")
    assert str(caught.value) == f"{tmp_path / 'vocab.txt'}: larger than 128 MB; not a vocabulary"
