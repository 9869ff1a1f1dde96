"""Taggers from data to tagged lines: training, resuming, loading, evaluation, and the command line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from command_line import expect_error, set_stdin
from label_runs import LabelRuns, tagged_sentences, tagging_run_file, write_conll
from small_runs import SilentCallback, run_hashes, train_here

import weft
from weft.cli.main import main
from weft.errors import ConfigError, DataError, ModelError, TrainingInterrupted, UsageError
from weft.metrics.tagging import Span, validate
from weft.models.tagger import TaggerInput
from weft.runs.job import with_tokenizer_from
from weft.runs.resolve import resolve
from weft.runs.run import AnyRun
from weft.tasks.tagging.network import allowed_transitions
from weft.tasks.tagging.presets import PRESETS as TAG
from weft.tensors import read_tensors
from weft.text.labels import LabelVocabulary

pytestmark = pytest.mark.usefixtures("restore_openmp_env")
QUICK = ("train.max_steps=2", "train.num_validations=1")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return LabelRuns(tmp_path_factory.mktemp("runs"))


def loaded(folder: Path) -> AnyRun:
    run = weft.load(folder, device="cpu")
    assert run.task == "tagging"
    return run


def values_of(run: AnyRun, data: Any = None) -> dict[str, float]:
    return {score.name: score.value for score in run.evaluate(data)}


# ---- training


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in ("lstm", "transformer") else pytest.mark.slow) for kind in TAG]
)
def test_every_architecture_tags_names(runs, kind):
    run = loaded(runs.run_dir(f"spans-{kind}"))
    actual = values_of(run)
    assert actual["span_f1"] >= 90
    assert actual["oov_accuracy"] >= 90  # names are OOV, but predictable from the preceding word
    prediction = run.predict("the old mr dcbfo here")
    assert prediction.words == ["the", "old", "mr", "dcbfo", "here"]
    assert prediction.tags == ["O", "O", "O", "B-PER", "O"]
    assert prediction.spans == [Span("PER", 3, 4)]


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_unknown_words_are_tagged_by_their_characters(runs, kind):
    run = loaded(runs.run_dir(f"speech-{kind}"))
    actual = values_of(run)
    assert actual["token_accuracy"] >= 95 and actual["oov_accuracy"] >= 90
    assert "span_f1" not in actual
    one = run.predict(["the ggggo", ["bbbbi", "old"]])
    assert [actual.tags for actual in one] == [["X", "NOUN"], ["VERB", "X"]]
    assert [actual.spans for actual in one] == [[], []]


def test_without_a_char_encoder_unknown_words_are_indistinguishable(runs, tmp_path):
    folder = train_here(runs.values("speech-gru", "model.char_encoder=false"), tmp_path / "run").path
    run = loaded(folder)
    assert not (folder / "tokenizer.char.json").exists()
    assert run.vocabulary.char_tokenizer is None
    assert values_of(run)["oov_accuracy"] < 80
    assert run.predict("ggggo").tags == run.predict("ggggi").tags
    for wrong, message in (
        (
            "model.char_encoder=all",
            "model.char_encoder: expected a table or false, got 'all'",
        ),
        ("model.char_encoder.hiden_size=3", "model.char_encoder.hiden_size: unknown option; did you mean 'hidden_size'?"),
    ):
        with pytest.raises(ConfigError) as caught:
            resolve(runs.values("speech-gru", wrong), base=Path())
        assert str(caught.value).startswith(message)


@pytest.mark.parametrize("head", ["linear", "crf"])
def test_both_heads_learn(runs, tmp_path, head):
    folder = train_here(runs.values("spans-conv", f"model.head={head}"), tmp_path / "run").path
    assert values_of(loaded(folder))["span_f1"] >= 85


@pytest.mark.slow
@pytest.mark.parametrize("settings", [("train.optimizer=muon", "train.micro_batches=3"), ("train.precision=bfloat16",)])
def test_other_training_options_learn_too(runs, tmp_path, settings):
    folder = train_here(runs.values("spans-transformer", *settings), tmp_path / "run").path
    assert values_of(loaded(folder))["span_f1"] >= 80


@pytest.mark.parametrize("name", ["spans-lstm", "speech-transformer"])
def test_a_resumed_run_equals_an_uninterrupted_run(runs, tmp_path, name):
    values = runs.values(name, "train.max_steps=8", "train.num_validations=4", "model.dropout=0.2")
    train_here(values, tmp_path / "whole")
    with pytest.raises(TrainingInterrupted):
        train_here(values, tmp_path / "cut", SilentCallback(stop_at=5))
    again = SilentCallback()
    train_here(values, tmp_path / "cut", again)
    assert again.notes == ["resuming at step 5"]
    assert run_hashes(tmp_path / "cut") == run_hashes(tmp_path / "whole")


def test_span_f1_is_monitored_if_there_are_spans(runs):
    for name, decides in (("spans-lstm", "span_f1"), ("speech-lstm", "token_accuracy")):
        last = json.loads((runs.run_dir(name) / "metrics.jsonl").read_text().splitlines()[-1])
        assert list(last)[1] == f"valid_{decides}"
        assert "valid_oov_accuracy" in last


def test_invalid_span_tags_are_repaired(tmp_path):
    sentences = [[("the", "O"), ("ann", "I-PER"), ("lee", "I-PER")], [("bob", "B-PER"), ("sees", "O"), ("al", "I-PER")]] * 10
    data, callback = write_conll(tmp_path / "data.txt", sentences), SilentCallback()
    folder = train_here(tagging_run_file(data, "lstm", *QUICK), tmp_path / "run", callback).path
    mended = "14 sentences have invalid span tags; the tags were repaired, the spans are unchanged"
    assert mended in callback.notes
    run = loaded(folder)
    assert run.labels == ("B-PER", "O", "I-PER")
    assert all(not validate(prediction.tags, "BIO") for prediction in run.predict(["the ann lee", "al bob al", "x y z"] * 3))


def test_allowed_transitions_depend_on_the_labels():
    assert allowed_transitions(LabelVocabulary(("NOUN", "VERB"))) is None
    table = allowed_transitions(LabelVocabulary(("O", "B-X", "I-X")))
    assert table is not None
    assert table.tolist() == [
        [True, True, False, True],
        [True, True, True, True],
        [True, True, True, True],
        [True, True, False, True],
    ]


def test_a_sentence_beyond_max_length_is_rejected(runs, tmp_path):
    with pytest.raises(DataError) as caught:
        train_here(runs.values("spans-lstm", "data.max_length=8"), tmp_path / "run")
    assert "sentence has " in str(caught.value) and "more than data.max_length (8); increase it" in str(caught.value)


def test_span_metrics_cannot_be_monitored_without_spans(runs, tmp_path):
    with pytest.raises(ConfigError) as caught:
        train_here(runs.values("speech-lstm", "train.monitor=span_recall"), tmp_path / "run")
    assert str(caught.value) == "train.monitor: 'span_recall' needs tags that mark spans; use 'token_accuracy'"
    data = write_conll(tmp_path / "data.txt", [[("a", "X"), ("b", "Y")]] * 20)
    with pytest.raises(ConfigError) as caught:
        train_here(tagging_run_file(data, "lstm", "train.monitor=oov_accuracy"), tmp_path / "other")
    assert str(caught.value) == (
        "train.monitor: 'oov_accuracy' needs out-of-vocabulary words in data.valid; use 'token_accuracy'"
    )
    with pytest.raises(ConfigError, match=r"train\.monitor: unknown metric 'accuracy'"):
        resolve(runs.values("speech-lstm", "train.monitor=accuracy"), base=Path())


def test_tags_are_not_smoothed(runs):
    with pytest.raises(ConfigError) as caught:
        resolve(runs.values("spans-lstm", "train.label_smoothing=0.1"), base=Path())
    assert str(caught.value) == "train.label_smoothing: not available for task 'tagging'; remove it"


def test_a_classifier_initializes_a_tagger(runs, tmp_path):
    first, callback = runs.run_dir("labels-transformer"), SilentCallback()
    still = ("train.lr=1e-30", "train.max_steps=1", "train.ema_decay=0", f"train.init_from={first}")
    values = with_tokenizer_from(runs.values("speech-transformer", *still), first)
    train_here(values, tmp_path / "run", callback)
    before, after = (read_tensors(folder / "model.safetensors")[0] for folder in (first, tmp_path / "run"))
    copied = [name for name in before if name.startswith("encoder.")]
    assert "encoder.embedder.embedding.weight" in copied
    assert all(torch.equal(before[name], after[name]) for name in copied)
    new = len(after) - len(copied)
    message = next(note for note in callback.notes if note.startswith("Initialized "))
    assert message.startswith(f"Initialized {len(copied)} tensors from {first}; not in {first}: ")
    assert f" and {new - 3} more; unused: head." in message


# ---- reading back


def test_tags_do_not_depend_on_the_batch(runs):
    run = loaded(runs.run_dir("spans-lstm"))
    sentences = [[word for word, _ in sentence] for sentence in tagged_sentences(30, seed=7)] + [[], ["mr"]]
    together = run.predict(sentences)
    assert [item.words for item in together] == sentences
    assert together[-2].tags == [] and together[-2].spans == []
    assert [run.predict([sentence])[0] for sentence in sentences] == together
    assert run.predict([]) == []
    with pytest.raises(DataError, match="line 2"):
        run.predict(["the", "a\0b"])


def test_words_may_contain_any_text(runs):
    prediction = loaded(runs.run_dir("spans-lstm")).predict([["new york", "", "Ω" * 300, "mr"]])[0]
    assert prediction.words == ["new york", "", "Ω" * 300, "mr"]
    assert len(prediction.tags) == 4


def test_evaluation_scores_the_predictions(runs):
    run, calls = loaded(runs.run_dir("speech-lstm")), list[tuple[int, int]]()
    evaluation = run.evaluate(progress=lambda what, done, total: calls.append((done, total)))
    scores, items = list(evaluation), evaluation.items
    gold_sentences = list(run.config.datasets["test"].records())
    predictions = run.predict([sentence.words for sentence in gold_sentences])
    correct = [
        a == b
        for sentence, gold in zip(predictions, gold_sentences, strict=True)
        for a, b in zip(sentence.tags, gold.tags, strict=True)
    ]
    assert (scores[0].name, scores[0].value) == ("token_accuracy", pytest.approx(100 * np.mean(correct)))
    seen = {word for sentence in run.config.datasets["train"].records() for word in sentence.words}
    new = [word not in seen for sentence in gold_sentences for word in sentence.words]
    oov = next(score.value for score in scores if score.name == "oov_accuracy")
    assert oov == pytest.approx(100 * np.mean([hit for hit, is_new in zip(correct, new, strict=True) if is_new]))
    assert len(items.keys) == len(gold_sentences)
    assert calls[-1] == (len(gold_sentences), len(gold_sentences))
    info = run.info()
    assert (info["task"], info["arch"], info["labels"]) == ("tagging", "lstm", list(run.labels))
    assert info["parameters"] == run.num_parameters > 0


def test_without_training_text_oov_words_are_not_scored(runs, tmp_path):
    data = shutil.copy(runs.data["speech"], tmp_path / "data.txt")
    test = write_conll(tmp_path / "test.txt", tagged_sentences(5, seed=9, spans=False))
    run = loaded(train_here(tagging_run_file(Path(data), "rnn", *QUICK), tmp_path / "run").path)
    assert "oov_accuracy" in values_of(run, test)
    Path(data).unlink()
    assert set(values_of(run, [test])) == {"token_accuracy", "sentence_accuracy"}


def test_a_run_without_other_data_cannot_be_evaluated(runs, tmp_path):
    values = runs.values("speech-rnn", *QUICK)
    values["data"] = {"train": values["data"]["train"]}
    run = loaded(train_here(values, tmp_path / "run").path)
    with pytest.raises(UsageError) as caught:
        run.evaluate()
    assert str(caught.value) == f"{tmp_path / 'run'}: the run has no test or validation data; set `data`"


def test_sentences_beyond_learned_positions_are_rejected(runs, tmp_path, capsys, monkeypatch):
    options = ("model.position_encoding=learned", "data.max_length=30", *QUICK)
    folder = train_here(runs.values("speech-lstm", *options), tmp_path / "run").path
    run = loaded(folder)
    assert len(run.predict("the " * 28).tags) == 28
    with pytest.raises(DataError) as caught:
        run.predict(["the", "the " * 29])
    assert str(caught.value) == "line 2: 31 tokens exceed the model's limit of 30; split it"
    data = write_conll(tmp_path / "data.txt", [[("the", "X")], [("the", "X")] * 29])
    with pytest.raises(DataError) as caught:
        run.evaluate(data)
    assert str(caught.value) == f"{data}:3: 31 tokens exceed the model's limit of 30; split it"
    set_stdin(monkeypatch, b"the\n" + b"the " * 29 + b"\nold\n")
    code = main(["predict", str(folder)])
    captured = capsys.readouterr()
    assert (code, captured.err) == (3, "weft: warning: line 2: 31 tokens exceed the model's limit of 30; split it; skipped\n")
    assert [line.partition("/")[0] for line in captured.out.split("\n")] == ["the", "", "old", ""]


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer.char.json", "labels.json"])
def test_swapped_or_damaged_files_are_rejected_by_name(runs, tmp_path, name):
    folder = shutil.copytree(runs.run_dir("spans-rnn"), tmp_path / "run")
    other = {"labels.json": "speech-rnn", "tokenizer.json": "labels-lstm"}.get(name, "speech-rnn")
    shutil.copy(runs.run_dir(other) / name, folder / name)
    with pytest.raises(ModelError) as caught:
        weft.load(folder).model  # noqa: B018
    names = " or ".join(str(folder / part) for part in ("tokenizer.char.json", "tokenizer.json", "labels.json"))
    assert str(caught.value) == f"{names}: not the file that the weights were trained with"
    (folder / name).write_text("{")
    with pytest.raises(ModelError) as caught:
        weft.load(folder)
    assert str(caught.value).startswith(f"{folder / name}: ") and "\n" not in str(caught.value)


# ---- the command line


def said_by(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main([*words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_predict_command_gives_tagged_lines(runs, capsys, monkeypatch):
    folder = str(runs.run_dir("spans-lstm"))
    set_stdin(monkeypatch, b"the mr bcdfo\n\n\xff mr\r\nold  new\n")
    code, out, err = said_by(capsys, "predict", folder)
    assert out == "the/O mr/O bcdfo/B-PER\n\n\nold/O new/O\n"
    assert (code, err) == (3, "weft: warning: standard input:3: invalid utf-8 (byte 0xff); convert it first; skipped\n")


def test_taggers_cannot_be_combined(runs, capsys):
    folder = str(runs.run_dir("spans-lstm"))
    assert expect_error(capsys, "predict", folder, "x", "--ensemble", folder) == (
        2, f"--ensemble: {folder} has task 'tagging', whose runs cannot be combined"
    )  # fmt: skip


def test_predict_command_gives_json(runs, capsys, tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(b"the mr bcdfo\n\n\xff\n")
    code, out, _ = said_by(capsys, "predict", str(runs.run_dir("spans-lstm")), "--input", str(path), "--json")
    first, second, third = (json.loads(line) for line in out.splitlines())
    assert code == 3
    assert first == {
        "text": "the mr bcdfo",
        "words": ["the", "mr", "bcdfo"],
        "tags": ["O", "O", "B-PER"],
        "spans": [{"type": "PER", "start": 2, "end": 3}],
    }
    assert second == {"text": "", "words": [], "tags": [], "spans": []}
    assert third["text"] is None and third["error"] == f"{path}:3: invalid utf-8 (byte 0xff); convert it first"


def test_evaluate_prints_a_table_of_span_types(runs, capsys):
    code, out, _ = said_by(capsys, "evaluate", str(runs.run_dir("spans-lstm")), "--quiet", "--signature")
    assert code == 0
    assert "span F1" in out and "|spans:BIO|" in out
    table = out.split("\n\n")[3].split("\n")
    assert table[0].split() == ["precision", "recall", "F1", "examples"]
    assert table[1].split()[0] == "PER" and len(table) == 3
    code, out, _ = said_by(capsys, "evaluate", str(runs.run_dir("speech-lstm")), "--quiet", "--signature")
    assert code == 0 and "token accuracy" in out and "|spans:none|" in out


def test_evaluate_prints_tables_of_tags_and_confusions(runs, capsys, tmp_path):
    """By hand, from the predicted tags of the same words."""
    folder = runs.run_dir("speech-lstm")
    data = write_conll(tmp_path / "new.txt", [[("the", "X")], [("old", "X"), ("bcdfo", "ADJ"), ("here", "X")]])
    _, out, _ = said_by(capsys, "evaluate", str(folder), "--data", str(data), "--quiet")
    one, three = loaded(folder).predict("the"), loaded(folder).predict("old bcdfo here")
    predicted = [*one.tags, *three.tags]
    assert [predicted[index] for index in (0, 1, 3)] == ["X"] * 3
    taken = predicted[2]  # predicted for ADJ, which does not occur in training
    tables = [[line.split() for line in part.rstrip("\n").split("\n")] for part in out.split("\n\n")[2:]]
    rows = {"X": ["X", "100.0" if taken != "X" else "75.0", "100.0", "100.0" if taken != "X" else "85.7", "3"]}
    rows |= {} if taken == "X" else {taken: [taken, "0.0", "0.0", "0.0", "0"]}
    names = loaded(folder).labels
    assert tables[0] == [["precision", "recall", "F1", "words"], *(rows[name] for name in names if name in rows)]
    wrong = ["(unseen)", *(str(int(name == taken)) for name in names)]
    assert tables[1] == [["gold", "\\", "predicted", *names], ["X", *("3" if name == "X" else "0" for name in names)], wrong]


def test_unseen_tags_are_reported_and_count_as_errors_or_are_rejected(runs, capsys, tmp_path):
    folder = runs.run_dir("speech-lstm")
    data = write_conll(tmp_path / "new.txt", [[("the", "X")], [("old", "X"), ("bcdfo", "ADJ"), ("here", "X")]])
    code, out, err = said_by(capsys, "evaluate", str(folder), "--data", str(data))
    assert code == 0 and re.search(r"^token accuracy +75\.0 ", out, re.MULTILINE)
    assert (
        err.splitlines()[-1] == "weft: warning: 1 example has tags that are not in the training data and count as errors: ADJ"
    )
    code, out, err = said_by(capsys, "evaluate", str(folder), "--data", str(data), "--json", "--quiet")
    evaluation = json.loads(out)
    assert (evaluation["unseen"], evaluation["data"], err) == ({"ADJ": 1}, [str(data)], "")
    assert expect_error(capsys, "evaluate", str(folder), "--data", str(data), "--strict", "--quiet") == (
        3, f"{data}:3: tag 'ADJ' is not in the training data of {folder}"
    )  # fmt: skip
    code, out, _ = said_by(capsys, "evaluate", str(folder), "--strict", "--quiet", "--json")
    assert (code, json.loads(out)["unseen"]) == (0, {})


def test_search_options_are_rejected(runs, capsys):
    folder = runs.run_dir("speech-lstm")
    assert expect_error(capsys, "predict", str(folder), "the", "--num-samples", "2") == (
        2, "--num-samples: not available for task 'tagging'"
    )  # fmt: skip
    assert expect_error(capsys, "evaluate", str(folder), "--beam-size", "2") == (
        2, "--beam-size: not available for task 'tagging'"
    )  # fmt: skip
    assert expect_error(capsys, "generate", str(folder)) == (2, f"{folder}: is a tagger; use weft predict")
    code, out, _ = said_by(capsys, "info", str(folder))
    assert code == 0 and "character: char, " in out


def test_tagged_sentences_are_checked(runs, capsys, tmp_path):
    (tmp_path / "run.toml").write_text(tomli_w.dumps(runs.values("spans-lstm")))
    code, out, err = said_by(capsys, "check", str(tmp_path / "run.toml"), "--json", "--quiet")
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert list(data["splits"]["train"]) == ["rows", "sentence"]
    assert data["splits"]["train"]["rows"] == 84
    assert "unknown_tokens" in {item["name"] for item in data["findings"]}


def test_conllu_on_the_command_line(tmp_path, capsys):
    rows = [("1-2", "dunno", "_"), ("1", "du", "X"), ("2", "nno", "V"), ("2.1", "it", "P"), ("3", "here", "X")]
    sentence = "# text = dunno here\n" + "".join(
        "\t".join([index, word, "_", tag, *["_"] * 6]) + "\n" for index, word, tag in rows
    )
    (tmp_path / "data.conllu").write_text((sentence + "\n") * 20)
    (tmp_path / "run.toml").write_text(
        'task = "tagging"\n[data]\ntrain = "data.conllu"\nvalid = 0.2\n[model]\narch = "gru"\nhidden_size = 8\n'
        "[model.char_encoder]\nhidden_size = 8\n[train]\nmax_steps = 20\nlr = 0.03\n"
    )
    code, _, err = said_by(capsys, "train", str(tmp_path / "run.toml"), "--output-dir", str(tmp_path / "run"))
    assert code == 0, err
    assert said_by(capsys, "predict", str(tmp_path / "run"), "du nno here")[1] == "du/X nno/V here/X\n"


# ---- vectors


@pytest.mark.parametrize("name", ["spans-lstm", "speech-transformer"])
def test_a_tagger_embeds_sentences(runs, tmp_path, capsys, name):
    run, lines = loaded(runs.run_dir(name)), ["the old mr dcbfo here", "a", "", "near the new owl and the old one"]
    for pool in ("mean", "first"):
        together = run.embed(lines, pooling=pool)
        assert (together.shape, together.dtype) == ((4, run.config.model.hidden_size), np.float32)
        alone = np.concatenate([run.embed([line], pooling=pool) for line in lines])
        np.testing.assert_allclose(together, alone, atol=1e-5)
        with torch.inference_mode():
            batch = run.predictor.model.sentences([lines[0].split()]).batch(np.array([0]))
            y, keep = run.model.encoder(TaggerInput(*batch[:-1]))
        assert keep.all()
        np.testing.assert_allclose(together[0], (y[0].mean(0) if pool == "mean" else y[0, 0]).numpy(), atol=1e-5)
    np.testing.assert_array_equal(run.embed([lines[0].split()]), run.embed(lines[:1]))
    assert run.embed([]).shape == (0, 0)
    assert main(["embed", str(runs.run_dir(name)), lines[0], "--output", str(tmp_path / "x.npy"), "--quiet"]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "x.npy")[0], run.embed(lines)[0], atol=1e-5)
    assert capsys.readouterr().err == ""


def test_embedding_truncates_long_sentences(runs, tmp_path, capsys):
    settings = (
        "model.position_encoding=learned",
        "data.max_length=100",
        "tokenizer.type=char",
        "tokenizer.vocab_size=40",
        *QUICK,
    )
    folder = train_here(runs.values("spans-transformer", *settings), tmp_path / "run").path
    run = loaded(folder)
    fits = ["old" * 7] * 4 + ["a" * 14]  # 98 letters, <s> and </s>
    np.testing.assert_array_equal(run.embed([[*fits, "x"]]), run.embed([fits]))
    assert run.embed_with_info([fits]).truncated.tolist() == [False]
    assert run.embed_with_info([[*fits, "x"], fits, "a" * 140]).truncated.tolist() == [True, False, True]
    np.testing.assert_allclose(run.embed(["a" * 140]), run.embed([""]), atol=1e-6)
    assert main(["embed", str(folder), " ".join(fits) + " x"]) == 0
    assert capsys.readouterr().err == "weft: warning: truncated 1 line that was too long for the model\n"


def test_an_empty_sentence_next_to_a_full_batch_is_read(runs):
    run = loaded(runs.run_dir("spans-lstm"))
    predictions = run.predict(["", "the " * 9000])
    assert [len(item.tags) for item in predictions] == [0, 9000]


# ---- lower case


def test_words_are_lowercased_and_characters_are_not(runs, tmp_path):
    sentences = [[("The" if index % 2 else "the", "A" if index % 2 else "B"), ("Dog", "N")] for index in range(40)]
    data = write_conll(tmp_path / "data.txt", sentences)
    folder = train_here(tagging_run_file(data, "gru", "tokenizer.lowercase=true", "model.head=linear"), tmp_path / "run").path
    run = loaded(folder)
    assert run.vocabulary.tokenizer.lowercase and not run.vocabulary.char_tokenizer.lowercase
    one, other = (run.vocabulary.tokenizer.encode(text).tolist() for text in ("The Dog", "the dog"))
    assert one == other and 0 not in one
    # only the characters differ
    assert [predictions.tags for predictions in run.predict(["The Dog", "the Dog"])] == [["A", "N"], ["B", "N"]]
