"""Question-answering models: answer search by brute force, training, resuming, fine-tuning, and the commands."""

from __future__ import annotations

import json
import math
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import expect_error, set_stdin
from small_runs import SilentCallback, make_text, run_hashes, train_here
from toy_qa import make_questions, qa_run_file, write_squad, write_tsv

import weft
from weft.cli.main import main
from weft.config import parse_config
from weft.data.corpus import corpus_from_lines
from weft.errors import ConfigError, DataError, TrainingInterrupted
from weft.models.encoder import EncoderInput
from weft.models.encoder_config import QAConfig
from weft.models.qa import QAHead, QANetwork, answer_mask, qa_network
from weft.runs.job import with_tokenizer_from
from weft.runs.resolve import resolve
from weft.runs.run import AnyRun
from weft.tasks.qa.batching import QAExamples
from weft.tasks.qa.objective import QAObjective, WindowScores, best_span, best_spans
from weft.tasks.qa.presets import PRESETS as SPAN
from weft.tensors import read_tensors
from weft.text.tokenizers import from_vocab

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
CPU = torch.device("cpu")
PASSAGE = "ada ben has a red cat in rome ."


class Runs:
    """Run directories by architecture, each trained on first use."""

    def __init__(self, place: Path) -> None:
        self.directory, self.data = place, write_tsv(place / "asked.tsv", make_questions())

    def run_dir(self, arch: str, *settings: str) -> Path:
        folder = self.directory / "-".join([arch, *settings]).replace("/", "_")
        if not folder.exists():
            train_here(qa_run_file(self.data, arch, *settings), folder)
        return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("runs"))


def loaded(folder: Path) -> AnyRun:
    run = weft.load(folder, device="cpu")
    assert run.task == "qa"
    return run


def values_of(run: AnyRun, data: Any = None) -> dict[str, float]:
    return {score.name: score.value for score in run.evaluate(data)}


# ---- the model


def make_model(arch: str = "lstm", **options: Any) -> QANetwork:
    torch.manual_seed(0)
    table = parse_config(
        QAConfig, {**SPAN[arch].values, "hidden_size": 16, "num_layers": 1, "dropout": 0.0, **options}, prefix="model"
    )
    return qa_network(table.with_defaults(), vocab_size=23, max_positions=16).eval()


def make_passages(*, longest: int = 12, stride: int = 3, count: int = 5) -> QAExamples:
    tokenizer = from_vocab([f"w{index}" for index in range(19)])
    rng = np.random.default_rng(0)

    def texts(max_words: int) -> list[str]:
        return [" ".join(f"w{index}" for index in rng.integers(0, 19, rng.integers(1, max_words))) for _ in range(count)]

    return QAExamples(
        corpus_from_lines(tokenizer, texts(5)),
        corpus_from_lines(tokenizer, texts(25)),
        np.full((count, 2), -1),
        longest,
        stride,
    )


@pytest.mark.parametrize("arch", SPAN)
def test_answers_are_in_the_passage_and_padding_changes_nothing(arch):
    model, data = make_model(arch), make_passages()
    batch = data.batch(np.arange(4))
    with torch.no_grad():
        scores = model(EncoderInput(*batch[:3]))
    rows = zip(data.passage_positions(np.arange(4)).tolist(), data.windows.size[:4].tolist(), strict=True)
    for row, (before, size) in enumerate(rows):
        finite = torch.isfinite(scores[row, :, 0]).nonzero()[:, 0].tolist()
        assert finite == [0, *range(before, before + size)]
        alone = data.batch(np.array([row]))
        with torch.no_grad():
            row_logits = model(EncoderInput(*alone[:3]))[0]
        torch.testing.assert_close(scores[row, : len(row_logits)], row_logits, atol=2e-5, rtol=1e-4)


def test_loss_covers_start_and_end_and_reaches_every_parameter():
    model, data = make_model("transformer"), make_passages()
    batch = data.batch(np.arange(4))._replace(spans=torch.tensor([[0, 0], [0, 0], [7, 8], [0, 0]]))
    text = EncoderInput(*batch[:3])
    task = QAObjective(valid=None, max_answer_length=3, device=CPU)
    loss = task.loss(model, batch, None)
    loss.total.backward()
    assert all(weight.grad is not None and torch.isfinite(weight.grad).all() for weight in model.parameters())
    scores, total = model(text).detach(), 0.0
    for row, (first, last) in enumerate(batch.spans.tolist()):
        for column, index in enumerate((first, last)):
            weights = scores[row, :, column].exp()
            total -= math.log(weights[index] / weights.sum())
    assert loss.total.item() == pytest.approx(total, rel=1e-5)
    assert int(loss.count) == 4 and task.validate(model) is None


