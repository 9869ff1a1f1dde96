"""Explanations of captions: contributions of pixels and features to each word, and attention."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest
import torch
from caption_runs import run_values, square, trained, write_clips, write_features, write_images
from media_files import encoded
from vision_encoders import write_encoder

import weft
from weft.cli.main import main
from weft.errors import DataError, UsageError
from weft.explain.frame_contributions import FrameContributions
from weft.plots.frames import clip_attribution, image_attribution
from weft.tasks.captioning import explain

IMAGES = {"train": "images.tsv", "root": "images.zip", "valid": "images.tsv"}
TEXT = "a red square"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("explained")
    write_images(directory, 6)
    write_encoder(directory / "vit")
    no_front = {"model": {"encoder": {}}}
    (directory / "clips").mkdir()
    write_clips(directory / "clips", 3)
    (directory / "features").mkdir()
    write_features(directory / "features", 3)
    return {
        "images": trained(run_values(IMAGES), directory, name="images"),
        "encoder": trained(run_values({**IMAGES, "feature_encoder": "vit"}, **no_front), directory, name="encoder"),
        "clips": trained(run_values({"train": "clips.tsv"}, "lipnet", model={"num_layers": 1}), directory / "clips"),
        "features": trained(run_values({"train": "features.tsv"}, "lstm", **no_front), directory / "features"),
        "no attention": trained(run_values(IMAGES, "show-and-tell"), directory, name="no-attention"),
    }


INPUTS = {"images": square("red"), "encoder": square("red", 40), "clips": np.stack([square("red")] * 4)}
INPUTS["features"] = np.random.default_rng(0).normal(size=(3, 5))


def is_svg(text: str) -> bool:
    return ET.fromstring(text).tag.endswith("svg")


@pytest.mark.parametrize("name", INPUTS)
def test_contributions_sum_to_the_difference_of_the_scores(runs, name):
    result = runs[name].explain(INPUTS[name], target=TEXT, n_steps=60)
    words = result.data["words"]
    assert [word["word"] for word in words] == TEXT.split() and result.data["method"] == "integrated-gradients"
    for word in words:
        assert word["sum"] == pytest.approx(word["log_prob"] - word["baseline_log_prob"], abs=0.02)
        assert np.sum(word["by_cell"]) == pytest.approx(word["sum"], abs=0.01)
    assert is_svg(result.figures[0].svg) and "60 steps" in result.lines[-1]


def test_scores_are_those_of_the_model(runs):
    words = runs["images"].explain(square("red"), target=TEXT, method="input-x-gradient").data["words"]
    (score,) = runs["images"].score([(square("red"), TEXT)])
    assert [word["log_prob"] for word in words] == pytest.approx(score.token_log_probs[:-1], abs=1e-5)


def test_input_x_gradient_is_the_derivative_in_the_direction_of_the_baseline(runs):
    """Numerically, of the sum over all pixels."""
    run = runs["images"]
    words = run.explain(square("red"), target=TEXT, method="input-x-gradient").data["words"]
    model = run.model.double()
    try:
        pixels = torch.tensor(square("red"), dtype=torch.float64)[None, None]
        difference = pixels - explain._blurred(pixels)

        def score(share: float) -> torch.Tensor:
            frames = (pixels + share * difference).flatten(2)
            memory = model.encoder(frames, torch.ones(1, 1, dtype=torch.bool))
            ids = torch.tensor([[run.vocabulary.bos_id, *run.vocabulary.encode(TEXT).tolist()]])
            return -model.attention_loss(memory, ids)[0]

        with torch.no_grad():
            expected = ((score(1e-3) - score(-1e-3)) / 2e-3).tolist()
    finally:
        run.model.float()
    assert [word["sum"] for word in words] == pytest.approx(expected, abs=1e-3)


def test_occlusion_is_the_loss_of_score_without_a_cell(runs):
    run, image = runs["images"], square("red")
    result = run.explain(image, target=TEXT, method="occlusion")
    cells = np.array([word["by_cell"] for word in result.data["words"]])
    assert cells.shape == (3, 1, 16, 16) and result.data["cell_size"] == 1
    blurred = explain._blurred(torch.tensor(image, dtype=torch.float32)[None, None])[0, 0].numpy()
    hidden = image.astype(np.float32)
    hidden[5, 6] = blurred[5, 6]
    model, ids = run.model, torch.tensor([[run.vocabulary.bos_id, *run.vocabulary.encode(TEXT).tolist()]])
    with torch.no_grad():
        before, after = (
            -model.attention_loss(
                model.encoder(torch.tensor(pixels, dtype=torch.float32).view(1, 1, -1), torch.ones(1, 1, dtype=torch.bool)), ids
            )[0].numpy()
            for pixels in (image, hidden)
        )
    np.testing.assert_allclose(cells[:, 0, 5, 6], before - after, atol=1e-4)
    frames = runs["clips"].explain(INPUTS["clips"], target=TEXT, method="occlusion").data["words"][0]["by_cell"]
    assert np.shape(frames) == (4, 1, 1)  # whole frames of a clip


def test_a_blurred_image_has_no_detail_and_the_same_mean():
    image = torch.zeros(1, 1, 32, 32, 1)
    image[:, :, 12:20, 12:20] = 255.0
    blurred = explain._blurred(image)
    assert blurred.max() < 60 and blurred.mean() == pytest.approx(float(image.mean()), rel=0.1)
    constant = torch.full((1, 2, 5, 7, 3), 9.0)
    torch.testing.assert_close(explain._blurred(constant), constant)


def test_cells_are_sums_and_the_last_may_be_smaller():
    values = np.arange(2 * 5 * 7, dtype=float).reshape(1, 2, 5, 7)
    cells = explain._in_cells(values, 3)
    assert cells.shape == (1, 2, 2, 3) and cells.sum() == values.sum()
    assert cells[0, 1, 1, 2] == values[0, 1, 3:, 6:].sum()


def test_the_command_writes_pages_and_finds_members_of_the_root(runs, tmp_path, capsys):
    run = str(runs["images"].directory.path)
    assert main(["explain", run, "0.png", "--target", TEXT, "-o", str(tmp_path / "a.html")]) == 0
    output = capsys.readouterr().out
    assert "word    log-prob  without  strongest places (x,y)" in output and "baseline: the blurred image, 24 steps" in output
    assert "Contributions to each word" in (tmp_path / "a.html").read_text()
    (tmp_path / "red.png").write_bytes(encoded(square("red"), "PNG"))
    words = ["explain", run, str(tmp_path / "red.png"), "--view", "attention", "--target", TEXT, "-o", str(tmp_path / "a.json")]
    assert main(words) == 0
    weights = np.array(json.loads((tmp_path / "a.json").read_text())["views"][0]["weights"])
    np.testing.assert_allclose(weights.sum((1, 2, 3)), 1, atol=0.01)


def test_attention_is_that_of_the_prediction(runs):
    run, image = runs["images"], square("red")
    prediction = run.predict(image, beam_size=2, return_alignments=True, min_new_tokens=2)
    result = run.explain(image, "attention", target=prediction.text)
    np.testing.assert_allclose(result.data["weights"], prediction.alignment.weights, atol=1e-3)
    assert is_svg(result.figures[0].svg)
    clip = runs["clips"].explain(INPUTS["clips"], "attention", target="a red")
    assert "strongest frames" in clip.lines[0] and np.shape(clip.data["weights"]) == (2, 4, 1, 1)
    assert "strongest positions" in runs["features"].explain(INPUTS["features"], "attention", target="a").lines[0]
    assert np.shape(runs["encoder"].explain(image, "attention", target="a").data["weights"]) == (1, 1, 4, 4)


@pytest.mark.parametrize(
    ("name", "view", "options", "problem"),
    [
        ("images", None, {"layer": 1}, "layer: not used by explanations of images and clips; remove it"),
        ("images", "attention", {"method": "occlusion"}, "method: not used by explanations of images and clips; remove it"),
        (
            "images",
            None,
            {"method": "coefficients"},
            "method: coefficients is not available for images and clips; use integrated",
        ),
        ("images", None, {"method": "occlusion", "n_steps": 3}, "n_steps: not used by method occlusion; remove it"),
        ("images", None, {"target": "zebra"}, "target: 'zebra' contains a token that is not in the vocabulary"),
        (
            "images",
            "surprisal",
            {},
            "view: surprisal is not available for task 'captioning'; choose from attribution, attention",
        ),
        ("no attention", "attention", {}, "alignments: the model has no cross-attention"),
    ],
)
def test_options_that_do_not_fit(runs, name, view, options, problem):
    with pytest.raises(UsageError, match=re.escape(problem)):
        runs[name].explain(square("red"), view, **options)


def test_inputs_without_an_explanation(runs):
    for view in ("attribution", "attention"):
        with pytest.raises(DataError, match="the output is empty: there is no word to explain; pass a target"):
            runs["images"].explain(square("red"), view, target="")
    with pytest.raises(DataError, match="41 words exceed the limit of 40; pass a shorter target"):
        runs["images"].explain(square("red"), target="a " * 41)
    with pytest.raises(DataError, match="one position of features cannot be compared with others"):
        runs["features"].explain(np.ones((1, 5)), target=TEXT)
    with pytest.raises(DataError, match="the clip is too short for this output"):
        runs["clips"].explain(np.stack([square("red")]), target=TEXT)
    with pytest.raises(DataError, match="file not found"):
        runs["images"].explain("missing.png")


def test_pictures_refuse_contributions_of_another_shape():
    with pytest.raises(UsageError, match=re.escape("contributions of shape (2, 4, 4) for 1 words")):
        image_attribution(square("red"), ["a"], np.zeros((2, 4, 4)))
    with pytest.raises(UsageError, match=re.escape("contributions of shape (1, 3, 4, 4) for 1 words and 2 frames")):
        clip_attribution(np.stack([square("red")] * 2), ["a"], np.zeros((1, 3, 4, 4)))


def test_negative_contributions_have_no_color():
    values = np.full((1, 1, 2, 2), -1.0)
    frames = square("red")[None]
    nothing = FrameContributions(["a"], np.zeros((1, 1, 2, 2)), frames).to_svg("")
    assert FrameContributions(["a"], values, frames).to_svg("").replace("-4.000", "+0.000") == nothing
    assert FrameContributions(["a"], -values, frames).to_svg("").replace("+4.000", "+0.000") != nothing


def test_ensembles_have_no_explanation(runs):
    path = runs["images"].directory.path
    with pytest.raises(UsageError, match="not available for an ensemble"):
        weft.ensemble([path, path]).explain("0.png")
