"""The HTML report in a real browser: sorting, toggles, zoom and details work, with no network request and no error."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from browser import chromium
from report_documents import classification_document, lm_document, seq2seq_document, tagging_document

from weft.report.page import page

DOCUMENTS = {
    "translation": seq2seq_document(),
    "language": lm_document(),
    "labels": classification_document(),
    "many": classification_document(60),
    "tags": tagging_document(),
}
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&amp;\u202eevil\u0007"


@pytest.fixture(scope="module")
def browser():
    with chromium() as actual:
        yield actual


class ReportPage:
    """An open report, with its network requests and console errors."""

    def __init__(self, browser: Any, path: Path, document: Any, **options: Any) -> None:
        path.write_text(page(document), encoding="utf-8")
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, "offline": True, **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.errors.append(message.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: self.errors.append(f"dialog: {dialog.message}") or dialog.dismiss())
        self.page.goto(path.as_uri())
        self.url = path.as_uri()

    def all(self, selector: str) -> list[str]:
        return [text.strip() for text in self.page.locator(selector).all_text_contents()]

    def count(self, selector: str) -> int:
        return self.page.locator(selector).count()


@pytest.fixture
def open_report(browser, tmp_path):
    opened: list[ReportPage] = []

    def show(document: Any, **options: Any) -> ReportPage:
        opened.append(ReportPage(browser, tmp_path / f"{len(opened)}.html", document, **options))
        return opened[-1]

    yield show
    for item in opened:
        item.context.close()
        assert item.errors == []
        assert item.requests == [item.url]  # only the file itself


SELECTED = ("translation", "tags")  # the others are rendered by the slow tests


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in SELECTED)) for name in DOCUMENTS])
def test_page_renders_without_errors_within_the_viewport(open_report, name):
    report = open_report(DOCUMENTS[name])
    for width in (1280, 390):
        report.page.set_viewport_size({"width": width, "height": 800})
        report.page.wait_for_function(f"document.querySelector('[data-chart=cost] svg.chart').clientWidth < {width}")
        assert report.page.evaluate("document.documentElement.scrollWidth") <= width
        for chart in report.page.locator("[data-chart]").all():
            assert chart.locator("svg, article").count() > 0
        drawn = report.page.locator("main").inner_html()
        assert "NaN" not in drawn and "undefined" not in drawn and "Infinity" not in drawn


def test_table_fits_1280_pixels_and_architectures_take_one_line(open_report):
    document = seq2seq_document()
    for row in document["rows"]:
        row["difference"] = None if row["best"] else {"value": -10.25, "low": -11.25, "high": -9.25}
    document["rows"][2]["name"] = "naive-bayes"
    for part in ("curves", "breakdowns", "items", "settings"):
        document[part] = None
    report = open_report(document)
    report.page.set_viewport_size({"width": 1280, "height": 800})
    table = report.page.locator("table.results")
    assert table.evaluate("one => one.scrollWidth <= one.parentElement.clientWidth")
    heights = [name.bounding_box()["height"] for name in report.page.locator("table.results .name").all()]
    assert max(heights) < 1.5 * min(heights)


def test_names_stay_in_their_column_on_a_phone(open_report):
    document = classification_document()
    names = {"transformer": "logistic-regression", "naive-bayes": "n" * 20}
    for row in document["rows"]:
        row["name"] = names.get(row["name"], row["name"])
    for part in ("curves", "breakdowns", "items", "confusions", "settings"):
        document[part] = None
    report = open_report(document, viewport={"width": 390, "height": 800})
    for name in report.page.locator("table.results .name").all():
        assert name.evaluate("one => one.scrollWidth <= one.clientWidth")


def test_an_axis_of_similar_costs_has_tick_labels_on_a_phone(open_report):
    document = seq2seq_document()
    for row, parameters in zip(document["rows"], (651_690, 940_714, 615_018, 700_000), strict=True):
        row["num_parameters"] = parameters
    report = open_report(document)
    report.page.set_viewport_size({"width": 390, "height": 800})
    report.page.wait_for_function("document.querySelector('[data-chart=cost] svg.chart').clientWidth < 390")
    labels = report.all("[data-chart=cost] svg.chart text")
    assert sum(text.endswith("k") for text in labels) >= 2, labels


def test_every_column_sorts_in_both_directions_with_missing_values_last(open_report):
    report = open_report(lm_document())
    names = "table.results tbody th bdi"
    assert report.all(names) == ["gpt", "lstm", "ngram"]  # the lower the better, infinity last
    rows = {row["name"]: row for row in lm_document()["rows"]}
    keys = [lambda row: row["name"], None, None, lambda row: len(row["seeds"]), lambda row: row["num_parameters"]]
    for column, key in enumerate(keys):
        if key is None:
            continue
        head = report.page.locator("table.results thead th").nth(column)
        for times, way in enumerate(("ascending", "descending")):
            head.locator("button").click()
            assert head.get_attribute("aria-sort") == way
            actual = [key(rows[name]) for name in report.all(names)]
            assert actual == sorted(actual, reverse=times == 1), column
    speed = report.page.locator("table.results thead th", has_text="train tok/s").first
    for way in ("descending", "ascending"):  # more is better, so the highest comes first
        speed.locator("button").click()
        assert speed.get_attribute("aria-sort") == way
        assert report.all(names)[-1] == "ngram"
    assert report.count('table.results th[aria-sort="ascending"], table.results th[aria-sort="descending"]') == 1


def test_tables_sort_by_keyboard(open_report):
    report = open_report(seq2seq_document())
    report.page.locator("table.results thead button").first.focus()
    report.page.keyboard.press("Enter")
    assert report.all("table.results tbody th bdi") == ["lstm", "lstm,attention", "rnn", "transformer"]


def lines(report: ReportPage, row: int, chart: str = "curves") -> int:
    return report.count(f'[data-chart="{chart}"] figure path.line:not(.raw).c{row}')


def test_smoothing_of_noisy_curves_can_be_switched_off(open_report):
    report = open_report(seq2seq_document())
    pale = '[data-chart="curves"] figure path.raw'
    bold = '[data-chart="curves"] figure:first-child path.line:not(.raw).c0'
    assert report.count(pale) == 8  # the training losses of four models, two seeds each; validation has few points
    before = report.page.locator(bold).first.get_attribute("d")
    report.page.locator('[data-chart="curves"] input.smooth').uncheck()
    assert report.count(pale) == 0 and report.page.locator(bold).first.get_attribute("d") != before
    document = seq2seq_document()
    for curve in document["curves"]:
        curve["train"] = curve["train"][:20]
    assert open_report(document).count('[data-chart="curves"] input.smooth') == 0


def test_a_wide_table_shows_a_scroll_hint_until_its_end(open_report):
    report = open_report(seq2seq_document(), viewport={"width": 390, "height": 800})
    hint = report.page.locator("#results .hint").first
    assert hint.is_visible() and hint.inner_text() == "Scroll sideways for more \u2192"
    report.page.locator("#results .scroll").first.evaluate("one => { one.scrollLeft = one.scrollWidth; }")
    hint.wait_for(state="hidden")
    report.page.set_viewport_size({"width": 1280, "height": 800})
    assert report.page.locator("#results .hint:visible").count() == 0


def test_toggling_a_model_applies_to_all_charts(open_report):
    report = open_report(seq2seq_document())
    assert lines(report, 0) == 4 and lines(report, 0, "breakdown") == 1  # two seeds, training and validation
    report.page.locator('[data-chart="curves"] .chip', has_text="rnn").click()
    assert lines(report, 0) == 0 and lines(report, 0, "breakdown") == 0 and lines(report, 1) == 4
    assert report.count('.chip[aria-pressed="false"]') == 3  # next to each chart
    assert "rnn" not in report.page.locator('[data-chart="cost"] .status').inner_text()
    report.page.locator('[data-chart="breakdown"] .chip', has_text="rnn").click()
    assert lines(report, 0) == 4


def ticks(report: ReportPage) -> list[str]:
    """Tick labels of the two learning curves."""
    return report.all('[data-chart="curves"] svg.zoomable text[text-anchor="middle"]')


def drag(report: ReportPage, start: tuple[float, float], end: tuple[float, float]) -> None:
    box = report.page.locator('[data-chart="curves"] svg.zoomable').first.bounding_box()
    x, y = (
        [box[side] + share * box[size] for share in pair]
        for side, size, pair in (("x", "width", (start[0], end[0])), ("y", "height", (start[1], end[1])))
    )
    report.page.mouse.move(x[0], y[0])
    report.page.mouse.down()
    report.page.mouse.move(x[1], y[1], steps=4)
    report.page.mouse.up()


def test_curves_zoom_in_and_out(open_report):
    report = open_report(seq2seq_document())
    report.page.locator('[data-chart="curves"]').scroll_into_view_if_needed()
    reset = report.page.locator("button.reset")
    full = ticks(report)
    assert "1,500" in full and reset.is_disabled()
    drag(report, (0.3, 0.3), (0.5, 0.6))
    near = ticks(report)
    assert "1,500" not in near and near[: len(near) // 2] == near[len(near) // 2 :]  # the other panel zooms along
    reset.click()
    assert ticks(report) == full and reset.is_disabled()
    drag(report, (0.3, 0.5), (0.5, 0.5))
    assert ticks(report) == near
    report.page.locator('[data-chart="curves"] svg.zoomable').first.dblclick()
    assert ticks(report) == full
    report.page.locator('[data-chart="curves"] svg.zoomable').first.focus()
    report.page.keyboard.press("+")
    closer = ticks(report)
    assert closer != full
    report.page.keyboard.press("ArrowRight")
    assert ticks(report) != closer
    report.page.keyboard.press("Escape")
    assert ticks(report) == full


def test_curve_axes_steps_tokens_time_and_log_scale(open_report):
    report = open_report(seq2seq_document())
    box = report.page.locator('[data-chart="curves"]')
    box.get_by_text("tokens", exact=True).click()
    assert "tokens" in ticks(report) and any(text.endswith("M") for text in ticks(report))
    box.get_by_text("training time").click()
    assert any(re.fullmatch(r"\d+m(\d\ds)?", text) for text in ticks(report))
    sides = '[data-chart="curves"] figure:first-child text[text-anchor="end"]'
    before = report.all(sides)
    box.locator("input.log").check()
    assert report.all(sides) != before


def test_tooltips_describe_the_point_under_the_pointer(open_report):
    report = open_report(seq2seq_document())
    spot = report.page.locator('[data-chart="curves"] figure:nth-child(2) path.point.c3').last
    spot.scroll_into_view_if_needed()
    box = spot.bounding_box()
    report.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    last = [curve for curve in seq2seq_document()["curves"] if curve["name"] == "transformer"][1]["valid"][-1]
    tooltip = report.page.locator('[data-chart="curves"] .tip:visible').inner_text()
    assert re.fullmatch(r"transformer, seed [01]\nstep 1,500: \d+\.\d+", tooltip)
    assert f"{last['step']:,}" in tooltip


def pareto(document: Any, cost: str) -> list[str]:
    """Rows that no other row dominates in score and cost, by brute force."""

    def price(row: Any) -> float:
        return -row[cost] if cost == "inference_rate" else row[cost]

    sign = 1 if document["metric"]["better"] == "higher" else -1
    rows = [(price(row), sign * row["score"]["value"], row["name"]) for row in document["rows"]]
    front = [
        candidate
        for candidate in rows
        if not any(a <= candidate[0] and b >= candidate[1] and (a, b) != candidate[:2] for a, b, _ in rows)
    ]
    return [name for _, _, name in sorted(front)]


@pytest.mark.parametrize("better", ["higher", pytest.param("lower", marks=pytest.mark.slow)])
def test_pareto_front_has_the_undominated_rows(open_report, better):
    document = seq2seq_document()
    document["metric"]["better"] = better
    for row, score, parameters in zip(document["rows"], (20, 31, 30, 35), (8e5, 2e5, 9e5, 3e6), strict=True):
        row["score"], row["num_parameters"] = {"value": score, "low": score - 1, "high": score + 1}, int(parameters)
    report = open_report(document)
    box = report.page.locator('[data-chart="cost"]')
    titles = {
        "num_parameters": "parameters",
        "seconds": "training time",
        "model_bytes": "size on disk",
        "inference_rate": "inference speed",
    }
    for cost, title in titles.items():
        box.get_by_text(title, exact=True).first.click()
        status = box.locator(".status").inner_text()
        assert status == f"On the Pareto front, from the cheapest: {', '.join(pareto(document, cost))}.", cost


def test_items_can_be_compared_sorted_filtered_and_opened(open_report):
    document = seq2seq_document()
    report = open_report(document)
    values = {item["key"]: item["values"] for item in document["items"]}
    box = report.page.locator('[data-chart="items"]')
    assert box.locator("article").count() == 10
    box.locator("select").nth(1).select_option(label="rnn")
    box.locator("select").nth(2).select_option(label="second model better")
    keys = [int(text.removeprefix("#")) for text in report.all("article .verdict > span:first-child")]
    worst = sorted(values, key=lambda key: (values[key]["transformer"] - values[key]["rnn"], key))
    assert keys == worst[:10]
    box.get_by_text("Show 10 more").click()
    assert box.locator("article").count() == 20
    first = box.locator("article").first
    first.locator("summary").click()
    first.locator("details .output bdi").nth(len(document["rows"]) - 1).wait_for()
    outputs = next(item["outputs"] for item in document["items"] if item["key"] == keys[0])
    shown = dict(zip(*(first.locator(f"details .output {part}").all_inner_texts() for part in ("bdi", "p")), strict=True))
    assert shown == outputs
    box.locator('input[type="search"]').fill("BLAUEN haus")
    assert "24 of 120 items" in box.locator(".tally").inner_text()
    box.locator('input[type="search"]').fill("#119")
    assert box.locator("article").count() == 1
    box.locator('input[type="search"]').fill("nowhere to be found")
    assert box.locator("article").count() == 0


def test_only_differing_words_are_marked(open_report):
    document = tagging_document()
    outputs = {"crf": "a b c d e", "lstm": "a x c e e"}
    item = {"key": 7, "input": "1 2 3", "reference": "a b c e", "outputs": outputs, "values": {"crf": 1.0, "lstm": 0.5}}
    document.update({"task": "seq2seq", "items": [item]})
    report = open_report(document)
    assert report.all("article .output:nth-child(1) mark") == ["b", "d"]
    assert report.all("article .output:nth-child(2) mark") == ["x", "e"]
    report.page.locator('[data-chart="items"] select').nth(3).select_option(label="the reference")
    assert report.all("article .output:nth-child(1) mark") == ["d"]
    assert report.all("article .output:nth-child(2) mark") == ["x", "e"]


def test_tags_are_below_their_words(open_report):
    report = open_report(tagging_document())
    assert report.all("article .output:nth-child(1) mark small") == []  # as the reference has them
    assert report.all("article .output:nth-child(2) mark small") == ["NNS"]
    report.page.locator('[data-chart="items"] select').nth(3).select_option(label="each other")
    assert report.all("article .output:nth-child(1) mark small") == ["VBZ"]
    assert report.all("article .output:nth-child(2) mark small") == ["NNS"]
    assert report.all("article .output:nth-child(1) .words small") == ["DT", "NN", "VBZ", "IN", "NNP", "."]


def test_labels_are_marked_correct_or_wrong_and_unordered(open_report):
    document = classification_document()
    ranked = sorted(document["rows"], key=lambda row: -row["score"]["value"])
    best, other = (row["name"] for row in ranked[:2])  # compared by default
    predicted = {"late, damage": "damage, late", "": "damage", "late": ""}
    document["items"] = [
        {
            "key": index,
            "input": "text",
            "reference": expected,
            "outputs": {best: text, other: "late"},
            "values": {best: 100.0 * (index == 0), other: 100.0 * (index == 2)},
        }
        for index, (expected, text) in enumerate(predicted.items())
    ]
    report = open_report(document)
    assert report.all("article .verdict > span:last-child") == [
        f"only {best} is correct",
        f"only {other} is correct",
        "both wrong",
    ]
    assert report.all("article .output .value") == ["correct", "wrong", "wrong", "correct", "wrong", "wrong"]
    first, second, third = report.page.locator("article").all()
    assert first.locator("mark").count() == 0  # in another order, and one that lacks something
    assert second.locator(".output p").all_inner_texts() == ["empty", "late"]
    assert third.locator("dd").all_inner_texts() == ["text", "empty"]
    assert third.locator("mark").all_inner_texts() == ["damage", "late"]


def test_every_section_names_its_metric(open_report):
    report = open_report(classification_document())
    texts = report.all('[data-chart="breakdown"] svg text')
    assert "F1 (higher is better)" in texts and "items" in texts
    assert report.all('[data-chart="curves"] figcaption') == ["Training loss", "Validation accuracy (higher is better)"]
    report = open_report(lm_document())
    texts = report.all('[data-chart="breakdown"] svg text')
    assert "loss (lower is better)" in texts and "tokens" in texts and any(text.startswith("∞") for text in texts)
    assert report.all("article .output .value")[0].startswith("bits per character ")


def test_items_can_be_compared_by_a_metric_with_the_opposite_direction(open_report):
    document = seq2seq_document(6)
    document["item_metric"] = {"name": "token_error_rate", "better": "lower"}
    report = open_report(document)
    report.page.locator('[data-chart="items"] select').nth(1).select_option(label="rnn")
    values = {item["key"]: item["values"]["rnn"] - item["values"]["transformer"] for item in document["items"]}
    ahead = sum(value > 0 for value in values.values())
    behind = sum(value < 0 for value in values.values())
    tally = report.page.locator('[data-chart="items"] .tally').inner_text()
    assert f"transformer is better on {ahead}, rnn on {behind}" in tally


def test_long_texts_are_collapsed_until_opened(open_report):
    document = lm_document()
    document["items"][0]["input"] = "word " * 400
    document["items"][1]["input"] = "w" * 200
    document["items"] = document["items"][:2]
    report = open_report(document)
    assert report.count("button.unfold") == 1  # two lines are not collapsed
    first = report.page.locator("article", has=report.page.locator("button.unfold"))
    low = first.locator("dd p").bounding_box()["height"]
    first.locator("button.unfold").click()
    assert report.page.locator("article", has_text="word").locator("dd p").bounding_box()["height"] > low
    assert report.count("button.unfold") == 0


def test_a_comparison_without_optional_parts_is_rendered(open_report):
    document = {"rows": [{"name": "a", "score": {"value": None}}, {"name": "b", "score": {"value": 1.5}}]}
    document["metric"] = {"name": "bleu", "better": "higher"}
    document["breakdowns"] = [{"by": "length", "bins": ["1", "2"], "counts": [0, 3], "values": {"b": [None, 1.0]}}]
    document["curves"] = [{"name": "b", "train": [{"step": 1}], "valid": [{"step": 1, "value": 2.0}]}]
    document["items"] = [{"key": 4, "input": ""}, {"key": 7, "input": "x", "reference": None, "values": {"b": 3.0}}]
    report = open_report(document)
    assert report.all("table.results tbody th bdi") == ["b", "a"]
    assert report.count("article") == 2


def test_confusions_are_described_by_pointer_and_keyboard(open_report):
    document = classification_document()
    report = open_report(document)
    matrix = document["confusions"]["matrices"]["naive-bayes"]
    figure = report.page.locator('[data-chart="confusions"] figure').first
    figure.locator("svg.heat").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        report.page.keyboard.press(key)
    status = figure.locator(".status").inner_text()
    assert status.startswith(f"gold Chinese, predicted Chinese: {matrix[1][1]} of {sum(matrix[1])} (")
    figure.locator("rect.cell").first.hover()
    assert (
        figure.locator(".status")
        .inner_text()
        .startswith(f"gold Arabic, predicted Arabic: {matrix[0][0]} of {sum(matrix[0])} (")
    )


def background(report: ReportPage) -> str:
    return report.page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_theme_follows_the_system_or_the_user_and_print_is_light(open_report):
    white, dark = "rgb(255, 255, 255)", "rgb(20, 23, 28)"
    report = open_report(seq2seq_document(), color_scheme="dark")
    assert background(report) == dark
    report.page.emulate_media(media="print")
    assert background(report) == white
    assert not report.page.locator("nav").is_visible() and not report.page.locator("#theme").is_visible()
    report.page.emulate_media(media="screen")
    report.page.locator("#theme").click()
    assert background(report) == white
    report.page.emulate_media(color_scheme="light")
    report.page.locator("#theme").click()
    assert background(report) == dark


def test_data_is_escaped_and_never_executed(open_report):
    document = copy.deepcopy(seq2seq_document(4))
    old = document["rows"][0]["name"]
    name = f"{HOSTILE} __proto__"
    document["title"] = document["data"] = document["command"] = HOSTILE
    document["rows"][0]["name"] = name
    for item in document["items"]:
        item["input"] = item["reference"] = HOSTILE
        item["outputs"] = {**{key: f"{HOSTILE} {key}" for key in item["outputs"] if key != old}, name: HOSTILE}
        item["values"][name] = 0.0
    for curve in document["curves"]:
        curve["name"] = name if curve["name"] == old else curve["name"]
    document["breakdowns"][0]["bins"][0] = HOSTILE
    document["configs"] = {name: HOSTILE}
    report = open_report(document)
    report.page.locator("article summary").first.click()
    assert report.count("main img") == 0 and report.count("main script") == 0
    message = "</script><img src=x onerror=alert(1)>\"'&amp;\\u202eevil\\x07"
    assert report.page.locator("h1").inner_text() == f"{message}: 4 encoder-decoders"
    assert any("\\u202eevil" in text for text in report.all("article p"))


def test_tables_are_readable_without_javascript(open_report):
    report = open_report(seq2seq_document(), java_script_enabled=False)
    assert report.all("table.results tbody th bdi") == ["transformer", "lstm,attention", "lstm", "rnn"]
    assert report.page.get_by_text("need JavaScript").is_visible()
    assert not report.page.locator('[data-chart="curves"]').is_visible()
    assert report.page.locator(".no-script dl").first.is_visible()