def test_without_a_passage_there_is_no_answer():
    tokens = torch.tensor([[1, 5, 6, 2]])
    assert answer_mask(EncoderInput(tokens, torch.ones_like(tokens, dtype=torch.bool))).tolist() == [
        [True, False, False, False]
    ]
    head = QAHead(4)
    assert head.threshold.item() == 0.0 and "threshold" not in dict(head.named_parameters())


# ---- the best answer


def enumerated(windows: list[WindowScores], max_answer_length: int) -> tuple[dict[tuple[int, int], float], float]:
    """Scores of every answer by enumeration, and the total over all answers and no answer."""
    actual: dict[tuple[int, int], float] = {}
    for begin, first, last in windows:
        for low, high in product(range(len(first)), repeat=2):
            if low <= high < low + max_answer_length:
                key, value = (begin + low, begin + high), float(first[low] + last[high])
                actual[key] = max(actual.get(key, -math.inf), value)
    return actual, 1.0 + sum(map(math.exp, actual.values()))


@pytest.mark.parametrize("max_answer_length", [1, 3, 50])
@pytest.mark.parametrize("seed", range(4))
def test_best_answer_over_overlapping_windows_is_the_global_optimum(seed, max_answer_length):
    rng = np.random.default_rng(seed)
    windows = [WindowScores(begin, rng.normal(size=6), rng.normal(size=6)) for begin in (0, 2, 4, 9)]
    every, total = enumerated(windows, max_answer_length)
    first, last, margin, log_total = best_span(windows, max_answer_length)
    assert every[(first, last)] == pytest.approx(max(every.values())) == pytest.approx(margin)
    assert log_total == pytest.approx(math.log(total))
    assert sum(math.exp(value - log_total) for value in every.values()) + math.exp(-log_total) == pytest.approx(1.0)
    assert best_span([WindowScores(0, np.zeros(0), np.zeros(0))], max_answer_length) == (0, 0, -np.inf, 0.0)


def test_batches_of_windows_equal_each_window_alone():
    model, data = make_model("gru"), make_passages(count=9)
    assert len(data.windows.question) > 15
    with torch.inference_mode():
        actual = best_spans(model, data, max_answer_length=3, device=CPU)
        for number in range(9):
            windows = []
            for index in np.flatnonzero(data.windows.question == number).tolist():
                scores = model(EncoderInput(*data.batch(np.array([index]))[:3]))[0].double().numpy()
                low = int(data.question_lengths[number]) + 2
                part = (scores - scores[:1])[low : low + int(data.windows.size[index])]
                windows.append(WindowScores(int(data.windows.start[index]), part[:, 0], part[:, 1]))
            every, total = enumerated(windows, 3)
            assert every[(int(actual.first[number]), int(actual.last[number]))] == pytest.approx(
                actual.log_odds[number], abs=1e-5
            )
            assert actual.log_odds[number] == pytest.approx(max(every.values()), abs=1e-5)
            assert actual.log_totals[number] == pytest.approx(math.log(total), abs=1e-5)


# ---- training


@pytest.mark.parametrize("arch", ["lstm", "transformer"])
def test_qa_models_learn_answers_and_no_answer(runs, arch):
    run = loaded(runs.run_dir(arch))
    actual = values_of(run)
    assert actual["exact_match"] > 90 and actual["f1"] > 90
    questions = ["who has it ?", "where is it ?", "which colour has it ?", "what is it ?"]
    predictions = run.predict([(question, PASSAGE) for question in questions])
    assert [answer.text for answer in predictions] == ["ada ben", "rome", "red", "cat"]
    for answer in predictions:
        assert answer.text == PASSAGE[answer.start : answer.end] and 0.3 < answer.probability <= 1
    none = run.predict(("where is it ?", "ada has a red cat today ."))
    assert none[:3] == ("", None, None) and 0 < none.probability <= 1


