"""SVG heat maps: valid XML for any tokens, one cell per weight, visible labels inside the drawing."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import UsageError
from weft.plots.heatmap import heatmap, visible

SVG = "{http://www.w3.org/2000/svg}"


def drawn(weights, rows, columns, title=""):
    return ET.fromstring(heatmap(np.asarray(weights), rows=rows, columns=columns, title=title))


def cells(tree):
    """Rows of (opacity, lines of the tooltip)."""
    [ink] = [part for part in tree.findall(f"{SVG}g") if part.get("class") == "ink"]
    return [[(float(cell.get("opacity")), cell[0].text.split("\n")) for cell in row] for row in ink]


def labels(tree):
    """Row labels, column labels, and the transforms of the column labels."""
    rows, columns = tree.findall(f"{SVG}g")[:2]
    return [text.text for text in rows], [text.text for text in columns], [text.get("transform") for text in columns]


def size(tree):
    return int(tree.get("width")), int(tree.get("height"))


def square(count, seed=0):
    weights = np.random.default_rng(seed).dirichlet(np.ones(count), count)
    return weights, [f"word{index}" for index in range(count)]


def test_every_weight_is_a_cell_with_its_tokens_and_value():
    tree = drawn([[0.25, 0.75, 0], [1, 0, 0.0004]], ["le", "</s>"], ["the", "a<b", "&"])
    actual = cells(tree)
    assert [[words for _, words in row] for row in actual] == [
        [["le", "the", ".25"], ["le", "a<b", ".75"], ["le", "&", "0"]],
        [["</s>", "the", "1"], ["</s>", "a<b", "0"], ["</s>", "&", "0"]],
    ]
    assert [[shade for shade, _ in row] for row in actual] == [[0.5, 0.866, 0], [1, 0, 0.02]]
    assert labels(tree)[:2] == (["le", "</s>"], ["the", "a<b", "&"])


def test_cells_are_in_their_row_and_column():
    weights, words = square(3)
    [ink] = [part for part in drawn(weights, words, words).findall(f"{SVG}g") if part.get("class") == "ink"]
    assert [row.get("transform") for row in ink] == ["translate(0 0)", "translate(0 1)", "translate(0 2)"]
    assert [cell.get("d") for cell in ink[1]] == ["M0 0h1v1h-1z", "M1 0h1v1h-1z", "M2 0h1v1h-1z"]


def test_color_scale_is_the_same_for_all_maps_of_weights_up_to_one():
    for weights in ([[0.04, 0.01]], [[1.0, 0.01]]):
        assert cells(drawn(weights, ["a"], ["b", "c"]))[0][1][0] == 0.1
    larger = drawn([[8.0, 2.0]], ["a"], ["b", "c"])
    assert [shade for shade, _ in cells(larger)[0]] == [1, 0.5]
    legend = [text.text for text in larger.findall(f"{SVG}g")[-1].findall(f"{SVG}text")]
    assert legend == ["0", "0.08", "0.4", "0.8", "2", "4", "8", "weight; shade: its square root"]


def test_legend_has_the_colors_of_the_cells():
    legend = drawn([[0.5]], ["a"], ["b"]).findall(f"{SVG}g")[-1]
    shades = [float(box.get("opacity")) for box in legend.findall(f"{SVG}rect") if box.get("class") == "ink"]
    values = [float(text.text) for text in legend.findall(f"{SVG}text")[:-1]]
    assert shades == pytest.approx([math.sqrt(value) for value in values], abs=1e-3)


def test_axis_titles_are_optional():
    weights, words = square(3)
    plain = drawn(weights, words, words)
    titled = ET.fromstring(heatmap(weights, rows=words, columns=words, axes=("out<put", "source")))
    across, down = titled.find(f"{SVG}g").findall(f"{SVG}text")
    assert (across.text, down.text) == ("source", "out<put") and down.get("transform").endswith("rotate(-90)")
    assert [now - before for now, before in zip(size(titled), size(plain), strict=True)] == [16, 16]
    # above the labels of the columns, left of those of the rows, each at the middle of the grid
    left, top = map(float, re.search(r"translate\((\S+) (\S+)\) scale", ET.tostring(titled, "unicode")).groups())
    cell = 40
    assert float(across.get("x")) == left + 1.5 * cell and float(across.get("y")) < top
    x, y = map(float, re.search(r"translate\((\S+) (\S+)\)", down.get("transform")).groups())
    assert x < left and y == top + 1.5 * cell


def test_column_labels_are_rotated_if_they_would_overlap():
    weights, words = square(4)
    assert all(position.endswith("rotate(-45)") for position in labels(drawn(weights, words, words))[2])
    assert not any("rotate" in position for position in labels(drawn(weights, words, list("abcd")))[2])
    # eighty characters are narrow, eighty words are wide
    weights, words = square(80)
    assert not any("rotate" in position for position in labels(drawn(weights, words, ["x"] * 80))[2])


@pytest.mark.parametrize(("count", "cell"), [(1, 40), (2, 40), (20, 36), (30, 24), (60, 18), (100, 18)])
def test_cell_size_depends_on_the_number_of_cells(count, cell):
    weights, words = square(count)
    tree = drawn(weights, words, words)
    assert f"scale({cell})" in [part.get("transform", "") for part in tree.findall(f"{SVG}g")][2]
    width, height = size(tree)
    assert min(width, height) > count * cell
    assert max(width, height) < count * cell + 300


def test_a_60_by_60_map_is_a_small_file():
    weights, words = square(60)
    assert len(heatmap(weights, rows=words, columns=words).encode()) < 100 * 60 * 60


def test_svg_is_self_contained():
    weights, words = square(3)
    text = heatmap(weights, rows=words, columns=words, title="alone")
    assert not re.search(r"href|url\(|@import|<script|<image|font-face|\bid=", text)
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]
    # a page may contain several drawings
    rules = re.findall(r"([^{}]+)\{[^{}]*\}", re.search("<style>(.*)</style>", text)[1])
    assert all(
        rule.removeprefix("@media screen and (prefers-color-scheme:dark){").startswith(".weft-heatmap") for rule in rules
    )


def test_dark_and_light_differ_in_every_color_but_the_grid():
    style = re.search("<style>(.*)</style>", heatmap(np.ones((1, 1)), rows=["a"], columns=["b"]))[1]
    light, dark = style.split("@media screen and (prefers-color-scheme:dark)")
    fills = [dict(re.findall(r"\.weft-heatmap (\S+)\{fill:(#\w+)\}", part)) for part in (light, dark)]
    assert fills[0].keys() == fills[1].keys() == {".paper", ".ink", "text"}
    assert not set(fills[0].values()) & set(fills[1].values())


@pytest.mark.parametrize(
    ("token", "label"),
    [
        ("</s>", "</s>"),
        ("", "ε"),
        (" ", "␣"),
        (" the", "␣the"),
        ("\t", "\\t"),
        ("\n", "\\n"),
        ("a\x00b", "a\\x00b"),
        ("\u00a0", "\\xa0"),
        ("\u202e", "\\u202e"),
        ("\ud800", "\\ud800"),
        ("\ufffe", "\\ufffe"),
        ("\u200d", "\\u200d"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("\u0301", "◌\u0301"),
        ("e\u0301", "e\u0301"),
        ("ि", "◌ि"),
        ("猫", "猫"),
        ("👩\u200d👧", "👩\u200d👧"),
    ],
)
def test_invisible_tokens_have_visible_labels(token, label):
    assert visible(token) == label
    assert labels(drawn([[1.0]], [token], [token]))[:2] == ([label], [label])


@given(st.lists(st.text(st.characters(), max_size=30), min_size=1, max_size=4), st.text(st.characters(), max_size=60))
@settings(max_examples=150, deadline=None)
def test_any_tokens_and_title_give_valid_xml(tokens, title):
    tree = drawn(np.eye(len(tokens)), tokens, tokens, title)
    assert [words[0] for [(_, words), *_] in cells(tree)] == [visible(token) for token in tokens]


def test_long_labels_are_truncated_between_characters_and_complete_in_the_tooltip():
    accents, words = "e\u0301" * 30, "Donaudampfschifffahrtsgesellschaft"
    tree = drawn(np.eye(2), [accents, "x" * 24], [words, "y" * 25])
    rows, columns, _ = labels(tree)
    assert rows == ["e\u0301" * 23 + "…", "x" * 24]
    assert columns == ["Donaudampfschifffahrtsg…", "y" * 23 + "…"]
    assert cells(tree)[0][0][1] == [accents, words, "1"]
    emoji = drawn([[1.0]], ["👩\u200d👧" * 30], ["a"])
    assert labels(emoji)[0] == ["👩\u200d👧" * 23 + "…"]


def test_wide_characters_get_more_space():
    wide, narrow, marks = (size(drawn([[1.0]], [row], ["x"]))[0] for row in ("猫" * 10, "l" * 10, "l\u0301" * 10))
    assert wide > narrow == marks


def test_title_is_wrapped_and_has_an_accessible_name():
    weights, words = square(2)
    title = "layer 1: " + "many words " * 12 + '<&"'
    tree = drawn(weights, words, words, title)
    lines = [span.text for span in tree.find(f"{SVG}text")]
    assert len(lines) > 1
    assert " ".join(lines) == tree.get("aria-label") == " ".join(title.split())
    assert size(tree)[0] < 420
    plain = drawn(weights, words, words)
    assert plain.find(f"{SVG}text") is None
    assert plain.get("aria-label") == "heat map"
    assert size(tree)[1] - size(plain)[1] == 16 * len(lines) + 6


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones((2, 3)), "heatmap: shape (2, 3) does not match 2 rows and 2 columns"),
        (np.ones((1, 2, 2)), "heatmap: shape (1, 2, 2) does not match 2 rows and 2 columns"),
        (np.array([[1, 0], [np.nan, 1]]), "heatmap: weights must be finite and at least 0, got nan"),
        (np.array([[1, 0], [1, np.inf]]), "heatmap: weights must be finite and at least 0, got inf"),
        (np.array([[1, -0.5], [1, 1]]), "heatmap: weights must be finite and at least 0, got -0.5"),
    ],
)
def test_invalid_maps_are_rejected(weights, message):
    with pytest.raises(UsageError) as caught:
        heatmap(weights, rows=["a", "b"], columns=["c", "d"])
    assert str(caught.value) == message


def test_an_empty_map_is_rejected():
    with pytest.raises(UsageError) as caught:
        heatmap(np.ones((0, 2)), rows=[], columns=["c", "d"])
    assert str(caught.value) == "heatmap: nothing to draw: the shape is (0, 2)"
