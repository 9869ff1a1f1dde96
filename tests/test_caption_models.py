"""Models of captions: padding, rows, fronts, and attention over images and clips as numbers and pictures."""

from __future__ import annotations

import io
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from media_files import gradient
from PIL import Image

from weft.errors import UsageError
from weft.explain.frame_alignment import FrameAlignment, by_word, check_alignable, token_weights, word_numbers
from weft.models import caption_config as configs
from weft.models.caption import captioner, positions_per_frame
from weft.models.caption_config import CaptionConfig, FrameShape
from weft.nn import vision
from weft.nn.vision import FeatureFront, VisionFront
from weft.plots.frames import enlarged, film_strip, image_attention
from weft.plots.png import png
from weft.text.tokenizers import TokenizerConfig, train_tokenizer

TOKENIZER = train_tokenizer(TokenizerConfig(type="whitespace"), ["a red square", "a blue circle"])
CLIP, IMAGE, FEATURES = FrameShape((20, 24, 3), is_clip=True), FrameShape((20, 24, 3)), FrameShape(None, 6)
PRESETS = {
    "transformer": configs.TRANSFORMER,
    "vit": configs.VIT,
    "show-and-tell": configs.SHOW_AND_TELL,
    "show-attend-tell": configs.SHOW_ATTEND_TELL,
    "s2vt": configs.S2VT,
    "gru": {**configs.RECURRENT, "layer_type": "gru"},
    "lipnet": configs.LIPNET,
}


def build(preset: str, shape: FrameShape = CLIP, **options):
    """A tiny model of a preset in eval mode."""
    small = {"encoder": {"patch_size": 8}} if preset == "vit" else {"encoder": {"conv_channels": 4}}
    values = configs.merge(PRESETS[preset], {"hidden_size": 16, **small, **options})
    config = CaptionConfig.model_validate(values).with_defaults()
    torch.manual_seed(0)
    return captioner(config, TOKENIZER, shape, max_positions=200).eval()


