"""`weft check` on labeled texts and tagged sentences: problems with labels are reported with their position."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from label_runs import (
    classification_run_file,
    single_label_rows,
    tagged_sentences,
    tagging_run_file,
    text_pair_rows,
    write_conll,
    write_tsv,
)

from weft.cli.main import main
from weft.data.check_labels import list_counts
from weft.tasks.tagging.data import has_invalid_tags

pytestmark = pytest.mark.usefixtures("restore_openmp_env")


@pytest.fixture
def check(tmp_path, capsys):
    def report(values: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        (tmp_path / "run.toml").write_text(tomli_w.dumps(values))
        code = main(["check", str(tmp_path / "run.toml"), "--json", "--quiet"])
        return code, json.loads(capsys.readouterr().out)

    return report


def told(found: dict[str, Any], *names: str) -> list[tuple[str, ...]]:
    """The findings of these names: severity, split, what, and the lines."""
    return [
        (one["severity"], one["name"], one["split"], one["message"], *(place.rsplit(":", 1)[1] for place in one["locations"]))
        for one in found["findings"]
        if one["name"] in names
    ]


LABELS = ("single_label", "unseen_label", "conflicting_labels", "rare_label", "invalid_tags")


def tags_of(folder: Path, kind: str = "lstm", *settings: str, **splits: Any) -> dict[str, Any]:
    files = {name: write_conll(folder / f"{name}.txt", sentences) for name, sentences in splits.items()}
    values = tagging_run_file(files["train"], kind, *settings)
    values["data"] = {name: str(path) for name, path in files.items()} | {
        name: value for name, value in values["data"].items() if name not in ("train", "valid", "test")
    }
    return values


def test_clean_tags_only_report_oov_words(check, tmp_path):
    code, found = check(tags_of(tmp_path, train=tagged_sentences(), valid=tagged_sentences(20, seed=1)))
    assert code == 0 and told(found, *LABELS, "too_long") == []
    (unknown,) = (one for one in found["findings"] if one["name"] == "unknown_tokens" and one["split"] == "valid")
    assert (unknown["severity"], unknown["fix"]) == ("note", "none needed: [model.char_encoder] reads their characters")
    code, found = check(
        tags_of(tmp_path, "lstm", "model.char_encoder=false", train=tagged_sentences(), valid=tagged_sentences(20, seed=1))
    )
    assert {one["severity"] for one in found["findings"] if one["name"] == "unknown_tokens"} == {"warning"}


def test_a_sentence_that_training_refuses_is_an_error(check, tmp_path):
    fits, long = [("ab", "X")] * 9, [("ab", "Y")] * 10
    splits = {"train": [fits, long, long + fits], "valid": [fits]}
    settings = ("tokenizer.type=bpe", "tokenizer.vocab_size=259", "data.max_length=20")
    values = tags_of(tmp_path, "lstm", *settings, **splits)
    code, found = check(values)
    assert code == 3
    # two bytes a word, and <s> and </s>; in a text a blank would stand before the second word, and be a token
    assert told(found, "too_long") == [
        (
            "error", "too_long", "train",
            "2 of 3 sentences (66.7%) have more tokens than data.max_length (20), up to 40, and are an error", "11", "22",
        ),
    ]  # fmt: skip
    (one,) = (one for one in found["findings"] if one["name"] == "too_long")
    assert one["fix"] == "increase data.max_length or split them with blank lines"
    assert check({**values, "data": {**values["data"], "max_length": 40}})[0] == 0


def test_tags_missing_from_training(check, tmp_path):
    valid = [[("a", "DET"), ("b", "ADJ"), ("c", "ADJ")], [("d", "X")], [("e", "SYM")]]
    train = [[("a", "DET"), ("b", "NOUN"), ("c", "NOUN")], [("a", "DET"), ("x", "X")], [("b", "X")]]
    _, found = check(tags_of(tmp_path, train=train, valid=valid))
    assert told(found, *LABELS) == [
        ("warning", "unseen_label", "valid", "2 tags are not in train: 'ADJ' (2), 'SYM' (1)", "1", "7"),
    ]
    _, found = check(tags_of(tmp_path, train=train, valid=valid[:2]))
    assert told(found, *LABELS)[0][3] == "1 tag is not in train: 'ADJ' (2)"


def test_uninformative_tags(check, tmp_path):
    _, found = check(tags_of(tmp_path, train=[[("a", "O"), ("b", "O")], [("c", "O")]]))
    assert told(found, *LABELS) == [("warning", "single_label", "train", "there is only one tag: 'O' (3)")]
    _, found = check(tags_of(tmp_path, train=[[("a", "O"), ("b", "O")], [("c", "Q")], [("d", "R")]]))
    assert told(found, *LABELS) == [
        ("note", "rare_label", "train", "2 of 3 tags (66.7%) occur once: 'Q' (1), 'R' (1)", "4", "6"),
    ]


def test_one_sentence_with_two_sets_of_tags(check, tmp_path):
    train = [[("a", "X"), ("b", "Y")], [("b", "Y")], [("a", "Y"), ("b", "X")], [("a", "X"), ("b", "Y")], [("c", "X")]]
    _, found = check(tags_of(tmp_path, train=train))
    assert told(found, *LABELS) == [
        ("warning", "conflicting_labels", "train", "3 of 5 sentences (60%) also occur with other tags", "1", "6", "9"),
    ]


def test_invalid_bio_spans(check, tmp_path):
    good = [("mr", "O"), ("a", "B-PER"), ("b", "I-PER")]
    train = [good, [("c", "O"), ("d", "I-PER")], good[:2], [("e", "B-ORG"), ("f", "I-PER"), ("g", "B-ORG")]]
    _, found = check(tags_of(tmp_path, train=train))
    what = "2 of 4 sentences (50%) have tags that are invalid in their scheme"
    assert told(found, "invalid_tags") == [("warning", "invalid_tags", "train", what, "5", "11")]
    assert has_invalid_tags([("NOUN", "VERB")]).tolist() == [False]
    assert has_invalid_tags([]).tolist() == []


def test_labels_of_texts(check, tmp_path):
    rows = [*single_label_rows(60), ("tool", "the same"), ("animal", "the same"), ("fish", "a cod")]
    train = write_tsv(tmp_path / "train.tsv", rows)
    valid = write_tsv(tmp_path / "valid.tsv", [("bird", "a wren"), ("tool", "saw")])
    values = classification_run_file(train, "lstm")
    values["data"] = {"train": str(train), "valid": str(valid)}
    _, found = check(values)
    assert told(found, *LABELS) == [
        ("warning", "conflicting_labels", "train", "2 of 63 texts (3.2%) also occur with other labels", "62", "63"),
        ("warning", "unseen_label", "valid", "1 label is not in train: 'bird' (1)", "2"),
        ("note", "rare_label", "train", "1 of 4 labels (25%) occur once: 'fish' (1)", "64"),
    ]


def test_multilabel_order_does_not_matter(check, tmp_path):
    rows = write_tsv(tmp_path / "rows.tsv", [("a,b", "one text"), ("b,a", "one text"), ("a", "another"), ("b", "others")])
    values = classification_run_file(rows, "lstm", "data.multilabel=true")
    del values["data"]["valid"], values["data"]["test"]
    assert told(check(values)[1], *LABELS) == []


@pytest.mark.parametrize("truncate", [True, False])
def test_the_length_of_a_text_pair_is_that_of_both_texts(check, tmp_path, truncate):
    rows = write_tsv(tmp_path / "pairs.tsv", [*text_pair_rows(40), ("first", "axe " * 9, "cat " * 9)], "label\tone\ttwo")
    values = classification_run_file(
        rows, "lstm", 'data.text_column=["one", "two"]', "data.max_length=20", f"data.truncate={str(truncate).lower()}"
    )
    del values["data"]["valid"], values["data"]["test"]
    code, found = check(values)
    assert code == (0 if truncate else 3)
    end = "truncated" if truncate else "an error"
    what = f"1 of 41 pairs (2.4%) have more tokens than data.max_length (20), up to 21, and are {end}"
    assert told(found, "too_long") == [("note" if truncate else "error", "too_long", "train", what, "42")]


def test_baselines_have_no_tokens_to_count(check, tmp_path):
    rows = write_tsv(tmp_path / "rows.tsv", [*single_label_rows(60), ("tool", "axe " * 50)])
    code, found = check(classification_run_file(rows, "naive-bayes", "data.max_length=20", "data.truncate=false"))
    assert code == 0 and told(found, "too_long", "unknown_tokens") == []
    assert list(found["splits"]["train"]["text"]) == ["characters"]


def test_many_labels_are_summarized_by_counts():
    counts = Counter({f"l{number}": 20 - number for number in range(11)})
    assert list_counts(counts).startswith("'l0' (20), 'l1' (19), ") and list_counts(counts).endswith("'l7' (13) and 3 more")
