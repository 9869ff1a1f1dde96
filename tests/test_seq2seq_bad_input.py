"""Seq2seq with bad input: invalid text, overlong or truncated lines, and misspelled options."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import expect_error, set_stdin
from seq2seq_runs import Seq2SeqRuns, make_pairs, seq2seq_run_file
from small_runs import train_here

import weft
from weft.cli import input_lines as lines
from weft.cli.commands.evaluate import Evaluate
from weft.cli.input_lines import any_lines, batched
from weft.cli.main import main
from weft.data.batch import crop_batch, map_tensors
from weft.data.table_rows import TableOptions
from weft.decode.predict_options import PredictionConfig
from weft.decode.prediction import Prediction
from weft.errors import DataError, ModelError, WeftError
from weft.runs.load import load
from weft.tasks.seq2seq.batching import PairBatch
from weft.tasks.seq2seq.files import read_records
from weft.tasks.seq2seq.task import SEQ2SEQ
from weft.text.compression import read_bytes
from weft.text.reading import FileSummary
from weft.training import memory
from weft.training.config import TrainConfig
from weft.training.loop import DeviceConfig


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Seq2SeqRuns:
    return Seq2SeqRuns(tmp_path_factory.mktemp("attacked"))


def error_message(kind: type[WeftError], work: Callable[[], Any]) -> str:
    with pytest.raises(kind) as caught:
        work()
    return str(caught.value)


def predicted(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[str], str]:
    """Exit code, lines of standard output, standard error."""
    code = main(["predict", *words, "--device", "cpu"])
    captured = capsys.readouterr()
    return code, captured.out.split("\n")[:-1], captured.err


def outputs(runs: Seq2SeqRuns, *words: str) -> list[str]:
    run = load(runs.run_dir("lstm"), SEQ2SEQ, device="cpu")
    return [best.text for best in run.predict(list(words))]


# ---- lines that are no text


BAD = b"abc\nf\0e\n\nf\xffe\nfade\n"
FAULTS = [
    "2: NUL character; is this binary data?; skipped",
    "4: invalid utf-8 (byte 0xff); convert it first; skipped",
]


def test_an_invalid_line_does_not_affect_others(runs, capsys, monkeypatch, tmp_path):
    folder, (first, last) = str(runs.run_dir("lstm")), outputs(runs, "abc", "fade")
    set_stdin(monkeypatch, BAD)
    message = "".join(f"weft: warning: standard input:{fault}\n" for fault in FAULTS)
    assert predicted(capsys, folder) == (3, [first, "", "", "", last], message)
    (tmp_path / "bad.txt").write_bytes(BAD)
    message = "".join(f"weft: warning: {tmp_path / 'bad.txt'}:{fault}\n" for fault in FAULTS)
    assert predicted(capsys, folder, "--input", str(tmp_path / "bad.txt")) == (3, [first, "", "", "", last], message)


def test_an_invalid_line_has_no_source_in_json(runs, capsys, monkeypatch):
    set_stdin(monkeypatch, b"f\0e\nabc\n")
    code, actual, _ = predicted(capsys, str(runs.run_dir("lstm")), "--json")
    error = "standard input:1: NUL character; is this binary data?"
    assert (code, json.loads(actual[0])) == (3, {"source": None, "predictions": [], "error": error})
    assert json.loads(actual[1])["source"] == "abc"


def test_one_batch_with_two_types_of_invalid_lines(runs, capsys, monkeypatch):
    folder = runs.run_dir("lstm")
    set_stdin(monkeypatch, b"ab" * 10 + b"\n\xff\nabc\n")
    code, actual, output = predicted(capsys, str(folder))
    assert (code, actual) == (3, ["", "", *outputs(runs, "abc")])
    assert output.split("\n")[:-1] == [
        "weft: warning: line 1: 21 tokens exceed the model's limit of 16; shorten it or set --truncate; skipped",
        "weft: warning: standard input:2: invalid utf-8 (byte 0xff); convert it first; skipped",
    ]


def test_byte_lines_are_read_one_by_one(monkeypatch):
    """Lines and errors do not depend on the chunks."""

    def found(size: int) -> list[str]:
        data = b"\xef\xbb\xbfa\r\nb\xc3\xa4\r\n\xc3\nc\0\r\n\rd\r\n\xed\xa0\x80\ne\xc3"
        chunks = (data[index : index + size] for index in range(0, len(data), size))
        return [repr(line) for line in lines._lines(chunks, "utf-8", "here")]

    full = found(1000)
    assert all(found(size) == full for size in range(1, 9))
    assert full == [
        "'a'",
        "'bä'",
        "DataError('here:3', 'invalid utf-8 (byte 0xc3)', 'convert it first')",
        "DataError('here:4', 'NUL character', 'is this binary data?')",
        "'\\rd'",
        "DataError('here:6', 'invalid utf-8 (byte 0xed)', 'convert it first')",
        "DataError('here:7', 'invalid utf-8 (byte 0xc3)', 'convert it first')",
    ]


def test_an_invalid_utf_16_byte_ends_reading(monkeypatch):
    set_stdin(monkeypatch, "ab\ncd\n".encode("utf-16") + b"\x00\xdc\n\0")
    actual = any_lines(None, "utf-16")
    assert error_message(DataError, lambda: list(actual)) == "standard input:3: invalid utf-16 (byte 0x00); convert it first"


def test_lines_before_a_read_error_are_answered(runs, capsys, monkeypatch):
    monkeypatch.setattr("weft.cli.input_lines.MAX_LINE_CHARS", 1000)
    set_stdin(monkeypatch, b"abc\n" + b"x" * 200_000 + b"\nabc\n")
    message = "weft: error: standard input:2: line has more than 1,000 characters; is this text?\n"
    assert predicted(capsys, str(runs.run_dir("lstm"))) == (3, outputs(runs, "abc"), message)


def test_batches_are_full_and_ordered_and_end_with_the_input():
    assert list(batched(iter(range(5)), 2)) == [[0, 1], [2, 3], [4]]

    def items():
        yield 1
        raise DataError("", "no more")

    actual = batched(items(), 5)
    assert next(actual) == [1]
    with pytest.raises(DataError, match="no more"):
        next(actual)


# ---- outputs that are no lines


def test_an_output_with_a_newline_is_printed_on_one_line(runs, capsys, monkeypatch):
    prediction = Prediction("A\nB\0\nC", [3, 4, 2], -1.0, -3.0)
    monkeypatch.setattr("weft.tasks.seq2seq.decoding.Seq2SeqPredictor.search", lambda self, prepared, *rest: [prediction])
    folder = str(runs.run_dir("lstm"))
    assert predicted(capsys, folder, "abc") == (0, ["A\\nB\\0\\nC"], "")
    assert predicted(capsys, folder, "abc", "--n-best", "2") == (0, ["1\t-1.0000\tA\\nB\\0\\nC"], "")
    assert json.loads(predicted(capsys, folder, "abc", "--json")[1][0])["predictions"][0]["text"] == "A\nB\0\nC"


def test_unknown_characters_are_reported_once(runs, capsys, monkeypatch):
    folder = str(runs.run_dir("lstm"))
    monkeypatch.setattr("weft.tasks.encoder_decoder.lines.OutputLines.batch_size", 2)
    set_stdin(monkeypatch, "xa\nyxx\nab\nzü\u202e\n".encode())
    code, actual, message = predicted(capsys, folder)
    assert (code, len(actual)) == (0, 4)
    assert message == "weft: warning: 7 tokens are not in the vocabulary, read as <unk>: x, y, z, ...\n"
    set_stdin(monkeypatch, b"x\x1b\n")
    assert predicted(capsys, folder)[2] == "weft: warning: 2 tokens are not in the vocabulary, read as <unk>: x, \\u{1b}\n"
    for option, message in ([], "weft: warning: 1 token is not in the vocabulary, read as <unk>: x\n"), (["--quiet"], ""):
        set_stdin(monkeypatch, b"xa\n")
        assert predicted(capsys, folder, *option)[2] == message


def test_the_ensemble_member_with_most_unknowns_is_reported(runs):
    assert load(runs.run_dir("lstm"), SEQ2SEQ).predictor.unknown_tokens(["abx", "", "ay"]) == ["x", "y"]
    ensemble = weft.ensemble([runs.run_dir("lstm"), runs.run_dir("transformer")], device="cpu")
    assert ensemble.predictor.unknown_tokens(["abx", "", "ay"]) == ["x", "y"]


# ---- pairs that are too long, and where they stand


def test_evaluation_names_the_file_and_line_before_decoding(runs, capsys, monkeypatch, tmp_path):
    path, folder = tmp_path / "long.tsv", str(runs.run_dir("learned"))
    path.write_text(f"source\ttarget\nabc\tA BB C\n{'ab' * 10}\tA BB\n")
    monkeypatch.setattr("weft.tasks.encoder_decoder.predictor.search", lambda *rest, **named: pytest.fail("it searched"))
    fix = "21 tokens exceed the model's limit of 16; shorten it or set --truncate"
    assert expect_error(capsys, "evaluate", folder, "--data", str(path)) == (3, f"{path}:3: {fix}")
    path.write_text(f"abc\tA BB C\nab\t{'A ' * 20}\n")
    fix = "21 target tokens exceed the model's limit of 16; shorten it"
    assert expect_error(capsys, "evaluate", folder, "--data", str(path)) == (3, f"{path}:2: {fix}")


def test_long_sources_are_truncated_on_request_everywhere(runs, capsys, monkeypatch, tmp_path):
    folder, run = str(runs.run_dir("lstm")), load(runs.run_dir("lstm"), SEQ2SEQ, device="cpu")
    path = tmp_path / "long.tsv"
    path.write_text(f"abc\tA BB C\n{'ab' * 10}\tA BB\n")
    assert main(["evaluate", folder, "--data", str(path), "--truncate", "--quiet", "--json"]) == 0
    scores = {score["name"]: score["value"] for score in json.loads(capsys.readouterr().out)["scores"]}
    assert scores["loss"] == pytest.approx(
        {s.name: s.value for s in run.evaluate(path, PredictionConfig(truncate=True))}["loss"]
    )
    set_stdin(monkeypatch, path.read_bytes())
    assert main(["score", folder, "--truncate", "--quiet"]) == 0
    truncated = run.score([("ab" * 10, "A BB")], truncate=True)[0].log_prob
    assert float(capsys.readouterr().out.split("\n")[1].split("\t")[0]) == pytest.approx(truncated, abs=1e-4)


def test_scoring_errors_count_lines_across_batches(runs, capsys, monkeypatch):
    folder = str(runs.run_dir("learned"))
    monkeypatch.setattr("weft.cli.commands.score.BATCH_LINES", 2)
    set_stdin(monkeypatch, b"a\tA\n" * 2 + b"a\tA\n" + b"ab" * 10 + b"\tA\n")
    assert main(["score", folder, "--quiet"]) == 3
    fix = "21 tokens exceed the model's limit of 16; shorten it or set --truncate"
    assert capsys.readouterr().err == f"weft: warning: line 4: {fix}; skipped\n"
    set_stdin(monkeypatch, b"a\tA\n" * 2 + b"a\t" + b"A " * 20 + b"\n")
    assert main(["score", folder, "--quiet"]) == 3
    assert capsys.readouterr().err == (
        "weft: warning: line 3: 21 target tokens exceed the model's limit of 16; shorten it; skipped\n"
    )


MIXED = b"abc\tA BB C\nabc\n" + b"ab" * 10 + b"\tA\na\tb\tc\na\xff\tA\nab\tA BB\n"


def test_an_invalid_pair_does_not_affect_other_scores(runs, capsys, monkeypatch):
    folder = str(runs.run_dir("lstm"))
    first, last = load(folder, SEQ2SEQ, device="cpu").score([("abc", "A BB C"), ("ab", "A BB")])
    set_stdin(monkeypatch, MIXED)
    code = main(["score", folder, "--quiet"])
    out, error = capsys.readouterr()
    assert code == 3 and error.split("\n") == [
        "weft: warning: line 2: expected a source, a tab and a target, got 0 tabs; skipped",
        "weft: warning: line 3: 21 tokens exceed the model's limit of 16; shorten it or set --truncate; skipped",
        "weft: warning: line 4: expected a source, a tab and a target, got 2 tabs; skipped",
        "weft: warning: standard input:5: invalid utf-8 (byte 0xff); convert it first; skipped",
        "",
    ]
    rows = out.split("\n")
    assert rows[1:5] == [""] * 4 and len(rows) == 7
    assert [float(rows[index].split("\t")[0]) for index in (0, 5)] == pytest.approx([first.log_prob, last.log_prob], abs=1e-4)


def test_an_invalid_pair_has_an_error_and_no_tokens_in_json(runs, capsys, monkeypatch):
    folder = str(runs.run_dir("lstm"))
    set_stdin(monkeypatch, b"abc\n\xff\n")
    assert main(["score", folder, "--quiet", "--json", "--per-token"]) == 3
    odd, broken = map(json.loads, capsys.readouterr().out.split("\n")[:-1])
    none = {"log_prob": None, "perplexity": None, "tokens": []}
    assert odd == {"text": "abc", **none, "error": "expected a source, a tab and a target, got 0 tabs"}
    error = "standard input:2: invalid utf-8 (byte 0xff); convert it first"
    assert broken == {"text": None, **none, "error": error}


def test_an_invalid_line_does_not_affect_other_scores_of_a_language_model(runs, capsys, monkeypatch):
    set_stdin(monkeypatch, b"A BB\nA\0\nC\n")
    assert main(["score", str(runs.run_dir("lm-ngram")), "--quiet"]) == 3
    out, error = capsys.readouterr()
    assert error == "weft: warning: standard input:2: NUL character; is this binary data?; skipped\n"
    assert [line.split("\t")[-1] for line in out.split("\n")] == ["A BB", "", "C", ""]


def test_truncate_is_rejected_for_language_models(runs, capsys):
    lm = str(runs.run_dir("lm-ngram"))
    message = "--truncate: not available for task 'lm'"
    assert expect_error(capsys, "score", lm, "--truncate") == (2, message)
    assert expect_error(capsys, "evaluate", lm, "--truncate", "--data", str(runs.directory / "phones.txt")) == (2, message)


# ---- what is asked for wrongly


def test_alignments_are_rejected_before_reading_input(runs, capsys, monkeypatch):
    monkeypatch.setattr("weft.cli.input_lines.any_lines", lambda *rest: pytest.fail("it read"))
    message = "--save-alignments: the model has no cross-attention; train one with model.attention = 'additive'"
    assert expect_error(capsys, "predict", str(runs.run_dir("sutskever")), "--save-alignments", "looks") == (2, message)


def test_lm_weight_must_be_positive(runs, capsys):
    lstm, lm = str(runs.run_dir("lstm")), str(runs.run_dir("lm-ngram"))
    for weight in ("0", "-1", "nan", "inf"):
        message = f"--lm-weight: must be above 0, got {weight}; leave out --lm to predict without a language model"
        assert expect_error(capsys, "predict", lstm, "abc", "--lm", lm, "--lm-weight", weight) == (2, message)


def test_min_new_tokens_beyond_the_last_position_is_rejected(runs, capsys):
    folder = str(runs.run_dir("learned"))
    message = "--min-new-tokens: the model has positions for {} new tokens, got {}"
    assert expect_error(capsys, "predict", folder, "abc", "--min-new-tokens", "17") == (2, message.format(16, 17))
    assert expect_error(capsys, "predict", folder, "abc", "--min-new-tokens", "15", "--target-prefix", "A BB") == (
        2,
        message.format(14, 15),
    )
    run = load(folder, SEQ2SEQ, device="cpu")
    assert len(run.predict("abc", min_new_tokens=16).token_ids) == 16
    assert len(run.predict("abc", min_new_tokens=14, target_prefixes=["A BB"]).token_ids) == 14


def test_one_of_two_parallel_files_is_rejected(runs, capsys):
    lstm, half = str(runs.run_dir("lstm")), str(runs.directory / "phones.txt")
    message = (
        f"--data: {half} is not a table (.tsv, .csv, .xlsx, .jsonl, .json or .parquet); use a table, or one file of sources and"
        " one of targets"
    )
    for command in (["evaluate"], ["analyze", "geometry"]):
        assert expect_error(capsys, *command, lstm, "--data", half) == (2, message)


def test_a_header_in_different_case_is_not_read_as_data(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("ID\tSource\tTARGET \n1\tabc\tA BB C\n")
    message = f"{path}:1: the header does not have exactly the names 'source' and 'target'; rename the columns, or set "
    message += "data.source_column = 'Source' and data.target_column = 'TARGET '"

    def read(columns: tuple[str, str]) -> list[str]:
        return [record.target for record in read_records([path], columns, TableOptions(), FileSummary([path], "utf-8"))]

    assert error_message(DataError, lambda: read(("source", "target"))) == message
    assert read(("Source", "TARGET ")) == ["A BB C"]


def test_init_from_a_directory_with_an_apostrophe(runs, tmp_path, capsys):
    values = seq2seq_run_file(make_pairs(tmp_path / "pairs.tsv"), "luong", "train.max_steps=2")
    values["tokenizer"] = {"type": "char"}
    odd = train_here(values, tmp_path / "it's" / 'a "run"').path
    run_file = tmp_path / "run.toml"
    run_file.write_text((odd / "resolved.toml").read_text())
    assert main(["train", str(run_file), "--output-dir", str(tmp_path / "new"), "--init-from", str(odd), "--quiet"]) == 0
    assert (tmp_path / "new" / "model.safetensors").exists()


@pytest.mark.parametrize("option", ["--init-from", "--tokenizer-from"])
def test_a_run_cannot_overwrite_the_run_it_starts_from(runs, tmp_path, capsys, option):
    run = Path(shutil.copytree(runs.run_dir("lstm"), tmp_path / "run"))
    shutil.copy(run / "resolved.toml", tmp_path / "run.toml")
    names = sorted(path.name for path in run.iterdir())
    code, message = expect_error(
        capsys, "train", str(tmp_path / "run.toml"), "--output-dir", str(run), option, str(run), "--overwrite", "--quiet"
    )
    eaten = run if option == "--init-from" else run / "tokenizer.source.json"
    assert (code, message) == (
        2,
        f"{run}: --overwrite would delete {eaten}, which this run needs; choose another --output-dir",
    )
    assert sorted(path.name for path in run.iterdir()) == names


def test_swapped_tokenizers_are_named(runs, tmp_path):
    folder = Path(shutil.copytree(runs.run_dir("lstm"), tmp_path / "run"))
    shutil.copy(folder / "tokenizer.source.json", folder / "tokenizer.target.json")
    names = f"{folder / 'tokenizer.source.json'} or {folder / 'tokenizer.target.json'}"
    assert error_message(ModelError, lambda: weft.load(folder).model) == (
        f"{names}: not the file that the weights were trained with"
    )


# ---- files that were cut


@pytest.mark.parametrize("keep", [1, 4, 11, -1])
def test_truncated_zstd_data_is_rejected(tmp_path, keep):
    zstandard = pytest.importorskip("zstandard")
    packed, path = zstandard.compress(b"a line\n" * 1000), tmp_path / "pairs.tsv.zst"
    path.write_bytes(packed[:keep])
    message = f"{path}: corrupted or not .zst data: compressed file ended in the middle of a frame"
    assert error_message(DataError, lambda: list(read_bytes(path))) == message
    path.write_bytes(packed + packed[:keep])  # also after a complete frame
    assert error_message(DataError, lambda: list(read_bytes(path))) == message
    path.write_bytes(packed * 3)
    assert b"".join(read_bytes(path)) == b"a line\n" * 3000


# ---- memory


def test_memory_is_measured_on_a_proportional_crop():
    """If only the source were cropped, the memory of the target would be multiplied, and pairs that fit would be rejected."""
    batch = PairBatch(*(torch.zeros(8, size, dtype=torch.long) for size in (4000, 4000, 101, 101)))
    corner = crop_batch(batch, Fraction(1000, 4000))
    assert [tuple(part.shape) for part in corner] == [(8, 1000), (8, 1000), (8, 26), (8, 26)]
    short = map_tensors(batch, lambda part: part[:, :2])
    assert [part.size(1) for part in crop_batch(short, Fraction(1, 2))] == [2, 2, 2, 2]


def test_a_long_source_does_not_inflate_the_target(monkeypatch):
    """A dummy learner that needs much memory per target position and little per source position."""
    sizes = []

    def bytes_of(learner: Any, batch: PairBatch, position: DeviceConfig) -> int:
        sizes.append((batch.source.size(1), batch.tokens.size(1)))
        return batch.source.size(1) + 1000 * batch.tokens.size(1)

    monkeypatch.setattr(memory, "batch_bytes", bytes_of)
    monkeypatch.setattr(memory, "free_device_memory", lambda device: 150_000)
    monkeypatch.setattr(memory, "OVERHEAD", {"cpu": 1.0})
    monkeypatch.setattr(memory, "MAX_OVERHEAD_BYTES", {"cpu": 0})
    batch = PairBatch(*(torch.zeros(1, size, dtype=torch.long) for size in (4096, 4096, 100, 100)))
    table = TrainConfig(max_steps=1).with_defaults()
    widest, position = partial(crop_batch, batch), DeviceConfig(torch.device("cpu"), torch.float32)
    needed = memory.check_batch(torch.nn.Module(), widest, table, position)  # type: ignore[arg-type]
    assert 4096 + 100 * 1000 <= needed <= 150_000 and sizes[0] == (1024, 25)


# ---- progress


def test_progress_of_reading_is_reported(runs, monkeypatch):
    run, calls = weft.load(runs.run_dir("lm-ngram")), []

    def progress(what: str, done: int, total: int) -> None:
        if what == "tokenizing":
            calls.append((done, total))

    run.evaluate(runs.directory / "phones.txt", progress=progress)
    assert calls and calls[-1][0] == calls[-1][1] > 0
    updates = []
    monkeypatch.setattr("weft.cli.display.Display.show", lambda self, what, share, detail="": updates.append(what))
    assert Evaluate(run_dir=runs.run_dir("lstm"), device="cpu", beam_size=1).run() == 0
    assert updates[0] == "reading" and updates[-1] == "evaluating"
    assert Evaluate(run_dir=runs.run_dir("lm-ngram"), data=[runs.directory / "phones.txt"]).run() == 0
    assert "tokenizing" in updates