@pytest.mark.parametrize("arch", [arch for arch in SPAN if arch not in ("lstm", "transformer")])
def test_every_other_architecture_trains_and_answers(runs, arch):
    run = loaded(runs.run_dir(arch, "train.max_steps=12", "train.num_validations=1", "data.test=0.05"))
    assert set(values_of(run)) == {"f1", "exact_match", "f1_has_answer", "accuracy_no_answer"}
    assert run.info()["arch"] == arch and run.info()["parameters"] > 1000


def test_a_resumed_run_equals_an_uninterrupted_run(runs, tmp_path):
    values = qa_run_file(
        runs.data, "transformer", "train.max_steps=8", "train.num_validations=4", "model.dropout=0.2", "data.max_length=20"
    )
    train_here(values, tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        train_here(values, tmp_path / "cut", SilentCallback(stop_at=5))
    again = SilentCallback()
    train_here(values, tmp_path / "cut", again)
    assert again.notes == ["resuming at step 5"]
    assert run_hashes(tmp_path / "cut") == run_hashes(tmp_path / "whole")


def test_threshold_is_fitted_on_validation_data_and_saved_with_the_weights(runs, tmp_path):
    folder = runs.run_dir("lstm")
    saved = read_tensors(folder / "model.safetensors")[0]["head.threshold"]
    run = loaded(folder)
    assert saved.item() != 0 and math.isfinite(saved.item()) and run.predictor.threshold == pytest.approx(saved.item())
    valid = list(run.config.datasets["valid"].records())
    pairs = [(record.question, record.passage) for record in valid]
    references = [[answer.text for answer in record.answers] for record in valid]

    def right(threshold: float) -> float:
        run.model.head.threshold.fill_(threshold)
        return float(sum(answer.text in (texts or [""]) for answer, texts in zip(run.predict(pairs), references, strict=True)))

    assert right(saved.item()) >= max(right(value) for value in (-9.0, -2.0, 0.0, 2.0, 9.0))
    assert right(math.inf) == sum(not texts for texts in references)
    # if every question has an answer, "no answer" is never predicted
    every = write_tsv(tmp_path / "all.tsv", make_questions(60, unanswerable=0.0))
    sure = loaded(train_here(qa_run_file(every, "gru", "train.max_steps=2"), tmp_path / "run").path)
    assert sure.predictor.threshold == -math.inf
    assert set(values_of(sure)) == {"f1", "exact_match"}
    assert all(answer.text for answer in sure.predict([("where is it ?", "we have a new one today .")]))


def test_long_passages_are_read_in_windows(runs, tmp_path):
    """Trained on short passages, tested on one of three hundred words: windows without the answer predict no answer."""
    longer = [(q, f"today we have one . {p} today we have one .", a) for q, p, a in make_questions(700, seed=5)]
    data = write_tsv(tmp_path / "long.tsv", longer)
    values = qa_run_file(data, "transformer", "data.max_length=22", "data.doc_stride=8")
    run = loaded(train_here(values, tmp_path / "run").path)
    assert values_of(run)["exact_match"] > 85
    filler = "today we have one . "
    passage = filler * 30 + PASSAGE + " " + filler * 30
    answer = run.predict(("which colour has it ?", passage))
    assert (answer.text, answer.start) == ("red", passage.index("red"))


def test_questions_that_cannot_be_learned_are_reported(tmp_path):
    rows = [("w " * 9 + "?", "a b c d e f g h i j k l m n o p", "e f g h i j")] * 20
    data, callback = write_tsv(tmp_path / "a.tsv", rows), SilentCallback()
    settings = ("data.max_length=12", "data.doc_stride=5", "train.max_steps=1")
    train_here(qa_run_file(data, "lstm", *settings), tmp_path / "run", callback)
    assert callback.notes[1:] == [
        "train: 14 questions have more than half of data.max_length (12) and are truncated",
        "valid: 3 questions have more than half of data.max_length (12) and are truncated",
        "test: 3 questions have more than half of data.max_length (12) and are truncated",
        "train: 14 answers have more than data.max_answer_length = 4 tokens; longer answers are never predicted",
        "train: 14 answers are in no window; lower data.doc_stride or increase data.max_length",
    ]


def test_squad_files_train_the_same_weights_as_tables(runs, tmp_path):
    rows = make_questions(80)
    files = [write_tsv(tmp_path / "a.tsv", rows), write_squad(tmp_path / "a.json", rows)]
    folders = [train_here(qa_run_file(path, "gru", "train.max_steps=3"), tmp_path / path.suffix[1:]).path for path in files]
    one, other = (read_tensors(folder / "model.safetensors")[0] for folder in folders)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert values_of(loaded(folders[0]), files[1]) == values_of(loaded(folders[1]), files[0])


@pytest.mark.parametrize("settings", [("train.optimizer=muon", "train.micro_batches=3"), ("train.precision=bfloat16",)])
def test_other_training_options_learn_too(runs, settings):
    folder = runs.run_dir("transformer", *settings, "train.max_steps=30", "train.num_validations=1")
    losses = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().split("\n")[:-1]]
    trained = [row["train_loss"] for row in losses if "train_loss" in row]
    assert trained[-1] < 0.8 * trained[0]


