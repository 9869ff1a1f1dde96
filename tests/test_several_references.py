"""Multiple references and the tokenizers of BLEU: comparison with sacrebleu and jiwer, from files to scores."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import pytest
from command_line import expect_error
from sacrebleu.metrics import BLEU, CHRF
from seq2seq_runs import Seq2SeqRuns, seq2seq_run_file
from small_runs import train_here

import weft
from weft.cli.main import main
from weft.comparison.results import EvaluationOptions, evaluate_run
from weft.comparison.table import check_same
from weft.config import parse_config, to_dict
from weft.decode.predict_options import PredictionConfig
from weft.errors import ConfigError, DataError, UsageError
from weft.metrics.bleu_tokenizers import TOKENIZERS, check_tokenizer, detect_tokenizer
from weft.metrics.seq2seq import Seq2SeqSetup, seq2seq_items, seq2seq_scores, seq2seq_setup
from weft.tasks.seq2seq.data import PairDataConfig
from weft.tasks.seq2seq.data import pairs as pairs_of
from weft.tasks.seq2seq.data import references as references_of

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
ALPHABETS = {
    "latin": [f"{a}{b}" for a in ("Ka", "lo", "mi", "Ne", "so,") for b in "aeiou."],
    "han": list("我们今天去学校看书他也想来。，"),
    "kana": list("わたしは猫がすきです。トマト"),
}


def corpus(seed: int, alphabet: str, max_references: int, *, lines: int = 30) -> tuple[list[str], list[list[str]]]:
    """Outputs with one to `max_references` references each, some of them empty."""
    chance, words = random.Random(seed), ALPHABETS[alphabet]
    between = " " if alphabet == "latin" else ""

    def noisy(line: list[str]) -> str:
        return between.join(chance.choice(words) if chance.random() < 0.2 else word for word in line if chance.random() > 0.1)

    outputs, references = [], []
    for _ in range(lines):
        expected = chance.choices(words, k=chance.randint(0, 12))
        outputs.append(noisy(expected))
        references.append([noisy(expected) if chance.random() > 0.1 else "" for _ in range(chance.randint(1, max_references))])
    return outputs, references


def streams(references: list[list[str]]) -> list[list[str | None]]:
    """References in sacrebleu's layout: the first of every line, the second, ...; None if missing."""
    maximum = max(map(len, references))
    return [[group[index] if index < len(group) else None for group in references] for index in range(maximum)]


@pytest.mark.parametrize("max_references", [1, 2, 4])
@pytest.mark.parametrize(
    ("alphabet", "tokenize"),
    [
        ("latin", "13a"),
        ("latin", "intl"),
        ("latin", "none"),
        ("latin", "char"),
        ("han", "zh"),
        ("han", "char"),
        ("kana", "char"),
    ],
)
def test_scores_match_sacrebleu_with_the_same_references_and_tokenizer(alphabet, tokenize, max_references):
    for seed in range(4):
        outputs, references = corpus(seed, alphabet, max_references)
        setup = seq2seq_setup(references, search="greedy", tokenize=tokenize)
        actual = {item.name: item for item in seq2seq_scores(seq2seq_items(outputs, references, tokenize=tokenize), setup)}
        theirs = {"bleu": BLEU(tokenize=tokenize), "bleu_lc": BLEU(tokenize=tokenize, lowercase=True), "chrf": CHRF()}
        for name, metric in theirs.items():
            assert actual[name].value == pytest.approx(metric.corpus_score(outputs, streams(references)).score, abs=1e-9)
            assert actual[name].signature.startswith(f"{metric.get_signature()}|weft:")


@pytest.mark.parametrize("max_references", [1, 3])
def test_error_rates_match_jiwer_with_the_nearest_reference(max_references):
    """Fewest edits, ties to the longest; a line with only empty references counts, too."""
    for seed in range(6):
        outputs, references = corpus(seed, "latin", max_references)
        actual = {item.name: item.value for item in seq2seq_scores(seq2seq_items(outputs, references), Seq2SeqSetup("greedy"))}
        words, letters = [], []
        for output, expected in zip(outputs, references, strict=True):
            tables = [(jiwer.process_words(item, output), jiwer.process_characters(item, output)) for item in expected]
            sizes = [(len(item.split()), len(item.strip())) for item in expected]
            for index, rows in enumerate((words, letters)):
                edits = [item[index].substitutions + item[index].deletions + item[index].insertions for item in tables]
                rows.append(min((edit, -size[index]) for edit, size in zip(edits, sizes, strict=True)))
        for name, rows in (("token_error_rate", words), ("character_error_rate", letters)):
            edits, sizes = np.array(rows).sum(0)
            assert actual[name] == pytest.approx(100 * edits / -sizes)
        exact = [
            any(output.split() == item.split() for item in expected)
            for output, expected in zip(outputs, references, strict=True)
        ]
        assert actual["exact_match"] == pytest.approx(100 * np.mean(exact))