def frames(rows: int, length: int, seed: int = 0, width: int = 20 * 24 * 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (rows, length, width), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("preset", PRESETS)
def test_rows_and_padding_do_not_change_a_row(preset):
    model, source = build(preset), frames(3, 5)
    mask = torch.arange(5) < torch.tensor([[5], [3], [4]])
    tokens = torch.tensor([[1, 3, 4, 5, 2]] * 3)
    with torch.no_grad():
        together = model.score(tokens, None, model.encode(source, mask))
        noisy = torch.where(mask[..., None], source, frames(3, 5, seed=1))
        padded = model.score(tokens, None, model.encode(noisy, mask))
        for row, length in enumerate((5, 3, 4)):
            alone = model.encode(source[row : row + 1, :length], mask[row : row + 1, :length])
            torch.testing.assert_close(model.score(tokens[:1], None, alone)[0], together[row], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(together, padded, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("preset", ["show-and-tell", "show-attend-tell", "transformer", "s2vt", "lipnet"])
def test_outputs_depend_on_every_frame(preset):
    model, source, mask = build(preset), frames(1, 3), torch.ones(1, 3, dtype=torch.bool)
    tokens = torch.tensor([[1, 3, 4, 2]])
    with torch.no_grad():
        expected = model.score(tokens, None, model.encode(source, mask))
        for frame in range(3):
            other = source.clone()
            other[:, frame] = 0
            assert not torch.allclose(model.score(tokens, None, model.encode(other, mask)), expected)


def test_positions_of_each_front():
    for preset, shape, positions in [
        ("transformer", IMAGE, 9),
        ("transformer", CLIP, 1),
        ("vit", CLIP, 9),
        ("vit", IMAGE, 9),
        ("lipnet", CLIP, 1),
        ("lipnet", FEATURES, 1),
    ]:
        values = configs.merge(PRESETS[preset], {"encoder": {"patch_size": 8}} if preset == "vit" else {})
        config = CaptionConfig.model_validate(values).with_defaults()
        assert positions_per_frame(config.encoder, shape) == positions
    model = build("lipnet", IMAGE, encoder={"per_frame": False, "conv_channels": 4})
    memory = model.encoder(frames(1, 1), torch.ones(1, 1, dtype=torch.bool))
    assert memory.values.shape == (1, 4, 16) and model.encoder.front.front.grid == (2, 2)


def test_without_layers_the_summary_is_the_mean_of_the_normalized_grid():
    model = build("show-and-tell", IMAGE)
    mask = torch.ones(2, 1, dtype=torch.bool)
    memory = model.encoder(frames(2, 1), mask)
    vectors, _ = model.encoder.front(frames(2, 1), mask)
    expected = torch.nn.functional.layer_norm(vectors, (16,)).mean(1)
    torch.testing.assert_close(memory.summary, expected)
    assert not memory.states


def test_frames_in_parts_equal_frames_at_once(monkeypatch):
    front = VisionFront((20, 24, 3), 6, kind="resnet", hidden_channels=4).eval()
    source, mask = frames(5, 2), torch.ones(5, 2, dtype=torch.bool)
    with torch.no_grad():
        whole = front(source, mask)
        monkeypatch.setattr(vision, "MAX_PIXELS", 2 * 2 * 20 * 24)
        parts = front(source, mask)
    torch.testing.assert_close(parts[0], whole[0], atol=1e-6, rtol=1e-5)
    assert torch.equal(parts[1], whole[1])


def test_features_are_normalized_and_padding_is_zero():
    front = FeatureFront(6, 4)
    source = torch.randn(2, 3, 6)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    vectors, _ = front(source, mask)
    torch.testing.assert_close(front(7 * source + 1, mask)[0], vectors, atol=1e-4, rtol=1e-3)
    assert not vectors[1, 1:].any() and vectors[1, 0].any()


# ---- attention


@pytest.mark.parametrize("preset", ["show-attend-tell", "transformer", "gru", "vit"])
def test_weights_of_an_output_equal_those_of_single_steps(preset):
    model, source = build(preset), (frames(1, 2), torch.ones(1, 2, dtype=torch.bool))
    tokens = [3, 4, 5]
    weights = token_weights(model, source, tokens, layer=None, head=None)
    assert weights.shape == (3, model.encoder(*source).values.size(1))
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-5)
    for length in (1, 2):  # a longer output does not change the weights of its beginning
        np.testing.assert_allclose(
            token_weights(model, source, tokens[:length], layer=None, head=None), weights[:length], atol=1e-6
        )
    assert token_weights(model, source, [], layer=None, head=None).shape == (0, weights.shape[1])
    if preset == "transformer":
        assert not np.allclose(token_weights(model, source, tokens, layer=1, head=1), weights)


def test_ctc_gives_the_frames_of_a_word():
    model, source = build("lipnet"), (frames(1, 6), torch.ones(1, 6, dtype=torch.bool))
    weights = token_weights(model, source, [3, 4], layer=None, head=None)
    assert weights.shape == (2, 6)
    np.testing.assert_allclose(weights.sum(1), 1)
    assert weights[0].argmax() < weights[1].argmax()
    with pytest.raises(UsageError, match="the model has no attention: words are aligned by CTC"):
        check_alignable(model, 1, None)
    check_alignable(model, None, None)


def test_tokens_are_joined_to_words():
    characters = train_tokenizer(TokenizerConfig(type="char"), ["ab cd"])
    ids = characters.encode("ab c").tolist()
    assert word_numbers(characters, ids) == [0, 0, 0, 1]
    weights = by_word(np.array([[1.0, 0], [0, 1], [0, 1], [1, 0]]), [0, 0, 0, 1], 2)
    np.testing.assert_allclose(weights, [[1 / 3, 2 / 3], [1, 0]])
    assert by_word(np.zeros((0, 3)), [], 0).shape == (0, 3)


# ---- pictures


def texts_of(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def images_of(svg: str) -> int:
    return len(list(ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}image")))


def test_an_image_is_drawn_once_per_word():
    weights = np.zeros((2, 2, 3))
    weights[:, 0, 0] = 1
    alignment = FrameAlignment(["a<b", "w" * 40], weights[:, None], gradient(20, 24)[None])
    svg = alignment.to_svg("photo & more.jpg")
    assert images_of(svg) == 3
    assert texts_of(svg)[:4] == ["photo & more.jpg", "", "a<b", "w" * 17 + "…"]
    assert alignment.to_json()["weights"][0] == [[[1, 0, 0], [0, 0, 0]]]


def test_a_clip_is_a_film_strip():
    clip = np.stack([gradient(20, 24, 1, seed) for seed in range(40)])
    weights = np.full((2, 40, 1, 1), 1 / 40)
    svg = FrameAlignment(["one", "two"], weights, clip).to_svg("clip.mp4")
    assert images_of(svg) == 12 + 1  # frames, and the weights
    assert {"one", "two", "clip.mp4", "2", "39"} <= set(texts_of(svg))
    with pytest.raises(UsageError, match="film_strip: weights of shape"):
        film_strip(clip, ["one"], np.zeros((2, 40)))
    with pytest.raises(UsageError, match="image_attention: weights of shape"):
        image_attention(clip[0], [], np.zeros((0, 1, 1)))


def test_features_are_a_heat_map():
    svg = FrameAlignment(["one"], np.full((1, 3, 1, 1), 1 / 3), None).to_svg("x")
    assert {"1", "2", "3"} <= set(texts_of(svg))


def test_weights_are_interpolated_between_the_centers_of_cells():
    np.testing.assert_allclose(enlarged(np.array([[0.0, 1.0]]), 2, 4), [[0, 0.25, 0.75, 1]] * 2)
    np.testing.assert_allclose(enlarged(np.array([[0.3]]), 3, 5), np.full((3, 5), 0.3))


def test_colors_of_a_png():
    image = gradient(5, 7)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(png(image)))), image)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(png(image[..., 0])))), image[..., 0])
