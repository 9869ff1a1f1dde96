"""`weft check`: every planted problem is reported with its position, clean data has no findings, as text and as JSON."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from weft.cli.commands.check import _example
from weft.cli.main import main
from weft.data import check as check_module
from weft.data import check_labels
from weft.data.check import Report, check_data, duplicate_mask, truncate_text
from weft.data.dataset import Dataset
from weft.data.findings import CheckOptions, Finding, percent
from weft.data.source import Source
from weft.data.statistics import MAX_DECODED_ROWS, TokenCounts
from weft.errors import DataError, ModelError
from weft.tasks import media_data
from weft.tasks.seq2seq.data import SIDES, PairDataConfig, PairFormat
from weft.text.table_layout import display_width
from weft.text.tokenizer_pair import TokenizerPairConfig, train_tokenizer_pair
from weft.text.tokenizers import TokenizerConfig, train_tokenizer

WORDS = ["the", "a", "dog", "cat", "runs", "sees", "house", "tree", "small", "big", "red", "blue", "and", "then"]


def sentences(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Different sentences and their likes in capitals: nothing is wrong with them."""
    random = np.random.default_rng(seed)
    results: dict[str, str] = {}
    while len(results) < count:
        text = f"{len(results)} " + " ".join(random.choice(WORDS, size=random.integers(8, 20)))
        results[text] = text.upper()
    return list(results.items())


def write(path: Path, pairs: Sequence[tuple[str, str]], end: str = "\n") -> Path:
    path.write_bytes("".join(f"{source}\t{target}{end}" for source, target in pairs).encode())
    return path


def check_pairs(folder: Path, told: CheckOptions | None = None, tokenizer: dict | None = None, **splits) -> Report:
    """The report on splits of pairs, each written to a file of its name."""
    sources = {name: Dataset((write(folder / f"{name}.tsv", pairs),), PairFormat()) for name, pairs in splits.items()}
    train, table = sources["train"], TokenizerPairConfig(**(tokenizer or {"type": "byte"}))
    made = lambda: train_tokenizer_pair(table, lambda: train.texts("source"), lambda: train.texts("target"))  # noqa: E731
    return check_data(sources, made, told or CheckOptions(SIDES, 1000))


def check_text(folder: Path, told: CheckOptions, tokenizer: dict | None = None, **splits: str) -> Report:
    sources = {}
    for name, text in splits.items():
        (folder / f"{name}.txt").write_bytes(text.encode())
        sources[name] = Source((folder / f"{name}.txt",), lines=not told.min_chars)
    table = TokenizerConfig(**(tokenizer or {"type": "byte"}))
    return check_data(sources, lambda: [train_tokenizer(table, sources["train"].texts())], told)


def only(report: Report, name: str) -> Finding:
    results = [finding for finding in report.findings if finding.name == name]
    assert len(results) == 1, report.findings
    return results[0]


def told_of(finding: Finding, folder: Path) -> tuple[str, str, int, list[str]]:
    where = [location.removeprefix(f"{folder}/") for location in finding.locations]
    return finding.severity, finding.message, finding.count, where


def test_clean_data_has_sizes_and_no_findings(tmp_path):
    report = check_pairs(tmp_path, train=sentences(300), test=sentences(40, seed=1)[20:])
    assert report.findings == []
    assert list(report.sizes) == ["train", "test"]
    characters = sum(len(source) for source, _ in sentences(300))
    assert report.sizes["train"]["rows"] == 300
    assert report.sizes["train"]["source"] == {
        "characters": characters,
        "tokens": characters + 300,
        "max_length": max(len(source) for source, _ in sentences(300)) + 1,
        "unk_rate": 0.0,
    }


# ---- row by row


