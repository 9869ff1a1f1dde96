"""Word times, pictures and attribution of recordings."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import expect_error
from spoken_runs import sounds, spoken_run, talkative, write_sounds

import weft
from weft.cli.formant_synthesis import RATE
from weft.cli.main import main
from weft.errors import DataError, UsageError
from weft.explain.frame_attribution import word_tokens
from weft.media.audio import to_int16
from weft.nn import ctc
from weft.runs.run import AnyRun
from weft.tasks.asr.alignment import band_frequencies
from weft.text.tokenizers import TokenizerConfig, train_tokenizer

MODELS: dict[str, dict[str, Any]] = {
    "ctc": {"arch": "gru"},
    "joint": {"arch": "lstm", "ctc_weight": 0.3, "encoder": {"bidirectional": True}},
    "attention": {"arch": "transformer", "ctc_weight": 0.0, "num_heads": 2},
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("runs")
    return {name: spoken_run(directory / name, **values) for name, values in MODELS.items()}


@pytest.fixture(scope="module")
def run(paths) -> AnyRun:
    return talkative(paths["ctc"])


SAMPLES = to_int16(sounds(1)[0])


# ---- word times


def test_words_have_the_times_of_their_tokens(run):
    prediction = run.predict(SAMPLES, beam_size=1, return_alignments=True)
    alignment = prediction.alignment
    assert "".join(token.word for token in alignment.tokens) == prediction.text
    assert [word.word for word in alignment.words] == prediction.text.split() != []
    times = [time for token in alignment.tokens for time in (token.start, token.end)]
    assert times == sorted(times) and times[-1] <= len(SAMPLES) / RATE + 0.01
    # the best path itself is the alignment of its own labels
    labels = alignment.probs.argmax(1)
    for token in alignment.tokens:
        position = round(token.start / alignment.seconds)
        assert alignment.labels[labels[position]] == token.word
    assert alignment.to_json()["words"][0] == {
        "word": prediction.text.split()[0],
        "start": times[0],
        "end": alignment.words[0].end,
    }


def test_a_forced_prefix_has_times(run):
    prediction = run.predict(SAMPLES, target_prefix="two", return_alignments=True, beam_size=1)
    assert "".join(token.word for token in prediction.alignment.tokens) == prediction.text and prediction.text[:3] == "two"


def test_long_outputs_have_an_alignment():
    log_probs = torch.randn(400, 5, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    labels = [1 + number % 4 for number in range(150)]
    spans = ctc.align(log_probs, labels, blank=0)
    assert [span.label for span in spans] == labels
    assert all(first.end <= second.start for first, second in pairwise(spans))


@pytest.mark.parametrize("kind", ["char", "byte", "whitespace"])
def test_words_of_tokens(kind):
    tokenizer = train_tokenizer(TokenizerConfig(type=kind), iter(["one two naïve"]))
    ids = tokenizer.encode("one naïve two").tolist()
    words = word_tokens(ids, tokenizer)
    assert [word for word, _ in words] == ["one", "naïve", "two"]
    assert sorted(index for _, indices in words for index in indices) == [
        index for index, token in enumerate(ids) if tokenizer.decode([token]) != " "
    ]


def test_bands_have_the_frequencies_of_the_filters(run):
    log_mel = run.model.encoder.front.log_mel
    peaks = log_mel.filters.argmax(0).double() * RATE / log_mel.n_fft
    assert np.abs(band_frequencies(log_mel) - peaks.numpy()).max() <= RATE / log_mel.n_fft


# ---- pictures


@pytest.mark.parametrize("name", MODELS)
def test_the_command_writes_times_and_a_picture(paths, tmp_path, capsys, name):
    write_sounds(tmp_path)
    out = tmp_path / "out"
    flags = ["--save-alignments", str(out), "--target-prefix", "two", "--quiet"]
    assert main(["predict", str(paths[name]), str(tmp_path / "0.wav"), *flags]) == 0
    text = capsys.readouterr().out.rstrip("\n")
    values, svg = json.loads((out / "000001.json").read_text()), (out / "000001.svg").read_text()
    assert values["text"] == text and values["source"].endswith("0.wav")
    ET.fromstring(svg)
    assert (svg.count("<image"), "probability" in svg) == ((1, True) if name == "ctc" else (2, False))
    assert ("words" in values) == (name != "attention") and ("attention" in values) == (name != "ctc")
    if name != "ctc":
        weights = np.array(values["attention"]["weights"])
        assert len(weights) == len(values["attention"]["tokens"])
        assert weights.sum(1) == pytest.approx(1.0, abs=0.01)


def test_pictures_of_several_models_are_refused(paths):
    several = weft.ensemble([str(paths["ctc"]), str(paths["ctc"])])
    with pytest.raises(UsageError, match="not available for several models"):
        several.predict(SAMPLES, return_alignments=True)


def test_a_model_without_ctc_and_attention_has_no_picture(tmp_path):
    run = weft.load(spoken_run(tmp_path, "lstm", ctc_weight=0.0, attention="none"))
    with pytest.raises(UsageError, match="requires a CTC output or attention"):
        run.predict(SAMPLES, return_alignments=True)


def test_a_notebook_shows_the_picture(run):
    assert run.predict(SAMPLES, return_alignments=True).alignment._repr_html_().startswith("<svg")


# ---- attribution


@pytest.fixture(scope="module")
def recording(tmp_path_factory) -> str:
    directory = tmp_path_factory.mktemp("sounds")
    write_sounds(directory)
    return str(directory / "0.wav")


def test_contributions_sum_to_the_difference_of_scores(paths, recording):
    run = weft.load(paths["ctc"])
    with torch.no_grad():
        run.model.ctc_head.weight.mul_(60.0)
    explanation = run.explain(recording, "attribution", n_steps=40, target="nine two")
    words = explanation.data["words"]
    assert [word["word"] for word in words] == ["nine", "two"]
    assert len(explanation.figures) == len(words) and explanation.view == "attribution"
    for word in words:
        difference = word["log_prob"] - word["baseline_log_prob"]
        assert abs(difference) > 0.05
        assert word["sum"] == pytest.approx(difference, rel=0.05)
        assert sum(word["by_frame"]) == pytest.approx(word["sum"], abs=0.01) == pytest.approx(sum(word["by_band"]), abs=0.01)


def test_input_x_gradient_is_the_slope_of_the_score(run, recording):
    word = run.explain(recording, method="input-x-gradient", target="two").data["words"][0]
    features = torch.from_numpy(run.predictor.recording(run.predictor.read_or_raise(recording)).features)[None].double()
    model = run.model.double()
    try:
        tokens = run.vocabulary.encode("two").tolist()

        def score(scale: float) -> float:
            vectors = model.encoder.front.vectors(scale * features)
            log_probs = model.ctc_head(
                model.encoder.from_vectors(vectors, torch.ones(vectors.shape[:2], dtype=torch.bool)).values
            )[0]
            return float(sum(log_probs[span.start : span.end, span.label].sum() for span in spans))

        with torch.no_grad():
            vectors = model.encoder.front.vectors(features)
            memory = model.encoder.from_vectors(vectors, torch.ones(vectors.shape[:2], dtype=torch.bool))
            spans = ctc.align(model.ctc_head(memory.values)[0], tokens, blank=model.blank)
            # the sum of x * gradient is the derivative by a factor of x
            slope = (score(1 + 1e-4) - score(1 - 1e-4)) / 2e-4
    finally:
        model.float()
    assert word["sum"] == pytest.approx(slope, rel=0.01, abs=0.05)


@pytest.mark.parametrize("name", MODELS)
def test_the_command_explains_a_file(paths, recording, tmp_path, capsys, name):
    page = tmp_path / "page.html"
    flags = ["--target", "two nine", "--n-steps", "2", "--output", str(page), "--quiet"]
    assert main(["explain", str(paths[name]), recording, *flags]) == 0
    out, err = capsys.readouterr()
    assert out.split()[0] == "word" and "two" in out and "nine" in out and err == ""
    assert page.read_text().count("<figure") >= 2


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"view": "attention"}, "attention is not available for task 'asr'"),
        ({"target": "two €"}, "'two €' contains a token that is not in the vocabulary"),
        ({"layer": 1}, "not used by explanations of recordings"),
        ({"method": "occlusion"}, "occlusion is not available for recordings"),
        ({"method": "input-x-gradient", "n_steps": 3}, "not used by method input-x-gradient"),
    ],
)
def test_options_that_recordings_do_not_have_are_refused(run, recording, options, problem):
    with pytest.raises(UsageError, match=problem):
        run.explain(recording, **options)


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("", "the output is empty: there is no word to explain"),
        ("nine two " * 12, "the recording is too short for this output"),
        ("o " * 41, "words exceed the limit of 40"),
    ],
)
def test_outputs_that_cannot_be_explained_are_refused(run, recording, target, problem):
    with pytest.raises(DataError, match=problem):
        run.explain(recording, target=target)


def test_the_prediction_is_explained_by_default(run, recording):
    explanation = run.explain(recording, n_steps=1)
    text = run.predict(recording).text
    assert explanation.data["text"] == text
    assert [word["word"] for word in explanation.data["words"]] == text.split()


def test_a_missing_file_is_an_error(paths, capsys):
    code, message = expect_error(capsys, "explain", str(paths["ctc"]), "missing.wav", "--quiet")
    assert code == 3 and "missing.wav: file not found" in message
