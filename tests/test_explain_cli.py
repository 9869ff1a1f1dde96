"""`weft explain`: terminal output, files, the page in a browser, and its figures."""

from __future__ import annotations

import ast
import base64
import io
import json
import re
import struct
import xml.etree.ElementTree as ET
import zlib
from pathlib import Path

import numpy as np
import pytest
from browser import chromium
from command_line import expect_error, set_stdin
from hypothesis import given, settings
from hypothesis import strategies as st
from seq2seq_runs import Seq2SeqRuns
from small_runs import make_text, run_file, train_here

import weft
from weft import explain
from weft.cli.main import main
from weft.errors import DataError, UsageError
from weft.explain import guides
from weft.explain.explanation import Explanation, Figure, TokenSpan, align_columns, unique_labels
from weft.explain.page import page
from weft.plots.diverging_heatmap import diverging_heatmap
from weft.plots.grid import Map, grid
from weft.plots.heatmap import MAX_LABELED, heatmap
from weft.plots.lines import Axis, Series, lines
from weft.plots.png import png
from weft.text.tokenizers import TYPES, Tokenizer, TokenizerConfig, train_tokenizer

CHROMIUM = Path("/usr/bin/chromium")
BRIEF = ("train.max_steps=3", "train.num_validations=1")  # nothing here needs to be learned


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = Seq2SeqRuns(tmp_path_factory.mktemp("pairs"))
    runs.run_dir("lstm", *BRIEF)
    return runs.run_dir("transformer", *BRIEF)


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("counted")
    values = run_file(make_text(place / "text.txt"))
    values["model"] = {"arch": "ngram"}
    del values["train"]
    train_here(values, place / "run")
    return place / "run"


