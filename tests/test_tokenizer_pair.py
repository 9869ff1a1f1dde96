"""Tokenizers of source and target: shared or separate, saving, loading and damaged run directories."""

from __future__ import annotations

import pytest

from weft.config import parse_config
from weft.errors import ConfigError, ModelError
from weft.text.tokenizer_pair import TokenizerPairConfig, load_tokenizer_pair, save_tokenizer_pair, train_tokenizer_pair
from weft.text.tokenizers import TokenizerConfig, train_tokenizer

WORDS, PHONES = ["cat", "attic"], ["k æ t", "æ t ɪ k"]


def trained(values: dict):
    return train_tokenizer_pair(
        parse_config(TokenizerPairConfig, values, prefix="tokenizer"), lambda: iter(WORDS), lambda: iter(PHONES)
    )


def vocabulary(tokenizer) -> list[str]:
    return [tokenizer.id_to_token(number) for number in range(3, tokenizer.vocab_size)]


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


SEPARATE = {"source": {"type": "char"}, "target": {"type": "whitespace", "vocab_size": 6}}


def test_joint_tokenizer(tmp_path):
    sides = trained({"type": "bpe", "vocab_size": 300})
    assert sides.is_shared
    assert sides.source.hash == train_tokenizer(TokenizerConfig(type="bpe", vocab_size=300), iter(WORDS + PHONES)).hash
    save_tokenizer_pair(sides, tmp_path)
    assert names(tmp_path) == ["tokenizer.json"]
    assert [side.hash for side in load_tokenizer_pair(tmp_path)] == [side.hash for side in sides]


def test_separate_tokenizers(tmp_path):
    sides = trained(SEPARATE)
    assert not sides.is_shared
    assert vocabulary(sides.source) == list("acit")
    assert vocabulary(sides.target) == ["k", "t", "æ"]
    save_tokenizer_pair(sides, tmp_path)
    assert names(tmp_path) == ["tokenizer.source.json", "tokenizer.target.json"]
    assert [side.hash for side in load_tokenizer_pair(tmp_path)] == [side.hash for side in sides]


def test_one_side_can_be_lowercased():
    values = {"source": {"type": "char", "lowercase": True}, "target": {"type": "char"}}
    sides = train_tokenizer_pair(
        parse_config(TokenizerPairConfig, values, prefix="tokenizer"), lambda: iter(["Ab"]), lambda: iter(["Ab"])
    )
    assert (vocabulary(sides.source), vocabulary(sides.target)) == (["a", "b"], ["A", "b"])


def test_saving_removes_files_of_the_other_form(tmp_path):
    for values in ({"type": "char"}, SEPARATE, {"type": "byte"}):
        sides = trained(values)
        save_tokenizer_pair(sides, tmp_path)
        assert [side.hash for side in load_tokenizer_pair(tmp_path)] == [side.hash for side in sides]


def test_tokenizer_files_of_other_runs(tmp_path):
    save_tokenizer_pair(trained(SEPARATE), tmp_path)
    paths = {side: {"file": str(tmp_path / f"tokenizer.{side}.json")} for side in ("source", "target")}
    assert [side.hash for side in trained(paths)] == [side.hash for side in trained(SEPARATE)]
    # the same file on both sides is one tokenizer
    assert trained({"source": paths["source"], "target": paths["source"]}).is_shared
    assert trained(paths["target"]).is_shared


def test_a_run_without_tokenizers_is_rejected(tmp_path):
    with pytest.raises(ModelError) as caught:
        load_tokenizer_pair(tmp_path)
    assert str(caught.value) == f"{tmp_path / 'tokenizer.source.json'}: cannot read the file: No such file or directory"


MESSAGES = [
    ({"source": {}}, "tokenizer.target: missing; add [tokenizer.target], or use one [tokenizer] for both sides"),
    ({"target": {}}, "tokenizer.source: missing; add [tokenizer.source], or use one [tokenizer] for both sides"),
    (
        {**SEPARATE, "type": "bpe"},
        "tokenizer.type: not used with [tokenizer.source] and [tokenizer.target]; move it into them or remove it",
    ),
    (
        {**SEPARATE, "lowercase": True},
        "tokenizer.lowercase: not used with [tokenizer.source] and [tokenizer.target]; move it into them or remove it",
    ),
    (
        {**SEPARATE, "file": "a.json"},
        "tokenizer.file: not used with [tokenizer.source] and [tokenizer.target]; move it into them or remove it",
    ),
    ({"type": "bpe", "vocab_size": 9}, "tokenizer.vocab_size: must be at least 259 for type 'bpe', got 9"),
    ({"source": {}, "target": {"type": "bep"}}, "tokenizer.target.type: unknown type 'bep'; did you mean 'bpe'?"),
    ({"source": {"vocab_sise": 9}, "target": {}}, "tokenizer.source.vocab_sise: unknown option; did you mean 'vocab_size'?"),
]


@pytest.mark.parametrize(("values", "message"), MESSAGES)
def test_invalid_configs_are_rejected(values, message):
    with pytest.raises(ConfigError) as caught:
        parse_config(TokenizerPairConfig, values, prefix="tokenizer")
    assert str(caught.value) == message