@pytest.mark.parametrize("seed", range(5))
def test_character_error_rate_matches_jiwer(seed):
    outputs, references = corpus(seed, list(ALPHABETS)[seed % 3], 1)
    first = [one or "a b" for (one,) in references]
    actual = {one.name: one for one in seq2seq_scores(seq2seq_items(outputs, first), Seq2SeqSetup("greedy"))}
    assert actual["character_error_rate"].value == pytest.approx(100 * jiwer.cer(first, outputs))
    assert actual["character_error_rate"].signature.startswith("tok:char|weft:")


# ---- which tokenizer


CHOICES = {
    "13a": ["the cat sat on the mat .", "ein Hund", "", "кошка сидела на ковре"],
    "zh": ["我们今天去学校。", "他也想来", "用 Python 写"],
    "char": ["わたしは猫が好きです。", "今日は学校に行きます"],
}


@pytest.mark.parametrize("name", CHOICES)
def test_automatic_tokenizer_depends_on_the_script_of_references(name):
    assert detect_tokenizer([[line] for line in CHOICES[name]], spaced=False) == name
    assert detect_tokenizer([[line, line] for line in CHOICES[name]], spaced=True) == "none"


def test_automatic_tokenizer_edge_cases():
    assert detect_tokenizer([], spaced=False) == "13a"
    assert detect_tokenizer([["我们 今天 去 学校 。"]], spaced=False) == "13a"  # words with spaces between them
    assert detect_tokenizer([["ฉันรักแมวของฉันมาก"]], spaced=False) == "char"
    assert detect_tokenizer([["나는 고양이를 좋아합니다"]], spaced=False) == "13a"
    assert detect_tokenizer([["the word 猫 means cat"]], spaced=False) == "13a"


def error_message(action: Any, error: type[Exception] = UsageError) -> str:
    with pytest.raises(error) as caught:
        action()
    return str(caught.value)


def test_missing_tokenizers_are_rejected_with_a_suggestion(monkeypatch, tmp_path):
    names = "13a, zh, ja-mecab, ko-mecab, char, intl, none, flores200"
    assert ", ".join(TOKENIZERS) == names
    assert error_message(lambda: check_tokenizer("zhh")) == "tokenize: unknown tokenizer 'zhh'; did you mean 'zh'?"
    for name, module in (("MeCab", "ja"), ("mecab_ko", "ko")):
        monkeypatch.setitem(sys.modules, name, None)
        assert error_message(lambda module=module: check_tokenizer(f"{module}-mecab")) == (
            f"tokenize: the packages of '{module}-mecab' are not installed; run pip install 'sacrebleu[{module}]', or use char"
        )
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    assert error_message(lambda: check_tokenizer("flores200")) == (
        "tokenize: the packages of 'flores200' are not installed; run pip install sentencepiece, or use another tokenizer"
    )
    monkeypatch.setitem(sys.modules, "sentencepiece", json)
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(tmp_path))
    assert error_message(lambda: check_tokenizer("flores200")) == (
        f"tokenize: 'flores200' requires {tmp_path}/models/flores200sacrebleuspm, and weft downloads nothing; "
        "get it from https://tinyurl.com/flores200sacrebleuspm, or use another tokenizer"
    )
    for name in ("13a", "zh", "char", "intl", "none"):
        check_tokenizer(name)


# ---- from files


