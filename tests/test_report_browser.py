"""The HTML report in a real browser: sorting, toggles, zoom and details work, with no network request and no error."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from browser import chromium
from report_documents import labels, language, tags, translation

from weft.report.page import page

# the report has new words; these tests still look for old ones in some places

DOCUMENTS = {"translation": translation(), "language": language(), "labels": labels(), "many": labels(60), "tags": tags()}
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&amp;\u202eevil\u0007"


@pytest.fixture(scope="module")
def browser():
    with chromium() as actual:
        yield actual


class Look:
    """A page that was opened, with all that it asked for and all that it complained of."""

    def __init__(self, browser: Any, path: Path, document: Any, **options: Any) -> None:
        path.write_text(page(document), encoding="utf-8")
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, "offline": True, **options})
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.asked: list[str] = []
        self.wrong: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}") or dialog.dismiss())
        self.page.goto(path.as_uri())
        self.url = path.as_uri()

    def all(self, selector: str) -> list[str]:
        return [text.strip() for text in self.page.locator(selector).all_text_contents()]

    def count(self, selector: str) -> int:
        return self.page.locator(selector).count()


@pytest.fixture
def look(browser, tmp_path):
    opened: list[Look] = []

    def show(document: Any, **options: Any) -> Look:
        opened.append(Look(browser, tmp_path / f"{len(opened)}.html", document, **options))
        return opened[-1]

    yield show
    for item in opened:
        item.context.close()
        assert item.wrong == []
        assert item.asked == [item.url]  # the file itself, and nothing else, whatever was done with it


@pytest.mark.parametrize("name", DOCUMENTS)
def test_page_renders_without_errors_within_the_viewport(look, name):
    seen = look(DOCUMENTS[name])
    for width in (1280, 390):
        seen.page.set_viewport_size({"width": width, "height": 800})
        seen.page.wait_for_function(f"document.querySelector('[data-chart=cost] svg.chart').clientWidth < {width}")
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        for chart in seen.page.locator("[data-chart]").all():
            assert chart.locator("svg, article").count() > 0
        drawn = seen.page.locator("main").inner_html()
        assert "NaN" not in drawn and "undefined" not in drawn and "Infinity" not in drawn


def test_table_fits_1280_pixels_and_architectures_take_one_line(look):
    document = translation()
    for row in document["rows"]:
        row["difference"] = None if row["best"] else {"value": -10.25, "low": -11.25, "high": -9.25}
    document["rows"][2]["name"] = "naive-bayes"
    for part in ("curves", "breakdowns", "items", "settings"):
        document[part] = None
    seen = look(document)
    seen.page.set_viewport_size({"width": 1280, "height": 800})
    table = seen.page.locator("table.results")
    assert table.evaluate("one => one.scrollWidth <= one.parentElement.clientWidth")
    heights = [name.bounding_box()["height"] for name in seen.page.locator("table.results .name").all()]
    assert max(heights) < 1.5 * min(heights)


def test_an_axis_of_similar_costs_has_tick_labels_on_a_phone(look):
    document = translation()
    for row, parameters in zip(document["rows"], (651_690, 940_714, 615_018, 700_000), strict=True):
        row["num_parameters"] = parameters
    seen = look(document)
    seen.page.set_viewport_size({"width": 390, "height": 800})
    seen.page.wait_for_function("document.querySelector('[data-chart=cost] svg.chart').clientWidth < 390")
    labels = seen.all("[data-chart=cost] svg.chart text")
    assert sum(text.endswith("k") for text in labels) >= 2, labels


def test_every_column_sorts_in_both_directions_with_missing_values_last(look):
    seen = look(language())
    names = "table.results tbody th bdi"
    assert seen.all(names) == ["gpt", "lstm", "ngram"]  # the lower the better, infinity last
    rows = {row["name"]: row for row in language()["rows"]}
    keys = [lambda row: row["name"], None, None, lambda row: len(row["seeds"]), lambda row: row["num_parameters"]]
    for column, key in enumerate(keys):
        if key is None:
            continue
        head = seen.page.locator("table.results thead th").nth(column)
        for times, way in enumerate(("ascending", "descending")):
            head.locator("button").click()
            assert head.get_attribute("aria-sort") == way
            actual = [key(rows[name]) for name in seen.all(names)]
            assert actual == sorted(actual, reverse=times == 1), column
    speed = seen.page.locator("table.results thead th", has_text="train tok/s").first
    for way in ("descending", "ascending"):  # more is better, so the most comes first
        speed.locator("button").click()
        assert speed.get_attribute("aria-sort") == way
        assert seen.all(names)[-1] == "ngram"
    assert seen.count('table.results th[aria-sort="ascending"], table.results th[aria-sort="descending"]') == 1


def test_tables_sort_by_keyboard(look):
    seen = look(translation())
    seen.page.locator("table.results thead button").first.focus()
    seen.page.keyboard.press("Enter")
    assert seen.all("table.results tbody th bdi") == ["lstm", "lstm,attention", "rnn", "transformer"]


def lines(seen: Look, row: int, chart: str = "curves") -> int:
    return seen.count(f'[data-chart="{chart}"] figure path.line:not(.raw).c{row}')


def test_smoothing_of_noisy_curves_can_be_switched_off(look):
    seen = look(translation())
    pale = '[data-chart="curves"] figure path.raw'
    bold = '[data-chart="curves"] figure:first-child path.line:not(.raw).c0'
    assert seen.count(pale) == 8  # the training losses of four models, two seeds each; validation has few points
    before = seen.page.locator(bold).first.get_attribute("d")
    seen.page.locator('[data-chart="curves"] input.smooth').uncheck()
    assert seen.count(pale) == 0 and seen.page.locator(bold).first.get_attribute("d") != before
    document = translation()
    for curve in document["curves"]:
        curve["train"] = curve["train"][:20]
    assert look(document).count('[data-chart="curves"] input.smooth') == 0


def test_a_wide_table_shows_a_scroll_hint_until_its_end(look):
    seen = look(translation(), viewport={"width": 390, "height": 800})
    hint = seen.page.locator("#results .hint").first
    assert hint.is_visible() and hint.inner_text() == "Scroll sideways for more \u2192"
    seen.page.locator("#results .scroll").first.evaluate("one => { one.scrollLeft = one.scrollWidth; }")
    hint.wait_for(state="hidden")
    seen.page.set_viewport_size({"width": 1280, "height": 800})
    assert seen.page.locator("#results .hint:visible").count() == 0


def test_toggling_a_model_applies_to_all_charts(look):
    seen = look(translation())
    assert lines(seen, 0) == 4 and lines(seen, 0, "breakdown") == 1  # two seeds, training and validation
    seen.page.locator('[data-chart="curves"] .chip', has_text="rnn").click()
    assert lines(seen, 0) == 0 and lines(seen, 0, "breakdown") == 0 and lines(seen, 1) == 4
    assert seen.count('.chip[aria-pressed="false"]') == 3  # beside each chart
    assert "rnn" not in seen.page.locator('[data-chart="cost"] .status').inner_text()
    seen.page.locator('[data-chart="breakdown"] .chip', has_text="rnn").click()
    assert lines(seen, 0) == 4


def ticks(seen: Look) -> list[str]:
    """What stands below the two learning curves."""
    return seen.all('[data-chart="curves"] svg.zoomable text[text-anchor="middle"]')


def drag(seen: Look, start: tuple[float, float], end: tuple[float, float]) -> None:
    box = seen.page.locator('[data-chart="curves"] svg.zoomable').first.bounding_box()
    x, y = (
        [box[side] + share * box[size] for share in pair]
        for side, size, pair in (("x", "width", (start[0], end[0])), ("y", "height", (start[1], end[1])))
    )
    seen.page.mouse.move(x[0], y[0])
    seen.page.mouse.down()
    seen.page.mouse.move(x[1], y[1], steps=4)
    seen.page.mouse.up()


def test_curves_zoom_in_and_out(look):
    seen = look(translation())
    seen.page.locator('[data-chart="curves"]').scroll_into_view_if_needed()
    reset = seen.page.locator("button.reset")
    full = ticks(seen)
    assert "1,500" in full and reset.is_disabled()
    drag(seen, (0.3, 0.3), (0.5, 0.6))
    near = ticks(seen)
    assert "1,500" not in near and near[: len(near) // 2] == near[len(near) // 2 :]  # the other panel moves along
    reset.click()
    assert ticks(seen) == full and reset.is_disabled()
    drag(seen, (0.3, 0.5), (0.5, 0.5))
    assert ticks(seen) == near
    seen.page.locator('[data-chart="curves"] svg.zoomable').first.dblclick()
    assert ticks(seen) == full
    seen.page.locator('[data-chart="curves"] svg.zoomable').first.focus()
    seen.page.keyboard.press("+")
    closer = ticks(seen)
    assert closer != full
    seen.page.keyboard.press("ArrowRight")
    assert ticks(seen) != closer
    seen.page.keyboard.press("Escape")
    assert ticks(seen) == full


def test_curve_axes_steps_tokens_time_and_log_scale(look):
    seen = look(translation())
    box = seen.page.locator('[data-chart="curves"]')
    box.get_by_text("tokens", exact=True).click()
    assert "tokens" in ticks(seen) and any(text.endswith("M") for text in ticks(seen))
    box.get_by_text("training time").click()
    assert any(re.fullmatch(r"\d+m(\d\ds)?", text) for text in ticks(seen))
    sides = '[data-chart="curves"] figure:first-child text[text-anchor="end"]'
    before = seen.all(sides)
    box.locator("input.log").check()
    assert seen.all(sides) != before


def test_tooltips_describe_the_point_under_the_pointer(look):
    seen = look(translation())
    spot = seen.page.locator('[data-chart="curves"] figure:nth-child(2) path.point.c3').last
    spot.scroll_into_view_if_needed()
    box = spot.bounding_box()
    seen.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    last = [curve for curve in translation()["curves"] if curve["name"] == "transformer"][1]["valid"][-1]
    tooltip = seen.page.locator('[data-chart="curves"] .tip:visible').inner_text()
    assert re.fullmatch(r"transformer, seed [01]\nstep 1,500: \d+\.\d+", tooltip)
    assert f"{last['step']:,}" in tooltip


def pareto(document: Any, cost: str) -> list[str]:
    """The rows that no other is better than without being dearer; the slow way."""

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


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_pareto_front_has_the_undominated_rows(look, better):
    document = translation()
    document["metric"]["better"] = better
    for row, score, parameters in zip(document["rows"], (20, 31, 30, 35), (8e5, 2e5, 9e5, 3e6), strict=True):
        row["score"], row["num_parameters"] = {"value": score, "low": score - 1, "high": score + 1}, int(parameters)
    seen = look(document)
    box = seen.page.locator('[data-chart="cost"]')
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


def test_items_can_be_compared_sorted_filtered_and_opened(look):
    document = translation()
    seen = look(document)
    values = {item["key"]: item["values"] for item in document["items"]}
    box = seen.page.locator('[data-chart="items"]')
    assert box.locator("article").count() == 10
    box.locator("select").nth(1).select_option(label="rnn")
    box.locator("select").nth(2).select_option(label="second model better")
    keys = [int(text.removeprefix("#")) for text in seen.all("article .verdict > span:first-child")]
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


def test_only_differing_words_are_marked(look):
    document = tags()
    outputs = {"crf": "a b c d e", "lstm": "a x c e e"}
    item = {"key": 7, "input": "1 2 3", "reference": "a b c e", "outputs": outputs, "values": {"crf": 1.0, "lstm": 0.5}}
    document.update({"task": "seq2seq", "items": [item]})
    seen = look(document)
    assert seen.all("article .output:nth-child(1) mark") == ["b", "d"]
    assert seen.all("article .output:nth-child(2) mark") == ["x", "e"]
    seen.page.locator('[data-chart="items"] select').nth(3).select_option(label="the reference")
    assert seen.all("article .output:nth-child(1) mark") == ["d"]
    assert seen.all("article .output:nth-child(2) mark") == ["x", "e"]


def test_tags_are_below_their_words(look):
    seen = look(tags())
    assert seen.all("article .output:nth-child(1) mark small") == []  # as the reference has them
    assert seen.all("article .output:nth-child(2) mark small") == ["NNS"]
    seen.page.locator('[data-chart="items"] select').nth(3).select_option(label="each other")
    assert seen.all("article .output:nth-child(1) mark small") == ["VBZ"]
    assert seen.all("article .output:nth-child(2) mark small") == ["NNS"]
    assert seen.all("article .output:nth-child(1) .words small") == ["DT", "NN", "VBZ", "IN", "NNP", "."]


def test_labels_are_marked_correct_or_wrong_and_unordered(look):
    document = labels()
    ranked = sorted(document["rows"], key=lambda row: -row["score"]["value"])
    best, other = (row["name"] for row in ranked[:2])  # what is compared first
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
    seen = look(document)
    assert seen.all("article .verdict > span:last-child") == [
        f"only {best} is correct",
        f"only {other} is correct",
        "both wrong",
    ]
    assert seen.all("article .output .value") == ["correct", "wrong", "wrong", "correct", "wrong", "wrong"]
    first, second, third = seen.page.locator("article").all()
    assert first.locator("mark").count() == 0  # in another order, and one that lacks something
    assert second.locator(".output p").all_inner_texts() == ["empty", "late"]
    assert third.locator("dd").all_inner_texts() == ["text", "empty"]
    assert third.locator("mark").all_inner_texts() == ["damage", "late"]


def test_every_section_names_its_metric(look):
    seen = look(labels())
    texts = seen.all('[data-chart="breakdown"] svg text')
    assert "F1 (higher is better)" in texts and "items" in texts
    assert seen.all('[data-chart="curves"] figcaption') == ["Training loss", "Validation accuracy (higher is better)"]
    seen = look(language())
    texts = seen.all('[data-chart="breakdown"] svg text')
    assert "loss (lower is better)" in texts and "tokens" in texts and any(text.startswith("∞") for text in texts)
    assert seen.all("article .output .value")[0].startswith("bits per character ")


def test_items_can_be_compared_by_a_metric_with_the_opposite_direction(look):
    document = translation(6)
    document["item_metric"] = {"name": "token_error_rate", "better": "lower"}
    seen = look(document)
    seen.page.locator('[data-chart="items"] select').nth(1).select_option(label="rnn")
    values = {item["key"]: item["values"]["rnn"] - item["values"]["transformer"] for item in document["items"]}
    ahead = sum(value > 0 for value in values.values())
    behind = sum(value < 0 for value in values.values())
    tally = seen.page.locator('[data-chart="items"] .tally').inner_text()
    assert f"transformer is better on {ahead}, rnn on {behind}" in tally


def test_long_texts_are_collapsed_until_opened(look):
    document = language()
    document["items"][0]["input"] = "word " * 400
    document["items"][1]["input"] = "w" * 200
    document["items"] = document["items"][:2]
    seen = look(document)
    assert seen.count("button.unfold") == 1  # two lines need no folding
    first = seen.page.locator("article", has=seen.page.locator("button.unfold"))
    low = first.locator("dd p").bounding_box()["height"]
    first.locator("button.unfold").click()
    assert seen.page.locator("article", has_text="word").locator("dd p").bounding_box()["height"] > low
    assert seen.count("button.unfold") == 0


def test_a_comparison_without_optional_parts_is_rendered(look):
    document = {"rows": [{"name": "a", "score": {"value": None}}, {"name": "b", "score": {"value": 1.5}}]}
    document["metric"] = {"name": "bleu", "better": "higher"}
    document["breakdowns"] = [{"by": "length", "bins": ["1", "2"], "counts": [0, 3], "values": {"b": [None, 1.0]}}]
    document["curves"] = [{"name": "b", "train": [{"step": 1}], "valid": [{"step": 1, "value": 2.0}]}]
    document["items"] = [{"key": 4, "input": ""}, {"key": 7, "input": "x", "reference": None, "values": {"b": 3.0}}]
    seen = look(document)
    assert seen.all("table.results tbody th bdi") == ["b", "a"]
    assert seen.count("article") == 2


def test_confusions_are_described_by_pointer_and_keyboard(look):
    document = labels()
    seen = look(document)
    matrix = document["confusions"]["matrices"]["naive-bayes"]
    figure = seen.page.locator('[data-chart="confusions"] figure').first
    figure.locator("svg.heat").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        seen.page.keyboard.press(key)
    status = figure.locator(".status").inner_text()
    assert status.startswith(f"gold Chinese, predicted Chinese: {matrix[1][1]} of {sum(matrix[1])} (")
    figure.locator("rect.cell").first.hover()
    assert (
        figure.locator(".status")
        .inner_text()
        .startswith(f"gold Arabic, predicted Arabic: {matrix[0][0]} of {sum(matrix[0])} (")
    )


def background(seen: Look) -> str:
    return seen.page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_theme_follows_the_system_or_the_user_and_print_is_light(look):
    white, dark = "rgb(255, 255, 255)", "rgb(20, 23, 28)"
    seen = look(translation(), color_scheme="dark")
    assert background(seen) == dark
    seen.page.emulate_media(media="print")
    assert background(seen) == white
    assert not seen.page.locator("nav").is_visible() and not seen.page.locator("#theme").is_visible()
    seen.page.emulate_media(media="screen")
    seen.page.locator("#theme").click()
    assert background(seen) == white
    seen.page.emulate_media(color_scheme="light")
    seen.page.locator("#theme").click()
    assert background(seen) == dark


def test_data_is_escaped_and_never_executed(look):
    document = copy.deepcopy(translation(4))
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
    seen = look(document)
    seen.page.locator("article summary").first.click()
    assert seen.count("main img") == 0 and seen.count("main script") == 0
    message = "</script><img src=x onerror=alert(1)>\"'&amp;\\u202eevil\\x07"
    assert seen.page.locator("h1").inner_text() == f"{message}: 4 encoder-decoders"
    assert any("\\u202eevil" in text for text in seen.all("article p"))


def test_tables_are_readable_without_javascript(look):
    seen = look(translation(), java_script_enabled=False)
    assert seen.all("table.results tbody th bdi") == ["transformer", "lstm,attention", "lstm", "rnn"]
    assert seen.page.get_by_text("need JavaScript").is_visible()
    assert not seen.page.locator('[data-chart="curves"]').is_visible()
    assert seen.page.locator(".no-script dl").first.is_visible()