def test_a_summary_is_printed_and_nothing_written(run, capsys, tmp_path, monkeypatch, restore_openmp_env):
    monkeypatch.chdir(tmp_path)
    assert main(["explain", str(run), "bada", "--target", "B A"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == "" and " ".join(lines[0].split()) == "component layer head entropy self previous first strongest"
    assert (
        len(lines) == 13 + 5
        and lines[15].startswith("B       ")
        and re.fullmatch(r"cross +1 +1 +\d\.\d\d +- +- +\d\.\d\d  \S+ -> \S+ \d\.\d\d", lines[1])
    )
    assert list(tmp_path.iterdir()) == []


def test_json_has_values_with_positions(run, capsys, restore_openmp_env):
    words = [
        "explain",
        str(run),
        "bada",
        "--view",
        "attribution",
        "--method",
        "input-x-gradient",
        "--beam-size",
        "1",
        "--max-new-tokens",
        "3",
    ]
    assert main([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["run"], data["input"]) == (str(run), "bada")
    (view,) = data["views"]
    assert view["view"] == "attribution" and view["method"] == "input-x-gradient" and len(view["outputs"]) <= 3
    assert [token["start"] for token in view["tokens"]] == [0, 1, 2, 3, 0]


def test_written_files_are_listed(run, capsys, tmp_path, restore_openmp_env):
    words = ["explain", str(run), "bada", "--target", "B", "--view", "attention", "--view", "rollout", "--output"]
    for name in ("a.html", "a.json"):
        assert main([*words, str(tmp_path / name)]) == 0
        assert capsys.readouterr().err == f"Attention and rollout written to {tmp_path / name}\n"
        assert main([*words, str(tmp_path / name), "--quiet"]) == 0
        assert capsys.readouterr().err == ""


def test_files_in_the_output_directory(run, capsys, tmp_path, restore_openmp_env):
    words = ["explain", str(run), "bada", "--target", "B", "--view", "attention", "--view", "rollout", "--quiet"]
    for name in ("a.html", "a.svg", "a.json"):
        assert main([*words, "--output", str(tmp_path / name)]) == 0
        assert "Attention rollout through 2 layers" in capsys.readouterr().out
    assert {view["view"] for view in json.loads((tmp_path / "a.json").read_text())["views"]} == {"attention", "rollout"}
    pictures = sorted(tmp_path.glob("*.svg"))
    assert [path.name for path in pictures] == ["a-2.svg", "a-3.svg", "a-4.svg", "a-5.svg", "a-6.svg", "a-7.svg", "a.svg"]
    for path in pictures:
        assert ET.fromstring(path.read_text()).tag == "{http://www.w3.org/2000/svg}svg"
    html = (tmp_path / "a.html").read_text()
    assert html.count("<svg") == 7 and "default-src 'none'" in html
    assert not re.findall(r"(?:https?:)?//(?!www\.w3\.org/2000/svg)[\w.]+\.\w+", re.sub(r"base64,[\w+/=]+", "", html))


def test_standard_input_is_a_text(counted, capsys, monkeypatch, restore_openmp_env):
    set_stdin(monkeypatch, b"the old\ncat\n")
    assert main(["explain", str(counted), "--json"]) == 0
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert data["input"] == "the old\ncat" and data["views"][0]["method"] == "occlusion"
    assert err == ""  # running text


def test_joined_input_lines_are_reported(run, capsys, monkeypatch, restore_openmp_env):
    message = "weft: note: 2 lines are read as one text; use one command per line to explain each\n"
    for given_lines, output in ((b"ba\n", ""), (b"ba\nda\n", message)):
        set_stdin(monkeypatch, given_lines)
        assert main(["explain", str(run), "--json", "--target", "B A"]) == 0
        assert capsys.readouterr().err == output


def test_a_text_too_long_to_display_is_refused(run):
    with pytest.raises(DataError) as caught:
        weft.load(run).explain("a" * 20_001)
    assert str(caught.value) == "input: 20,001 characters exceed the limit of 20,000; use a part of the text"


def test_invalid_options_are_refused(run, counted, capsys, restore_openmp_env):
    assert expect_error(capsys, "explain", str(run), "x", "--output", "x.pdf") == (
        2, "--output: x.pdf must end in .html, .svg, .png or .json",
    )  # fmt: skip
    code, line = expect_error(capsys, "explain", str(run), "x", "--view", "atention")
    assert code == 2 and line == "--view: unknown view 'atention'; did you mean 'attention'?"
    code, line = expect_error(capsys, "explain", str(counted), "x", "--view", "attention")
    assert code == 2 and line.startswith("--view: attention is not available: ngram has no attention; choose from attribution,")


# ---- the page


def test_a_page_of_odd_texts_stays_a_page():
    token = {"text": "</script><b>&\u202e", "start": 0, "end": 1}
    layer = {"component": "encoder", "layer": 1, "heads": [1], "rows": [token], "columns": [token], "weights": [[[1.0]]]}
    view = Explanation("attention", "<i>t</i>", {"layers": [layer]}, [Figure("<u>c</u>", "<svg></svg>")], ["<b> 1"])
    html = page([view], title="<script>alert(1)</script>")
    assert "<script>alert" not in html and "<i>t" not in html and "<u>c" not in html and "<b>" not in html
    assert html.count("</script>") == 2
    data = json.loads(re.search(r'class="attention">(.*?)</script>', html)[1])
    assert data[0]["rows"] == ["</script><b>&\\u202e"] and base64.b64decode(data[0]["weights"]) == b"\xff"


def test_every_view_explains_its_figures():
    """Each `Explanation(...)` of explain/ has a guide, its sixth argument, and the page shows it above the pictures."""
    results = []
    for path in sorted(Path(explain.__file__).parent.glob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        views = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "Explanation"]
        results += [ast.unparse(node.args[5]) for node in views]
    assert len(results) > 15 and all(item.startswith("guides.") for item in results)
    reported = {name: text for name, text in vars(guides).items() if name.isupper()}
    assert {f"guides.{name}" for name in reported} == set(results)
    assert all(40 < len(text) < 300 and text.endswith(".") for text in reported.values())
    view = Explanation("x", "t", {}, [Figure("c", "<svg></svg>")], ["1"], "Read <it>.")
    assert '<p class="guide">Read &lt;it&gt;.</p>' in page([view])
    assert "guide" not in page([view._replace(figures=[])]).split("</style>")[1]


def test_figures_are_in_two_columns_and_wide_ones_scroll(tmp_path):
    wide = '<svg width="1500" height="50" viewBox="0 0 1500 50"></svg>'
    chart = lines([Series("", [1, 2], [1, 2])], x_axis=Axis("x"), y_axis=Axis("y"))
    single = Explanation("a", "A", {}, [Figure("1", chart), Figure("2", chart), Figure("3", wide)], ["in words"])
    html = page(
        [single, Explanation("b", "B", {}, [Figure("4", chart)], ["in words"]), Explanation("c", "C", {}, [], ["in words"])]
    )
    assert html.count('<figure class="wide">') == 1
    assert [bool(opened) for opened in re.findall("<details( open)?>", html)] == [False, True, True]
    (tmp_path / "a.html").write_text(html)
    with chromium() as browser:
        tab = browser.new_page(viewport={"width": 1280, "height": 800})
        tab.goto((tmp_path / "a.html").as_uri())
        boxes = [figure.bounding_box() for figure in tab.locator("figure").all()]
        numbers = tab.locator("details").nth(1).bounding_box()
        assert boxes[0]["y"] == boxes[1]["y"] and boxes[1]["x"] > boxes[0]["x"] + boxes[0]["width"]
        assert boxes[2]["y"] > boxes[0]["y"] and numbers["x"] > boxes[3]["x"] + boxes[3]["width"]
        assert [hint.is_visible() for hint in tab.locator(".hint").all()] == [False, False, True, False]
        for width in (1280, 1200, 900):  # the chart is 630 pixels wide, and its column may be 574
            tab.set_viewport_size({"width": width, "height": 800})
            assert tab.locator(".scroll").nth(0).evaluate("one => one.scrollWidth <= one.clientWidth")
        tab.set_viewport_size({"width": 1280, "height": 800})
        tab.locator(".scroll").nth(2).evaluate("one => { one.scrollLeft = one.scrollWidth; }")
        tab.locator(".hint").nth(2).wait_for(state="hidden")
        tab.set_viewport_size({"width": 390, "height": 800})
        assert tab.evaluate("document.documentElement.scrollWidth") == 390


def test_any_head_can_be_selected_in_a_browser(run, capsys, tmp_path, restore_openmp_env):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    if not CHROMIUM.exists():
        pytest.skip("no Chromium here: apt-get install chromium")
    assert main(["explain", str(run), "bada", "--target", "B A", "--output", str(tmp_path / "a.html")]) == 0
    asked: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 390, "height": 800})
        tab.on("request", lambda request: asked.append(request.url))
        tab.on("pageerror", lambda error: pytest.fail(str(error)))
        tab.goto((tmp_path / "a.html").as_uri())
        assert tab.locator(".head-panel").count() == 3
        tab.locator("[data-key=grid-encoder-0-1]").click()
        panel = tab.locator(".head-panel").nth(1)
        assert panel.locator(".head-name").inner_text() == "Layer 1, head 2"
        panel.locator(".queries").press("ArrowLeft")
        assert panel.locator(".queries .selected").inner_text() == "a"
        assert re.match(r"a attends most to \S+ \(0\.\d\d\)", panel.locator("output").inner_text())
        assert tab.evaluate("document.documentElement.scrollWidth") == 390
        browser.close()
    assert all(url.startswith(("file:", "data:")) for url in asked)
    capsys.readouterr()


def test_equal_tokens_are_distinguished():
    assert unique_labels([TokenSpan("a", 0, 1), TokenSpan(" ", 1, 2), TokenSpan("a", 2, 3)]) == ["a(1)", "␣", "a(3)"]


def test_columns_are_aligned():
    assert align_columns([("a", "10", "x"), ("bcd", "2", "yy")], left=(0, 2)) == ["a    10  x", "bcd   2  yy"]


# ---- drawings


def pixels(data: bytes) -> np.ndarray:
    """What a PNG of greys holds, by the format's own rules."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    stream, results = io.BytesIO(data[8:]), {}
    while head := stream.read(8):
        length, kind = struct.unpack(">I4s", head)
        results[kind] = stream.read(length)
        assert struct.unpack(">I", stream.read(4))[0] == zlib.crc32(kind + results[kind])
    wide, high, *rest = struct.unpack(">IIBBBBB", results[b"IHDR"])
    assert rest == [8, 0, 0, 0, 0]
    rows = np.frombuffer(zlib.decompress(results[b"IDAT"]), np.uint8).reshape(high, wide + 1)
    assert (rows[:, 0] == 0).all()
    return rows[:, 1:]


def test_small_heat_maps_equal_the_weights():
    weights = np.array([[1.0, 0.25, 0.0], [0.0, 0.5, 0.5]])
    grey = np.array([[255, 128, 0], [0, 180, 180]], np.uint8)
    np.testing.assert_array_equal(pixels(png(grey)), grey)
    drawn = grid([("layer 1", [Map("head 1", weights, "<note>"), Map("head 2", weights)])], key="k", title="a < b")
    root = ET.fromstring(drawn)
    images = [item.get("href") for item in root.iter("{http://www.w3.org/2000/svg}image")]
    assert len(images) == 2
    np.testing.assert_array_equal(pixels(base64.b64decode(images[0].split(",")[1])), grey)
    assert [item.get("data-key") for item in root.iter("{http://www.w3.org/2000/svg}g")] == ["k-0-0", "k-0-1"]
    with pytest.raises(UsageError) as caught:
        grid([("layer 1", [])], key="k")
    assert str(caught.value) == "grid: nothing to draw: every row needs a map"


def test_the_heat_map_of_a_long_text_equals_its_cells():
    weights = np.random.default_rng(0).random((MAX_LABELED // 50, 60))
    drawn = heatmap(weights, rows=["a"] * len(weights), columns=["b"] * 60)
    (image,) = ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}image")
    result = pixels(base64.b64decode(image.get("href").split(",")[1]))
    np.testing.assert_array_equal(result, (255 * np.sqrt(weights)).round())
    assert len(drawn) < 100_000


def test_signed_cells_have_the_color_of_their_sign():
    values = np.array([[1.0, -2.0], [0.0, 0.5]])
    root = ET.fromstring(diverging_heatmap(values, rows=["a", "b"], columns=["c", "d"], name="nats", title="t"))
    cells = [
        (item.get("class"), float(item.get("opacity")))
        for item in root.iter("{http://www.w3.org/2000/svg}path")
        if item.get("opacity")
    ]
    assert cells == [("up", 0.601), ("down", 0.85), ("up", 0.425)]  # by the square root, and no zero
    half = ET.fromstring(diverging_heatmap(values, rows=["a", "b"], columns=["c", "d"], name="nats", maximum=4.0))
    assert [item.get("opacity") for item in half.iter("{http://www.w3.org/2000/svg}path") if item.get("opacity")][1] == ".601"
    with pytest.raises(UsageError) as caught:
        diverging_heatmap(values, rows=["a"], columns=["c", "d"], name="nats")
    assert str(caught.value) == "diverging_heatmap: shape (2, 2) does not match 1 rows and 2 columns"
    with pytest.raises(UsageError) as caught:
        diverging_heatmap(np.full((2, 2), np.inf), rows=["a", "b"], columns=["c", "d"], name="nats")
    assert str(caught.value) == "diverging_heatmap: values must be finite"


# ---- where tokens stand


SAMPLE = "the cat sat on the mat\nhello wörld \U0001f642 naïve  two\tspaces\nÜnïcode <s> and </s> x<unk>y 漢字テスト\n"


def tokenizer_of(kind: str, *, lowercase: bool = False) -> Tokenizer:
    table = TokenizerConfig(type=kind, vocab_size=300, lowercase=lowercase)
    return train_tokenizer(table, iter(SAMPLE.splitlines(keepends=True)))


TOKENIZERS = {kind: tokenizer_of(kind) for kind in TYPES}
TEXTS = st.text(st.sampled_from([*set(SAMPLE), "é", "\u0301", "İ", "\u2028"]), max_size=30)


@pytest.mark.parametrize("kind", TYPES)
@settings(max_examples=40, deadline=None)
@given(text=TEXTS)
def test_spans_are_the_positions_of_tokens(kind, text):
    tokenizer = TOKENIZERS[kind]
    numbers, spans = tokenizer.encode(text).tolist(), tokenizer.offsets(text)
    assert len(numbers) == len(spans)
    assert all(low <= high for low, high in spans) and spans == sorted(spans)
    for number, (low, high) in zip(numbers, spans, strict=True):
        shown = tokenizer.token_text(number)
        if number == tokenizer.unk_id or "\\x" in shown:
            assert high > low
        else:
            assert shown.removeprefix("##") == text[low:high]
    if tokenizer.lossless and kind != "char":
        covered = {index for low, high in spans for index in range(low, high)}
        assert covered == set(range(len(text)))


@pytest.mark.parametrize("kind", ["char", "byte", "word"])
def test_spans_refer_to_the_text_before_lowercasing(kind):
    tokenizer = tokenizer_of(kind, lowercase=True)
    text = "THE İCat"  # İ becomes two characters
    numbers, spans = tokenizer.encode(text), tokenizer.offsets(text)
    assert len(numbers) == len(spans)
    first = spans[0]
    assert text[first[0] : first[1]] == ("THE" if kind == "word" else "T")
    assert spans[-1][1] == len(text)