def test_empty_sources_and_targets(tmp_path):
    pairs = sentences(50)
    pairs[6], pairs[9], pairs[30] = ("", pairs[6][1]), (pairs[9][0], ""), (pairs[30][0], "")
    report = check_pairs(tmp_path, train=pairs)
    source, target = report.findings
    assert told_of(source, tmp_path) == ("warning", "1 of 50 sources (2%) are empty", 1, ["train.tsv:7"])
    assert told_of(target, tmp_path) == ("warning", "2 of 50 targets (4%) are empty", 2, ["train.tsv:10", "train.tsv:31"])
    assert target.examples == ((pairs[9][0], ""), (pairs[30][0], ""))
    assert (source.fix, source.side, target.side) == ("remove these pairs unless intended", 0, 1)


@pytest.mark.parametrize(
    ("text", "name", "what"),
    [
        ("padded ", "outer_whitespace", "1 of 50 targets (2%) start or end with whitespace"),
        ("\u3000padded", "outer_whitespace", "1 of 50 targets (2%) start or end with whitespace"),
        ("cafe\u0301", "not_nfc", "1 of 50 targets (2%) are not in Unicode normalization form NFC"),
        ("one\rtwo", "carriage_return", "1 of 50 targets (2%) contain a carriage return inside a line"),
    ],
)
def test_odd_texts(text, name, what, tmp_path):
    pairs = sentences(50)
    pairs[3] = (pairs[3][0], f"{text} and so on, about as long as what it stands for" if name != "outer_whitespace" else text)
    finding = only(check_pairs(tmp_path, train=pairs), name)
    assert told_of(finding, tmp_path) == ("warning", what, 1, ["train.tsv:4"])
    assert finding.examples == ((pairs[3][1],),)