def test_incompatible_options_are_rejected(runs, tmp_path):
    with pytest.raises(ConfigError) as caught:
        resolve(qa_run_file(runs.data, "lstm", "train.label_smoothing=0.1"), base=Path())
    assert str(caught.value) == "train.label_smoothing: not available for task 'qa'; remove it"
    every = write_tsv(tmp_path / "all.tsv", make_questions(40, unanswerable=0.0))
    with pytest.raises(ConfigError) as caught:
        train_here(qa_run_file(every, "lstm", "train.monitor=accuracy_no_answer"), tmp_path / "run")
    assert str(caught.value) == (
        "train.monitor: 'accuracy_no_answer' needs questions with and without an answer in data.valid; use 'f1'"
    )


# ---- starting from another run


def test_a_masked_lm_initializes_a_qa_model(runs, tmp_path):
    text = make_text(tmp_path / "text.txt")
    values = {
        "task": "masked-lm",
        "data": {"train": str(text), "read_as": "lines", "context_length": 64},
        "tokenizer": {"type": "wordpiece", "vocab_size": 200},
        "model": {"arch": "bert", "hidden_size": 32, "num_layers": 2, "segment_embeddings": True},
        "train": {"max_steps": 2, "batch_tokens": 256, "device": "cpu"},
    }
    first = train_here(values, tmp_path / "bert").path
    still = ("train.max_steps=1", "train.lr=1e-30", "train.ema_decay=0", f"train.init_from={first}")
    callback = SilentCallback()
    folder = train_here(with_tokenizer_from(qa_run_file(runs.data, "bert", *still), first), tmp_path / "run", callback).path
    before, after = (read_tensors(path / "model.safetensors")[0] for path in (first, folder))
    copied = [name for name in after if name.startswith("encoder.")]
    assert all(torch.equal(before[name], after[name]) for name in copied)
    (message,) = [note for note in callback.notes if note.startswith("Initialized ")]
    assert message.startswith(f"Initialized {len(copied)} tensors from {first}; not in {first}: head.")
    assert loaded(folder).predict(("who has it ?", PASSAGE))


# ---- from Python


def test_item_statistics_add_up_and_contain_the_answers(runs):
    run = loaded(runs.run_dir("lstm"))
    evaluation = run.evaluate(runs.data)
    scores, items = list(evaluation), evaluation.items
    assert items.outputs is not None and len(items.outputs) == 1000
    assert scores[1].value == pytest.approx(100 * items.statistics["exact"].mean())
    records = [answer for _, _, answer in make_questions()]
    agree = np.array([said == answer for said, answer in zip(items.outputs, records, strict=True)])
    assert (agree == (items.statistics["exact"] > 0)).all()


def test_invalid_question_passage_pairs_are_rejected(runs):
    run = loaded(runs.run_dir("lstm"))
    assert run.predict([]) == []
    wrong: list[tuple[Any, str]] = [
        (["who ?"], "line 1: expected a tuple of a question and a passage"),
        ([("who ?", "x"), ("who ?", "x", "y")], "line 2: expected a tuple of a question and a passage"),
        ([(" ", "x")], "line 1: empty question"),
        ([("who ?", "")], "line 1: empty passage"),
    ]
    for pairs, message in wrong:
        with pytest.raises(DataError) as caught:
            run.predict(pairs)
        assert str(caught.value) == message


def test_qa_models_embed_texts(runs):
    run = loaded(runs.run_dir("lstm"))
    vectors = run.embed(["ada has a cat .", "x"])
    assert vectors.shape == (2, 32) and np.isfinite(vectors).all()


