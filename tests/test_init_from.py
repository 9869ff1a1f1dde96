"""Fine-tuning with `init_from`: copied weights, the reported differences, and rejected runs."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import tomli_w
import torch
from command_line import expect_error
from seq2seq_runs import Seq2SeqRuns, seq2seq_run_file
from small_runs import SilentCallback, make_text, run_file, run_hashes, train_here

from weft.cli.main import main
from weft.config import override
from weft.errors import ConfigError, TrainingInterrupted
from weft.runs.job import with_tokenizer_from, with_tokenizer_of_init
from weft.runs.load import ensemble, load
from weft.tasks.seq2seq.task import SEQ2SEQ
from weft.tensors import read_tensors

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
# a learning rate at which weights do not change: a run ends with its initial weights
STILL = ("train.lr=1e-30", "train.max_steps=1", "train.ema_decay=0", "train.weight_decay=0.0")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Seq2SeqRuns(tmp_path_factory.mktemp("runs"))


def from_run(runs: Seq2SeqRuns, run: Path, *settings: str, model: str = "lstm") -> dict:
    return with_tokenizer_from(override(seq2seq_run_file(runs.pairs, model), [f"train.init_from={run}", *settings]), run)


def error_message(runs: Seq2SeqRuns, out: Path, values: dict) -> str:
    with pytest.raises(ConfigError) as caught:
        train_here(values, out)
    return str(caught.value)


def test_a_run_starts_from_the_weights_of_another(runs, tmp_path):
    first = runs.run_dir("lstm")
    callback = SilentCallback()
    train_here(from_run(runs, first, *STILL), tmp_path / "run", callback)
    before, after = (read_tensors(folder / "model.safetensors")[0] for folder in (first, tmp_path / "run"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert f"Initialized {len(before)} tensors from {first}" in callback.notes


def test_new_and_unused_parameters_are_reported(runs, tmp_path):
    first, callback = runs.run_dir("lstm"), SilentCallback()
    train_here(from_run(runs, first, *STILL, "model.attention=none"), tmp_path / "run", callback)
    message = next(note for note in callback.notes if note.startswith("Initialized "))
    assert "; not in " not in message and "; unused: " in message and "attention" in message


def test_a_resumed_run_continues_from_its_own_weights(runs, tmp_path):
    values = from_run(runs, runs.run_dir("lstm"), "train.max_steps=6", "train.num_validations=1")
    train_here(values, tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        train_here(values, tmp_path / "cut", SilentCallback(stop_at=3))
    callback = SilentCallback()
    train_here(values, tmp_path / "cut", callback)
    assert run_hashes(tmp_path / "cut") == run_hashes(tmp_path / "whole")
    assert not any(note.startswith("Initialized ") for note in callback.notes)


def test_command_line_options_for_weights_and_tokenizers(runs, tmp_path, capsys):
    first = runs.run_dir("lstm")
    values = seq2seq_run_file(runs.pairs, "lstm", *STILL)
    (tmp_path / "run.toml").write_text(tomli_w.dumps({**values, "tokenizer": {"type": "byte"}}))
    assert main(["train", str(tmp_path / "run.toml"), "--output-dir", str(tmp_path / "run"), "--init-from", str(first)]) == 0
    assert f" tensors from {first}" in capsys.readouterr().err
    old, new = load(first, SEQ2SEQ, device="cpu"), load(tmp_path / "run", SEQ2SEQ, device="cpu")
    assert new.vocabulary.hash == old.vocabulary.hash
    assert new.predict(["abc"])[0].text == old.predict(["abc"])[0].text


def test_another_shape_is_rejected(runs, tmp_path):
    first = runs.run_dir("lstm")
    actual = error_message(runs, tmp_path / "run", from_run(runs, first, "model.hidden_size=32"))
    assert actual == (
        f"train.init_from: encoder.embedder.embedding.weight is 9x32 here and 9x24 in {first}; "
        "use its tokenizer (`tokenizer_from`) and its sizes, or set train.init_strict = false to skip it"
    )


def test_another_architecture_is_rejected(runs, tmp_path):
    text = make_text(tmp_path / "text.txt")
    train_here({**run_file(text, model="lstm"), "model": {"arch": "ngram"}, "train": {}}, tmp_path / "lm")
    values = override(seq2seq_run_file(runs.pairs), [f"train.init_from={tmp_path / 'lm'}"])
    assert error_message(runs, tmp_path / "run", values) == (
        f"train.init_from: no weights of {tmp_path / 'lm'} have the names of this model's weights"
    )


def test_a_directory_without_weights_is_rejected(runs, tmp_path):
    values = override(seq2seq_run_file(runs.pairs), [f"train.init_from={tmp_path}"])
    assert error_message(runs, tmp_path / "run", values) == (
        f"train.init_from: {tmp_path} is not a trained run (model.safetensors is missing); use a trained run directory"
    )


def test_ngram_models_cannot_be_initialized_from_a_run(tmp_path):
    values = override(run_file(make_text(tmp_path / "text.txt"), model="lstm"), ["train.init_from=x"])
    with pytest.raises(ConfigError) as caught:
        train_here({**values, "model": {"arch": "ngram"}, "train": {"init_from": "x"}}, tmp_path / "run")
    assert str(caught.value) == "train.init_from: not used with n-gram models; remove it"


# ---- the commands that tell a translating run from a language model


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    directory = tmp_path_factory.mktemp("lm")
    train_here(run_file(make_text(directory / "text.txt"), model="lstm"), directory / "run")
    return directory / "run"


def test_each_task_rejects_the_options_of_others(runs, lm, capsys):
    pairs = str(runs.run_dir("lstm"))
    assert expect_error(capsys, "evaluate", pairs, "--context", "carry") == (
        2,
        "--context: not available for task 'seq2seq'",
    )
    assert expect_error(capsys, "evaluate", str(lm), "--beam-size", "3") == (
        2,
        "--beam-size: not available for task 'lm'",
    )
    assert expect_error(capsys, "evaluate", pairs, "--lm-weight", "1") == (2, "--lm-weight: requires --lm")
    assert expect_error(capsys, "generate", pairs, "x") == (
        2,
        f"{pairs}: is a seq2seq model; use weft predict",
    )


def test_seq2seq_scores_lines_with_one_tab(runs, tmp_path, capsys):
    run, data = runs.run_dir("lstm"), tmp_path / "pairs.tsv"
    data.write_text("abc\tA BB C\nb\tB\n")
    assert main(["score", str(run), "--input", str(data)]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    model = load(run, SEQ2SEQ, device="cpu")
    assert [row[:2] for row in rows] == [["abc", "A BB C"], ["b", "B"]]
    assert [float(row[2]) for row in rows] == pytest.approx(
        [score.log_prob for score in model.score([("abc", "A BB C"), ("b", "B")])], abs=1e-4
    )
    data.write_text("abc\tA BB C\nb\n")
    assert main(["score", str(run), "--input", str(data)]) == 3
    captured = capsys.readouterr()
    assert captured.err.endswith(f"weft: warning: {data}:2: expected 2 tab-separated columns, got 1: 'b'; skipped\n")
    assert captured.out.startswith("abc\tA BB C\t-") and captured.out.split("\n")[1] == "b\t\t\t"


def test_evaluate_prints_every_score_and_signature(runs, capsys):
    assert main(["evaluate", str(runs.run_dir("lstm")), "--beam-size", "2", "--all", "--signature"]) == 0
    out = capsys.readouterr().out
    for name in ("exact match", "token error rate", "BLEU", "chrF", "loss (nats/token)"):
        assert f"\n{name}" in out
    assert "search:beam:2/alpha:1" in out and "tok:none" in out  # targets are split by spaces


def test_signature_names_the_ensemble(runs):
    lstm, luong, lm = (runs.run_dir(name) for name in ("lstm", "luong", "lm-ngram"))
    pair = list(ensemble([lstm, luong], device="cpu").evaluate())
    assert "|search:beam:5/alpha:1/patience:2/runs:2|" in pair[0].signature and pair[-1].name == "perplexity"
    fused = list(ensemble([lstm], lm=lm, lm_weight=0.25, device="cpu").evaluate())
    which = hashlib.sha256((lm / "model.safetensors").read_bytes()).hexdigest()[:8]
    assert f"|search:beam:5/alpha:1/patience:2/lm:{which}*0.25|" in fused[0].signature
    uneven = list(ensemble([lstm, luong], weights=[0.75, 0.25], device="cpu").evaluate(beam_size=1, min_new_tokens=2))
    assert "|search:greedy/least:2/runs:2/weights:0.75,0.25|" in uneven[0].signature
    # with shallow fusion, targets have no normalized probability
    assert [score.name for score in fused] == [
        "exact_match",
        "token_error_rate",
        "character_error_rate",
        "bleu",
        "bleu_lc",
        "chrf",
    ]


# ---- a language model starts a decoder, a masked one an encoder


def test_a_language_model_initializes_a_decoder_on_the_command_line(runs, lm, tmp_path, capsys):
    """Its tokenizer becomes the target tokenizer; sources keep their own unless the tokenizer must be joint."""
    values = seq2seq_run_file(runs.pairs, "lstm", *STILL)
    values["model"] |= {"hidden_size": 8, "num_layers": 2, "attention": "none"}
    (tmp_path / "run.toml").write_text(tomli_w.dumps(values))
    assert main(["train", str(tmp_path / "run.toml"), "--output-dir", str(tmp_path / "run"), "--init-from", str(lm)]) == 0
    err = capsys.readouterr().err
    assert f"Initialized 11 tensors from {lm}; not in {lm}: " in err and "unused" not in err
    theirs, ours = (read_tensors(folder / "model.safetensors")[0] for folder in (lm, tmp_path / "run"))
    assert torch.equal(ours["decoder.embedder.embedding.weight"], theirs["embedding.weight"])
    assert torch.equal(ours["head.head.weight"], theirs["head.weight"])
    model = load(tmp_path / "run", SEQ2SEQ, device="cpu")
    assert model.vocabulary.target.data == (lm / "tokenizer.json").read_bytes()
    assert model.vocabulary.source.hash != model.vocabulary.target.hash


def test_the_initialized_side_gets_the_tokenizer_of_the_run(runs, lm, tmp_path):
    file = {"file": str((lm / "tokenizer.json").resolve())}
    separate = {"source": {"type": "char"}, "target": {"type": "word"}}
    values = {"task": "seq2seq", "model": {"arch": "lstm"}, "tokenizer": separate}
    assert with_tokenizer_of_init(values, lm)["tokenizer"] == {"source": {"type": "char"}, "target": file}
    assert with_tokenizer_of_init({**values, "tokenizer": {"type": "bpe"}}, lm)["tokenizer"] == {
        "source": {"type": "bpe"},
        "target": file,
    }
    shared = {**values, "tokenizer": {"type": "bpe"}, "model": {"arch": "lstm", "share_embeddings": True}}
    assert with_tokenizer_of_init(shared, lm)["tokenizer"] == file
    assert with_tokenizer_of_init({"task": "lm", "model": {"arch": "lstm"}}, lm)["tokenizer"] == file
    one = {"task": "denoising", "model": {"arch": "transformer"}}  # has one tokenizer for both sides
    assert with_tokenizer_of_init(one, lm)["tokenizer"] == file
