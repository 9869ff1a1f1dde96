"""The picture of a recording: well-formed, of limited size, with everything at its time."""

from __future__ import annotations

import base64
import re
import struct
import xml.etree.ElementTree as ET
import zlib

import numpy as np
import pytest

from weft.errors import UsageError
from weft.plots.spectrogram import FADED, LEFT, SPECTROGRAM, Curves, Sound, Span, Weights, spectrogram

SVG = "{http://www.w3.org/2000/svg}"
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(200, 16))  # two seconds
SOUND = Sound(FEATURES, 0.01, np.linspace(100, 3900, 16).tolist())
WIDTH = 480


def parse(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in parse(svg).iter(f"{SVG}text")]


def bitmap(svg: str, number: int = 0) -> np.ndarray:
    """The pixels of an embedded image."""
    data = base64.b64decode(re.findall(r"base64,([^\"]+)", svg)[number])
    width, height = struct.unpack(">II", data[16:24])
    body = data[data.index(b"IDAT") + 4 : data.index(b"IEND") - 8]
    return np.frombuffer(zlib.decompress(body), np.uint8).reshape(height, width + 1)[:, 1:]


def test_the_image_has_a_pixel_per_value_and_low_frequencies_below():
    features = np.zeros((200, 16))
    features[50:100, 0] = 5.0  # a low tone
    pixels = bitmap(spectrogram(Sound(features, 0.01)))
    assert pixels.shape == (16, 200)
    assert (pixels[-1, 50:100] == 255).all() and pixels[:-1].max() == 0
    assert len(spectrogram(SOUND)) < 12_000


def test_frequencies_are_labeled_where_the_bands_are():
    svg = spectrogram(SOUND)
    assert [text for text in texts(svg) if "Hz" in text] == ["250 Hz", "500 Hz", "1 kHz", "2 kHz"]
    heights = [float(e.attrib["y"]) for e in parse(svg).iter(f"{SVG}text") if "Hz" in (e.text or "")]
    assert heights == sorted(heights, reverse=True)
    assert not any("Hz" in text for text in texts(spectrogram(Sound(FEATURES, 0.01))))


def test_words_are_boxes_at_their_times():
    words = [Span("seven", 0.5, 1.0), Span("two", 1.5, 2.4)]
    boxes = [e for e in parse(spectrogram(SOUND, words=words)).iter(f"{SVG}rect") if e.attrib.get("class") == "word"]
    lefts = [(float(e.attrib["x"]), float(e.attrib["width"])) for e in boxes]
    assert lefts == [(LEFT + WIDTH / 4, WIDTH / 4), (LEFT + 3 * WIDTH / 4, WIDTH / 4)]  # clipped to the recording
    assert len({e.attrib["y"] for e in boxes}) == 1
    crowded = [Span("seventeen", 0.1, 0.12), Span("seventy", 0.12, 0.14), Span("one", 1.0, 1.1)]
    rows = [
        e.attrib["y"] for e in parse(spectrogram(SOUND, words=crowded)).iter(f"{SVG}rect") if e.attrib.get("class") == "word"
    ]
    assert rows[0] != rows[1] and rows[0] == rows[2]


def test_curves_rise_where_the_label_is_probable():
    probs = np.zeros((50, 2))
    probs[10, 0], probs[30:32, 1], probs[40, 1] = 0.9, 0.5, 0.01
    curves = Curves(probs, ["a", "b"], [Span("a", 0.4, 0.44), Span("b", 1.2, 1.28)], 0.04)
    svg = spectrogram(SOUND, curves=curves)
    paths = [e for e in parse(svg).iter(f"{SVG}path") if e.attrib.get("class", "").startswith("curve")]
    assert [e.attrib["class"] for e in paths] == ["curve s0", "curve s1"]  # what is below 2% is not drawn
    points = [tuple(map(float, point.split())) for point in paths[0].attrib["d"][1:].split("L")]
    assert [round(x - LEFT, 3) for x, _ in points] == [96.0, 100.8, 105.6]
    bottom = points[0][1]
    assert points[1][1] == pytest.approx(bottom - 0.9 * 110) and points[2][1] == bottom
    assert {"a", "b", "probability"} <= set(texts(svg))


def test_weights_and_highlights_are_bitmaps():
    weights = Weights(np.eye(4, 50), ["<s>", "x & y", "c", "d"], 0.04)
    highlight = np.zeros((200, 16))
    highlight[3, 15] = 1.0
    svg = spectrogram(Sound(FEATURES, 0.01, (), highlight), weights=weights, title="a < b\u202e")
    assert bitmap(svg, 0).max() == round(255 * FADED)
    assert bitmap(svg, 1)[0, 3] == 255 and bitmap(svg, 1).sum() == 255
    assert np.array_equal(bitmap(svg, 2) > 0, np.eye(4, 50) > 0)
    assert 'class="up"' in svg and "x␣&amp;␣y" in svg and "\u202e" not in svg


def test_long_and_short_recordings():
    for seconds in (0.04, 1.0, 70.0):
        svg = spectrogram(Sound(RNG.normal(size=(int(100 * seconds), 8)), 0.01))
        width, height = float(parse(svg).attrib["width"]), float(parse(svg).attrib["height"])
        assert WIDTH < width < 2600 and height > SPECTROGRAM
        ticks = [text for text in texts(svg) if re.fullmatch(r"[\d.]+", text)]
        assert 1 <= len(ticks) <= 50 and ticks[0] == "0"


@pytest.mark.parametrize("features", [np.zeros((0, 4)), np.zeros(4), np.full((3, 3), np.nan)])
def test_what_cannot_be_drawn_is_refused(features):
    with pytest.raises(UsageError, match=re.escape(f"expected finite features (T, F), got the shape {features.shape}")):
        spectrogram(Sound(features, 0.01))