def write(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_references_are_columns_of_a_table_or_parallel_files(tmp_path):
    rows = ["source\tone\ttwo\tthree", "a\tA\tAA\t", "b\tB\t\tBBB", "c\t\tCC\tC", "d\t\t\t"]
    write(tmp_path / "a.tsv", rows)
    table = parse_config(PairDataConfig, {"train": "a.tsv", "target_column": ["one", "two", "three"]}, prefix="data")
    source = table.sources(tmp_path)["train"]
    assert list(pairs_of(source)) == [("a", "A"), ("b", "B"), ("c", ""), ("d", "")]  # training sees the first
    assert list(references_of(source)) == [
        ("A", "AA"),
        ("B", "BBB"),
        ("CC", "C"),
        ("",),
    ]  # empty references are dropped if others remain
    columns = list(zip(*(row.split("\t") for row in rows[1:]), strict=True))
    for name, column in zip(("s", "one", "two", "three"), columns, strict=True):
        write(tmp_path / f"a.{name}", list(column))
    names = [f"a.{name}" for name in ("s", "one", "two", "three")]
    parallel = parse_config(PairDataConfig, {"train": names}, prefix="data").sources(tmp_path)["train"]
    assert list(pairs_of(parallel)) == list(pairs_of(source)) and list(references_of(parallel)) == list(references_of(source))
    assert parse_config(PairDataConfig, to_dict(table.with_defaults()), prefix="data") == table
    lines = [json.dumps(dict(zip(("source", "one", "two", "three"), row.split("\t"), strict=True))) for row in rows[1:]]
    write(tmp_path / "a.jsonl", lines)
    objects = parse_config(
        PairDataConfig, {"train": "a.jsonl", "target_column": ["one", "two", "three"]}, prefix="data"
    ).sources(tmp_path)
    assert list(references_of(objects["train"])) == list(references_of(source))
    halves = parse_config(
        PairDataConfig, {"train": "a.tsv", "valid": 0.75, "target_column": ["one", "three"]}, prefix="data"
    ).sources(tmp_path)
    assert list(references_of(halves["valid"])) == [("B", "BBB"), ("C",), ("",)]


def test_invalid_references_are_rejected(tmp_path):
    def wrong(values: dict[str, Any]) -> str:
        return error_message(lambda: parse_config(PairDataConfig, values, prefix="data"), ConfigError)

    assert wrong({"train": "a.tsv", "target_column": []}) == "data.target_column: expected a column name, got []"
    assert wrong({"train": "a.tsv", "target_column": ["a", ""]}) == "data.target_column: expected a column name, got ''"
    assert (
        wrong({"train": "a.tsv", "target_column": ["a", "a"]})
        == "data.target_column: 'a' is repeated; name each reference once"
    )
    assert wrong({"train": ["a.en", "a.de"], "target_column": ["a", "b"]}) == (
        "data.target_column: parallel files have no columns; remove it"
    )
    write(tmp_path / "a.tsv", ["source\tone", "a\tA"])
    source = parse_config(PairDataConfig, {"train": "a.tsv", "target_column": ["one", "two"]}, prefix="data").sources(tmp_path)[
        "train"
    ]
    assert list(pairs_of(source)) == [("a", "A")]  # training needs only the first
    assert error_message(lambda: list(references_of(source)), DataError) == (
        f"{tmp_path / 'a.tsv'}:1: no column 'two'; set data.target_column to one of: source, one"
    )


# ---- whole runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Seq2SeqRuns(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def several(runs):
    """A run whose data has two targets; the second lacks the last phone of the first."""
    rows = [line.split("\t") for line in runs.pairs.read_text().split("\n")[:-1]]
    data = write(runs.directory / "several.tsv", ["source\tone\ttwo", *(f"{a}\t{b}\t{b[:-2]}" for a, b in rows)])
    values = seq2seq_run_file(data, "luong", "train.max_steps=12")
    values["data"]["target_column"] = ["one", "two"]
    return train_here(values, runs.directory / "several").path


def test_a_run_is_validated_and_evaluated_with_all_its_references(several, capsys):
    run = weft.load(several, device="cpu")
    files = run.config.datasets["test"]
    pairs, references = list(pairs_of(files)), list(references_of(files))
    outputs = [best.text for best in run.predict([line for line, _ in pairs], beam_size=1)]
    metric = BLEU(tokenize="none")  # targets are phones separated by spaces
    expected = metric.corpus_score(outputs, streams(references)).score
    actual = {score.name: score for score in run.evaluate(None, PredictionConfig(beam_size=1))}
    assert actual["bleu"].value == pytest.approx(expected)
    assert "|tok:none|" in actual["bleu"].signature and actual["exact_match"].signature.startswith("nrefs:")
    assert main(["evaluate", str(several), "--beam-size", "1", "--json", "--device", "cpu"]) == 0
    scores_by_name = {score["name"]: score for score in json.loads(capsys.readouterr().out)["scores"]}
    assert scores_by_name["bleu"]["value"] == pytest.approx(expected) and "character_error_rate" in scores_by_name
    assert main(["evaluate", str(several), "--beam-size", "1", "--tokenize", "13a", "--json", "--device", "cpu"]) == 0
    scores_by_name = {score["name"]: score for score in json.loads(capsys.readouterr().out)["scores"]}
    assert scores_by_name["bleu"]["value"] == pytest.approx(BLEU().corpus_score(outputs, streams(references)).score)
    valid = run.config.datasets["valid"]
    logged = [json.loads(line) for line in (several / "metrics.jsonl").read_text().split("\n")[:-1]]
    greedy = [best.text for best in run.predict([line for line, _ in pairs_of(valid)], beam_size=1)]
    best = BLEU(tokenize="none").corpus_score(greedy, streams(list(references_of(valid)))).score
    assert any(record.get("valid_bleu") == pytest.approx(best) for record in logged)


def test_bleu_tokenizer_is_rejected_for_tasks_without_text_output(runs, capsys, tmp_path):
    lm = str(runs.run_dir("lm-ngram"))
    assert expect_error(capsys, "evaluate", lm, "--tokenize", "13a", "--data", str(runs.pairs)) == (
        2,
        "--tokenize: not available for task 'lm'",
    )
    assert expect_error(capsys, "compare", lm, lm, "--tokenize", "13a", "--output-dir", str(tmp_path / "out")) == (
        2,
        "--tokenize: not available for task 'lm'",
    )
    assert expect_error(capsys, "evaluate", str(runs.run_dir("luong")), "--tokenize", "cha")[1] == (
        "--tokenize: unknown tokenizer 'cha'; did you mean 'char'?"
    )


def test_evaluate_accepts_parallel_files_with_several_references(runs, tmp_path):
    run = weft.load(runs.run_dir("luong"), device="cpu")
    files = [
        write(tmp_path / "a.in", ["abc", "fade"]),
        write(tmp_path / "a.1", ["A", "F A"]),
        write(tmp_path / "a.2", ["B", ""]),
    ]
    actual = {score.name: score for score in run.evaluate(files, PredictionConfig(beam_size=1))}
    assert actual["bleu"].signature.startswith("nrefs:var|")
    outputs = [best.text for best in run.predict(["abc", "fade"], beam_size=1)]
    assert actual["chrf"].value == pytest.approx(CHRF().corpus_score(outputs, [["A", "F A"], ["B", None]]).score)


@pytest.mark.slow
def test_a_comparison_scores_all_rows_with_one_tokenizer_and_the_same_references(runs, several, capsys, tmp_path):
    """With phones separated by spaces, and with the same as characters."""
    data = runs.directory / "several.tsv"
    values = seq2seq_run_file(data, "joint", "train.max_steps=3")
    values["data"]["target_column"] = ["one", "two"]
    letters = train_here(values, runs.directory / "several-letters").path
    for folder, tokenizer in ((several, "none"), (letters, "13a")):
        actual = {score.name: score for score in weft.load(folder).evaluate(None, PredictionConfig(beam_size=1))}
        assert f"|tok:{tokenizer}|" in actual["bleu"].signature
    calls = []
    for words in ([], ["--tokenize", "none"]):
        out = tmp_path / f"compared{len(words)}"
        assert main(["compare", str(several), str(letters), "--output-dir", str(out), "--quiet", *words]) == 0
        capsys.readouterr()
        evidence = [json.loads(path.read_text()) for path in sorted(out.glob("results/*/results.json"))]
        calls.append(
            {signature.partition("|weft:")[0] for score in evidence for name, signature in score["scores"] if name == "bleu"}
        )
    assert [len(actual) for actual in calls] == [1, 1]
    assert "|tok:13a|" in min(calls[0]) and "|tok:none|" in min(calls[1])
    single = train_here(
        seq2seq_run_file(data, "luong", "train.max_steps=2", "data.target_column=one"), runs.directory / "single"
    ).path
    rows = {
        str(folder): [evaluate_run(weft.load(folder), evaluation=EvaluationOptions(tokenize="none"))]
        for folder in (several, single)
    }
    assert error_message(lambda: check_same(rows)) == (
        f"compare: {several} and {single} were scored with different references or tokenizers "
        "(nrefs:var tok:none and nrefs:1 tok:none); use the same data.target_column for both"
    )