def test_a_too_long_question_is_truncated_and_counted(runs):
    run = loaded(runs.run_dir("lstm"))
    predictions = run.predict([("who has it ? " * 40, PASSAGE), ("who has it ?", PASSAGE)])
    assert [item.truncated for item in predictions] == [True, False]
    # it is stored with the answer, not with the latest call
    run.predict([("who has it ?", PASSAGE)])
    assert predictions[0].truncated
    assert run.embed_with_info(["ada " * 100, "x"]).truncated.tolist() == [True, False]


# ---- the command line


def test_predict_lines_to_answers(runs, monkeypatch, capsys):
    folder = str(runs.run_dir("lstm"))
    set_stdin(monkeypatch, f"who has it ?\t{PASSAGE}\n\nwhere is it ?\tada has a red cat today .\n".encode())
    assert main(["predict", folder]) == 0
    assert capsys.readouterr() == ("ada ben\n\n\n", "")
    set_stdin(monkeypatch, f"what is it ?\t{PASSAGE}\n\nno tab\n".encode())
    assert main(["predict", folder, "--json"]) == 3
    captured = capsys.readouterr()
    rows = [json.loads(line) for line in captured.out.split("\n")[:-1]]
    wrong = "expected a question and a passage separated by a tab, got 1 text"
    assert captured.err == f"weft: warning: line 3: {wrong}; skipped\n"
    actual = rows[0].pop("probability")
    assert 0 < actual <= 1
    start = PASSAGE.index("cat")
    assert rows == [
        {"question": "what is it ?", "passage": PASSAGE, "answer": "cat", "start": start, "end": start + 3},
        dict.fromkeys(("question", "passage", "answer", "start", "end", "probability")),
        {"question": "no tab", **dict.fromkeys(("passage", "answer", "start", "end", "probability")), "error": wrong},
    ]
    assert main(["predict", folder, "who has it ? " * 40 + f"\t{PASSAGE}"]) == 0
    assert capsys.readouterr().err == "weft: warning: truncated 1 question that was too long for the model\n"


def test_evaluate_check_and_info_commands(runs, tmp_path, capsys):
    folder = str(runs.run_dir("lstm"))
    assert main(["evaluate", folder, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [score["name"] for score in data["scores"]] == ["f1", "exact_match", "f1_has_answer", "accuracy_no_answer"]
    assert data["data"] == [str(runs.data)]
    assert main(["info", folder]) == 0
    assert re.search("^Task +qa\nModel +lstm, ", capsys.readouterr().out, re.MULTILINE)
    (tmp_path / "run.toml").write_text(f'task = "qa"\n[data]\ntrain = "{runs.data}"\n[model]\narch = "lstm"\n')
    assert main(["check", str(tmp_path / "run.toml"), "--quiet"]) == 0
    out = capsys.readouterr().out
    assert re.fullmatch("train +1,000 .* question", out.split("\n")[1]) and "length" not in out


def test_unsupported_commands_are_rejected(runs, tmp_path, capsys):
    folder = str(runs.run_dir("lstm"))
    assert expect_error(capsys, "predict", folder, "x\ty", "--beam-size", "3") == (
        2, "--beam-size: not available for task 'qa'"
    )  # fmt: skip
    assert expect_error(capsys, "evaluate", folder, "--beam-size", "3") == (
        2, "--beam-size: not available for task 'qa'"
    )  # fmt: skip
    assert expect_error(capsys, "evaluate", folder, "--strict") == (
        2, "--strict: not available for task 'qa'"
    )  # fmt: skip
    assert expect_error(capsys, "generate", folder, "x") == (
        2, f"{folder}: is a question answering model; use weft predict"
    )  # fmt: skip
    bad = tmp_path / "bad.tsv"
    bad.write_text("question\tpassage\tanswer\nwho ?\tada has it .\tben\n")
    message = f"{bad}:2: answer 'ben' is not in the passage; copy it from the passage"
    assert expect_error(capsys, "evaluate", folder, "--data", str(bad), "--quiet") == (3, message)
    (tmp_path / "run.toml").write_text('task = "qa"\n[data]\ntrain = "bad.tsv"\n[model]\narch = "lstm"\n')
    assert expect_error(capsys, "train", str(tmp_path / "run.toml"), "--quiet", "--output-dir", str(tmp_path / "run")) == (
        3,
        message,
    )


def test_qa_head_parameter_names():
    names = {name for name, _ in make_model().named_parameters() if not name.startswith("encoder.")}
    assert names == {"head.ends.weight", "head.ends.bias"}  # distinct from the names of a two-label classifier