def test_newline_inside_a_field(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text('"one\ntwo",three\n')
    report = check_data({"train": Dataset((path,), PairFormat())}, list, CheckOptions(SIDES))
    assert told_of(only(report, "newline_in_field"), tmp_path) == (
        "warning", "1 of 1 sources (100%) contain a newline", 1, ["train.csv:1"],
    )  # fmt: skip


def test_line_endings(tmp_path):
    write(tmp_path / "a.tsv", sentences(30), end="\r\n")
    report = check_data({"train": Dataset((tmp_path / "a.tsv",), PairFormat())}, list, CheckOptions(SIDES))
    assert [(finding.severity, finding.name, finding.message) for finding in report.findings] == [
        ("note", "crlf", "30 line endings are CRLF and read as LF")
    ]


def test_rare_problems_are_notes_and_frequent_ones_warnings(tmp_path):
    pairs = [
        (f"{source} ", target) if number < 3 else (source, target) for number, (source, target) in enumerate(sentences(301))
    ]
    assert only(check_pairs(tmp_path, train=pairs), "outer_whitespace").severity == "note"
    assert only(check_pairs(tmp_path, train=pairs[:300]), "outer_whitespace").severity == "warning"


# ---- rows against rows


def test_duplicate_mask_marks_repeats():
    assert duplicate_mask(np.array([5, 3, 5, 5, 3, 1])).tolist() == [False, False, True, True, True, False]
    assert duplicate_mask(np.array([], dtype=np.int64)).tolist() == []


def test_duplicates_and_several_targets(tmp_path):
    pairs = sentences(40)
    pairs[10] = pairs[4]
    pairs[12] = (pairs[4][0], pairs[4][1].lower())
    pairs[20] = pairs[12]
    report = check_pairs(tmp_path, train=pairs)
    assert told_of(only(report, "duplicate"), tmp_path) == (
        "warning", "2 of 40 pairs (5%) are duplicates", 2, ["train.tsv:11", "train.tsv:21"],
    )  # fmt: skip
    several = only(report, "multiple_targets")
    assert told_of(several, tmp_path) == ("note", "1 source has more than one target", 1, ["train.tsv:5", "train.tsv:13"])
    assert several.examples == (pairs[4], pairs[12])


def test_overlap_of_sentence_pairs_and_of_sources(tmp_path):
    train, test = sentences(60), sentences(20, seed=5)
    test[3] = train[9]
    test[7] = (train[30][0], train[31][1])
    report = check_pairs(tmp_path, train=train, valid=sentences(10, seed=7), test=test)
    assert told_of(only(report, "overlap"), tmp_path) == (
        "warning",
        "1 of 20 pairs (5%) also occur in train",
        1,
        ["test.tsv:4"],
    )
    finding = only(report, "source_overlap")
    assert told_of(finding, tmp_path) == (
        "warning", "1 of 20 sources (5%) occur in train with another target", 1, ["test.tsv:8"],
    )  # fmt: skip
    assert finding.fix == "remove them from train, or the scores on test are too high"


def test_valid_and_test_must_not_overlap_either(tmp_path):
    report = check_pairs(tmp_path, train=sentences(30), valid=sentences(9, seed=3), test=sentences(4, seed=3))
    assert only(report, "overlap").message == "4 of 4 pairs (100%) also occur in valid"


def test_mismatched_lengths(tmp_path):
    pairs = sentences(400)
    pairs[100], pairs[200] = (pairs[100][0], "@@"), ("short", "x" * 500)
    finding = only(check_pairs(tmp_path, train=pairs), "length_ratio")
    assert told_of(finding, tmp_path) == (
        "note", "2 of 400 pairs (0.5%) have an unusual length ratio (the median of target/source is 1)",
        2, ["train.tsv:201", "train.tsv:101"],
    )  # fmt: skip
    assert finding.examples[1] == pairs[100]


def test_shifted_lines(tmp_path):
    pairs = sentences(900)
    targets = [target for _, target in pairs]
    targets[200:700] = [*targets[201:700], targets[200]]
    slipped = [(source, target) for (source, _), target in zip(pairs, targets, strict=True)]
    finding = only(check_pairs(tmp_path, train=slipped), "misaligned")
    assert finding.severity == "warning"
    assert finding.message.startswith("from this line on, ")
    assert finding.message.endswith(" sources match the target 1 line above better than their own")
    assert abs(int(finding.locations[0].rpartition(":")[2]) - 201) <= 10


# ---- tokens


def test_unknown_characters_are_shown_with_their_counts(tmp_path):
    test = [("ein ß und ß", "EIN ß UND Ŷ"), ("the dog runs", "THE DOG RUNS")]
    report = check_pairs(tmp_path, tokenizer={"type": "char"}, train=sentences(60), test=test)
    source, target = [finding for finding in report.findings if finding.name == "unknown_tokens"]
    assert told_of(source, tmp_path) == (
        "warning", "2 of 25 source tokens (8%) are unknown: 'ß' (2)", 2, ["test.tsv:1"],
    )  # fmt: skip
    assert target.message == (
        "2 of 25 target tokens (8%) are unknown: 'ß' (1), 'Ŷ' (1); 50% of the targets contain one and can never match exactly"
    )
    assert report.sizes["test"]["target"]["unk_rate"] == 2 / 25


@pytest.mark.parametrize(
    ("kind", "piece"), [("word", "'zebra' (2)"), ("whitespace", "'zebra,' (1), 'zebra' (1)"), ("wordpiece", "'∞' (1)")]
)
def test_unknown_words(kind, piece, tmp_path):
    test = [("the zebra, a zebra", "A ∞")]
    report = check_pairs(tmp_path, tokenizer={"type": kind, "vocab_size": 200}, train=sentences(60), test=test)
    results = [finding for finding in report.findings if finding.name == "unknown_tokens" and finding.split == "test"]
    assert any(f"are unknown: {piece}" in finding.message for finding in results)


@pytest.mark.parametrize("truncate", [True, False])
def test_texts_that_are_too_long(truncate, tmp_path):
    pairs = [("a" * 10, "b" * 10)] * 3 + [("a" * 12, "b" * 10), ("a" * 30, "b" * 11)]
    report = check_pairs(
        tmp_path, CheckOptions(SIDES, 11, truncate), train=[(f"{n}{s[1:]}", t) for n, (s, t) in enumerate(pairs)]
    )
    source, target = [finding for finding in report.findings if finding.name == "too_long"]
    fate = "truncated" if truncate else "an error"
    assert told_of(source, tmp_path) == (
        "note" if truncate else "error",
        f"2 of 5 sources (40%) have more tokens than data.max_length (11), up to 31, and are {fate}",
        2, ["train.tsv:4", "train.tsv:5"],
    )  # fmt: skip
    assert target.count == 1
    assert report.count("error") == (0 if truncate else 2)


def test_targets_that_do_not_round_trip(tmp_path):
    pairs = [(source, f"This is what stands before: {target}, isn't it?") for source, target in sentences(30)]
    report = check_pairs(tmp_path, tokenizer={"type": "word"}, train=pairs)
    finding = only(report, "lossy_tokenization")
    assert (finding.severity, finding.message) == (
        "warning", "30 of 30 targets (100%) change when they are tokenized and detokenized",
    )  # fmt: skip
    ((before, after),) = finding.examples
    assert before.startswith("This is what stands before: ")
    assert after.startswith("This is what stands before : ")
    report = check_pairs(tmp_path, tokenizer={"type": "whitespace"}, train=pairs)
    assert "lossy_tokenization" not in {finding.name for finding in report.findings}


def test_round_trips_are_checked_on_a_limited_number_of_lines():
    counted = TokenCounts(train_tokenizer(TokenizerConfig(type="word"), iter(["a b ."])))
    for _ in range(3):
        counted.add(["a  b"] * (MAX_DECODED_ROWS // 2 + 1))
    assert (counted.decoded, counted.changed, len(counted.tokens)) == (
        MAX_DECODED_ROWS,
        MAX_DECODED_ROWS,
        3 * (MAX_DECODED_ROWS // 2 + 1),
    )
    assert counted.first_change == ("a  b", "a b")


# ---- texts


def test_lines_of_a_text(tmp_path):
    train = "anna\nemma\n\nanna\nnoah\n"
    report = check_text(tmp_path, CheckOptions(("line",)), {"type": "char"}, train=train, test="emma\nida\n")
    assert [(finding.severity, finding.name, finding.message, finding.locations[0]) for finding in report.findings] == [
        ("warning", "duplicate", "1 of 5 lines (20%) are duplicates", f"{tmp_path / 'train.txt'}:4"),
        ("warning", "overlap", "1 of 2 lines (50%) also occur in train", f"{tmp_path / 'test.txt'}:1"),
        (
            "warning",
            "unknown_tokens",
            "2 of 9 line tokens (22.2%) are unknown: 'i' (1), 'd' (1)",
            f"{tmp_path / 'test.txt'}:2",
        ),
        ("note", "empty", "1 of 5 lines (20%) are empty", f"{tmp_path / 'train.txt'}:3"),
    ]
    assert report.findings[-1].examples == ()
    assert report.sizes["train"] == {"rows": 5, "line": {"characters": 16, "tokens": 21, "max_length": 5, "unk_rate": 0.0}}


def test_running_text_may_repeat_short_lines(tmp_path):
    long = "a line that is as long as a line of a book is, more or less\n"
    report = check_text(tmp_path, CheckOptions(("line",), min_chars=40), train="ROMEO:\n" * 9 + long + "JULIA:\n" + long)
    assert [(finding.name, finding.count) for finding in report.findings] == [("duplicate", 1)]


def test_a_text_of_one_line_can_be_split(tmp_path):
    (tmp_path / "a.txt").write_text("abcdefghij")
    sources = {"train": Source((tmp_path / "a.txt",), high=0.8), "valid": Source((tmp_path / "a.txt",), low=0.8)}
    report = check_data(
        sources, lambda: [train_tokenizer(TokenizerConfig(), sources["train"].texts())], CheckOptions(("line",), min_chars=40)
    )
    assert {name: (sizes["rows"], sizes["line"]["characters"]) for name, sizes in report.sizes.items()} == {
        "train": (1, 8), "valid": (1, 2),
    }  # fmt: skip
    assert only(report, "unknown_tokens").message == "2 of 3 line tokens (66.7%) are unknown: 'i' (1), 'j' (1)"


# ---- what can't be read


def test_unreadable_files_are_error_findings(tmp_path):
    write(tmp_path / "test.tsv", [("a", "b"), ("c", "d\te")])
    table = PairDataConfig(train="train.tsv", test="test.tsv")
    write(tmp_path / "train.tsv", sentences(20))

    def none():
        raise ModelError("tokenizer.json", "can't be read")

    report = check_data(table.sources(tmp_path), none, CheckOptions(SIDES, 100))
    assert [(finding.severity, finding.name, finding.split, finding.message) for finding in report.findings] == [
        (
            "error", "unreadable", "test",
            f"{tmp_path / 'test.tsv'}:2: expected 2 tab-separated columns, got 3: 'c', 'd', 'e'",
        ),
        ("error", "tokenizer_error", "train", "tokenizer.json: can't be read"),
    ]  # fmt: skip
    assert list(report.sizes["train"]["source"]) == ["characters"]


def test_an_unreadable_training_file_gives_no_second_error_for_the_tokenizer(tmp_path):
    table = PairDataConfig(train="train.tsv", test="test.tsv")
    write(tmp_path / "test.tsv", sentences(20))

    def none():
        raise DataError("train.tsv", "file not found")

    steps = []
    report = check_data(table.sources(tmp_path), none, CheckOptions(SIDES), progress=lambda step, share: steps.append(step))
    assert [(finding.name, finding.message) for finding in report.findings] == [
        ("unreadable", f"{tmp_path / 'train.tsv'}: file not found")
    ]
    assert steps == ["reading train", "reading test", "training the tokenizer", "tokenizing test"]


# ---- for people and for programs


def test_the_docs_list_exactly_the_findings():
    source = "".join(map(inspect.getsource, (check_module, check_labels, media_data)))
    called = re.findall(r'"([a-z_]+)", (?:split|second|name),', source)
    page = (Path(__file__).parents[1] / "docs" / "reference" / "data-checks.md").read_text()
    manual = page.partition("| finding |")[2].partition("\n\n")[0]
    named = re.findall(r"^\| `([a-z_]+)`", manual, re.MULTILINE)
    assert sorted(named) == sorted({*called, *check_module._UNUSUAL, "tokenizer_error"} - {"error"})  # a severity


def test_numbers_and_long_texts():
    assert [percent(1, 3), percent(1, 30), percent(0, 5), percent(5, 5), percent(997, 1000), percent(1, 0)] == [
        "33.3%", "3.3%", "0%", "100%", "99.7%", "100%",
    ]  # fmt: skip
    assert truncate_text("0123456789", 10) == "0123456789"
    assert truncate_text("0123456789" * 3, 15) == "0123 ... 456789"
    assert len(truncate_text("0123456789" * 3, 15)) == 15


RUN = """
task = "seq2seq"
[data]
train = "train.tsv"
test = "test.tsv"
max_length = 200
[tokenizer]
type = "char"
[model]
arch = "lstm-input-feeding"
"""


@pytest.fixture
def work_dir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path


def call(capsys, *words):
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_text_report(work_dir, capsys):
    first = "the small dog sees the big red house and then runs"
    pairs = [(first, first.upper()), *sentences(98)]
    write(work_dir / "train.tsv", [*pairs, ("the end ", "THE END")])
    write(work_dir / "test.tsv", [("ein ß", "EIN ß"), pairs[0]])
    characters = [sum(len(pair[side]) for pair in pairs) + 8 - side for side in (0, 1)]
    code, out, err = call(capsys, "check", "run.toml")
    assert (code, err) == (0, "")
    head, _, rest = out.partition("\n\n")
    rows = [line.split() for line in head.split("\n")]
    assert rows[0] == ["pairs", "characters", "tokens", "tokens/pair", "max", "<unk>"]
    assert rows[1][:3] == ["train", "100", f"{characters[0]:,}"] and rows[1][-2:] == ["0.0%", "source"]
    assert rows[2][0] == f"{characters[1]:,}" and rows[2][-2:] == ["0.0%", "target"]
    assert len({len(line) for line in head.split("\n")[1:]}) == 1
    findings, _, export = rest.partition("Export\n")
    export, _, counts = export.partition("\n\n")
    assert export.startswith("  hf ") and "no: Pegasus, the nearest architecture, has no equivalent of" in export
    assert (
        findings + counts
        == f"""\
warning  train: 1 of 100 sources (1%) start or end with whitespace
         train.tsv:100
         "the end "
         Fix: strip it: texts that look the same would differ

warning  test: 1 of 2 pairs (50%) also occur in train
         test.tsv:2
         "{pairs[0][0]}"
         -> "{pairs[0][1]}"
         Fix: remove them from train, or the scores on test are too high

warning  test: 1 of 57 source tokens (1.8%) are unknown: 'ß' (1)
         test.tsv:1
         "ein ß"
warning  test: 1 of 57 target tokens (1.8%) are unknown: 'ß' (1); 50% of the targets contain one and
         can never match exactly
         test.tsv:1
         "EIN ß"
         Fix: increase tokenizer.vocab_size, add training data, or use tokenizer.type = "bpe" or
         "byte", which have no unknown tokens

0 errors, 4 warnings, 0 notes
"""
    )


@pytest.mark.parametrize(
    "texts", [["abc" * 40], ["日本語の文章です。" * 12], ["日" * 60, "한국어" * 40], ["", ""], ["e\u0301" * 99]]
)
def test_examples_fit_the_terminal(texts):
    shown = _example(texts, 60)
    assert all(display_width(line) <= 60 for line in shown)
    assert (" ... " in shown[0]) == (display_width(texts[0]) > 60)


def test_errors_give_exit_code_3_and_json(work_dir, capsys):
    write(work_dir / "train.tsv", [*sentences(99), ("a" * 300, "b" * 300)])
    (work_dir / "test.tsv").write_text("a b\n")
    code, out, err = call(capsys, "check", "run.toml", "--json", "--quiet")
    assert (code, err) == (3, "")
    data = json.loads(out)
    assert (data["run_file"], data["errors"], data["warnings"], data["notes"]) == ("run.toml", 3, 0, 0)
    assert data["splits"]["train"]["target"]["max_length"] == 301
    assert list(data["findings"][0]) == ["severity", "name", "split", "count", "message", "locations", "examples", "fix"]
    assert data["findings"][0]["locations"] == []
    assert data["findings"][1]["locations"] == [f"{work_dir / 'train.tsv'}:100"]
    write(work_dir / "test.tsv", sentences(9, seed=8))
    code, out, _ = call(capsys, "check", "run.toml", "--set", "data.max_length=400")
    assert (code, out[-30:]) == (0, "0 errors, 0 warnings, 0 notes\n")


def test_no_run_directory_is_created_and_a_wrong_run_file_is_a_usage_error(work_dir, capsys):
    write(work_dir / "train.tsv", sentences(20))
    write(work_dir / "test.tsv", sentences(5, seed=2))
    assert call(capsys, "check", "run.toml", "--quiet")[0] == 0
    assert sorted(path.name for path in work_dir.iterdir()) == ["run.toml", "test.tsv", "train.tsv"]
    code, out, err = call(capsys, "check", "run.toml", "--set", "data.max_lenght=3")
    assert (code, out) == (2, "")
    assert err == "weft: error: data.max_lenght: unknown option; did you mean 'max_length'?\n"


@pytest.mark.parametrize("read", ["lines", "windows"])
def test_data_of_a_language_model(work_dir, read, capsys):
    (work_dir / "text.txt").write_text("anna\nemma\nida\n" * 20)
    lm = f'task = "lm"\n[data]\ntrain = "text.txt"\nvalid = 0.1\nread_as = "{read}"\n[model]\narch = "ngram"\n'
    (work_dir / "lm.toml").write_text(lm)
    code, out, _ = call(capsys, "check", "lm.toml", "--json")
    assert code == 0
    data = json.loads(out)
    assert {finding["name"] for finding in data["findings"]} == ({"duplicate", "overlap"} if read == "lines" else set())
    assert {name: split["rows"] for name, split in data["splits"].items()} == {"train": 54, "valid": 6}
    table = call(capsys, "check", "lm.toml")[1].split("\n\n")[0]
    assert table.split("\n")[0].split() == ["lines", "characters", "tokens", "tokens/line", "max", "<unk>"]
