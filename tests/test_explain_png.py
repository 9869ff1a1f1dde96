"""PNG export of figures: rendering and errors."""

from __future__ import annotations

import io
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import expect_error
from seq2seq_runs import Seq2SeqRuns

from weft.cli.explanation_output import write_explanations
from weft.cli.main import main
from weft.errors import ResourceError, UsageError
from weft.explain.explanation import Explanation
from weft.plots import raster as rastering
from weft.plots.grid import Map, grid
from weft.plots.heatmap import heatmap
from weft.plots.raster import check_raster, raster

resvg = pytest.importorskip("resvg_py", reason="resvg-py is not installed: pip install resvg-py")
try:
    check_raster("--output")
except ResourceError:
    pytest.skip("no font is installed: apt-get install fonts-dejavu-core", allow_module_level=True)


def pixels(data: bytes) -> np.ndarray:
    """(high, wide, 3), on black where nothing is drawn."""
    images = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    return np.asarray(images.open(io.BytesIO(data)).convert("RGB"))


def drawing(*, wide: float = 20, high: float = 10, inside: str = "") -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}">{inside}</svg>'


def test_a_png_has_twice_the_size_of_the_svg():
    result = pixels(raster(drawing(inside='<rect x="5" width="5" height="10" fill="#c80000"/>')))
    assert result.shape == (20, 40, 3)
    assert (result[:, 10:20] == (200, 0, 0)).all() and (result[:, :10] == 0).all() and (result[:, 20:] == 0).all()


def test_a_heat_map_has_a_light_background_and_text():
    weights = np.array([[1.0, 0.0], [0.25, 0.75]])
    svg = heatmap(weights, rows=["a", "b"], columns=["c", "d"], title="t")
    result = pixels(raster(svg))
    assert tuple(result[4, result.shape[1] // 2]) == (255, 255, 255)  # dark is for screens that ask for it
    assert (result == (8, 48, 107)).all(-1).sum() > 40 * 40  # a cell of weight 1, in ink
    bare = pixels(raster(svg.replace(">t<", "> <").replace(">a<", "> <")))
    assert (result != bare).any()


def test_small_maps_and_characters_of_any_script_are_drawn():
    weights = np.eye(4)
    dark = (pixels(raster(grid([("layer 1", [Map("head 1", weights, "")])], key="k"))) < 128).all(-1).sum()
    light = (pixels(raster(grid([("layer 1", [Map("head 1", 0 * weights, "")])], key="k"))) < 128).all(-1).sum()
    assert dark > light + 100
    plain = raster(heatmap(weights[:1, :1], rows=["a"], columns=["."]))
    for letter in ("é", "ж", "λ"):
        assert raster(heatmap(weights[:1, :1], rows=[letter], columns=["."])) != plain


def test_large_figures_lose_resolution_and_too_large_ones_are_refused(monkeypatch):
    monkeypatch.setattr(rastering, "MAX_PIXELS", 40_000)
    wide, high = struct.unpack(">II", raster(drawing(wide=250, high=160))[16:24])
    assert (wide, high) == (250, 160)
    with pytest.raises(UsageError) as caught:
        raster(drawing(wide=2500, high=1600))
    assert str(caught.value) == ".png: a picture of 2,500 x 1,600 would be too small to read; write .svg or .html"
    with pytest.raises(UsageError) as caught:
        raster("<svg></svg>")
    assert str(caught.value) == "raster: the first tag of a drawing must have width and height, in this order"


def test_missing_png_support_is_reported_before_any_work(monkeypatch):
    check_raster("--output")
    monkeypatch.setattr(rastering, "BLANK", drawing(inside="<text></text>"))
    monkeypatch.setattr(resvg, "svg_to_bytes", lambda svg_string: b"")  # as where no font is installed
    with pytest.raises(ResourceError) as caught:
        check_raster("--output")
    assert str(caught.value) == "--output: .png requires a font and none is installed; install DejaVu Sans or write .svg"
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(ResourceError) as caught:
        check_raster("--plot")
    assert str(caught.value) == "--plot: .png requires the package resvg-py; run pip install resvg-py, or write .svg"


@pytest.mark.slow
def test_explain_writes_a_png_for_every_figure(tmp_path, capsys, restore_openmp_env):
    run = Seq2SeqRuns(tmp_path).run_dir("lstm", "train.max_steps=3", "train.num_validations=1")
    views = ["attention", "surprisal", "beam-search", "gradient-flow"]
    words = ["explain", str(run), "bada", "--target", "B A", *(word for what in views for word in ("--view", what))]
    assert main([*words, "--quiet", "--output", str(tmp_path / "x.png")]) == 0
    assert main([*words, "--quiet", "--output", str(tmp_path / "x.svg")]) == 0
    capsys.readouterr()
    drawn = sorted(path.stem for path in tmp_path.glob("*.svg"))
    assert sorted(path.stem for path in tmp_path.glob("*.png")) == drawn and len(drawn) >= len(views)
    for path in tmp_path.glob("*.png"):
        assert pixels(path.read_bytes()).std() > 5  # something is on the paper
    assert expect_error(capsys, "explain", str(run), "x", "--output", "x.jpg") == (
        2, "--output: x.jpg must end in .html, .svg, .png or .json",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["x.png", "x.svg"])
def test_a_view_without_a_figure_says_so(tmp_path, name):
    with pytest.raises(UsageError) as caught:
        write_explanations(Path(name), [Explanation("logit-lens", "t", {}, [])], title="t", numbers={}, quiet=True)
    assert str(caught.value) == f"{name}: logit-lens has no figure; write .html or .json"
