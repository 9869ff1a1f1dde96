"""The HTML report as text: all numbers are present, data is escaped, nothing is loaded, and the file stays small."""

from __future__ import annotations

import base64
import copy
import hashlib
import itertools
import json
import math
import re
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_documents import classification_document, lm_document, seq2seq_document, tagging_document

from weft.errors import UsageError
from weft.plots.formatting import decimals, duration, number, p_value, score_name, short, size, truncate, visible
from weft.report.page import page
from weft.report.page_check import find_problem
from weft.report.page_data import MAX_POINTS, page_data, score_label
from weft.report.page_parts import _used_options
from weft.tasks.registry import TASKS, find_task
from weft.training.estimator import NetworkEstimator

DOCUMENTS = [seq2seq_document(), lm_document(), classification_document(), classification_document(60), tagging_document()]
VOID = {"meta", "input", "br", "wbr", "img", "link"}


class Reader(HTMLParser):
    """The elements of a page with their attributes and texts; every end tag must close the last open element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append((self.open[-1], data))

    @property
    def text(self) -> str:
        return " ".join(data for _, data in self.texts)


def embedded(text: str) -> dict[str, Any]:
    actual = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert actual
    return json.loads(actual[1])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document["title"])
def test_page_is_self_contained(document):
    text = page(document)
    reader = Reader(text)
    assert {name for name, _ in reader.elements} & {"link", "img", "iframe", "object", "base", "form"} == set()
    for name, attributes in reader.elements:
        assert not any(part.startswith("on") or part in ("style", "src", "srcset") for part in attributes), name
        assert (attributes.get("href") or "#").startswith("#")
    # the only URL is the SVG namespace
    assert set(re.findall(r"https?://[^\s\"'`]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest|innerHTML|eval\(", text)


def test_csp_allows_only_its_own_script_and_style():
    text = page(seq2seq_document())
    policy = next(one["content"] for name, one in Reader(text).elements if one.get("http-equiv") == "Content-Security-Policy")
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)
    assert style and script and text.count("<script") == 2
    hashes = [base64.b64encode(hashlib.sha256(part[1].encode()).digest()).decode() for part in (style, script)]
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def cells(text: str) -> list[list[str]]:
    """The rows of the main table as text."""
    body = text[text.index('<table class="results') :].split("<tbody>")[1].split("</tbody>")[0].replace("<wbr>", "")
    rows = [re.findall(r"<t[hd].*?</t[hd]>", row) for row in re.findall(r"<tr.*?</tr>", body)]
    return [[re.sub(r"\s+", " ", " ".join(data for _, data in Reader(cell).texts)).strip() for cell in row] for row in rows]


def test_the_table_has_every_number_and_the_best_row_first():
    second = ["1.6M", "3m38s", "10.3k", "490 MB", "137", "6.4 MB"]
    assert cells(page(seq2seq_document())) == [
        ["transformer ★ best", "35.2 [34.1, 36.3]", "best", "2", "2M", "4m38s", "7.75k", "580 MB", "102", "8 MB"],
        ["lstm,attention", "33.1 [32.0, 34.2]", "0.080 not significantly worse", "2", *second],
        ["lstm", "25.0 [23.9, 26.1]", "<0.001", "2", "1.2M", "2m36s", "15.5k", "400 MB", "205", "4.8 MB"],
        ["rnn", "18.6 [17.5, 19.7]", "<0.001", "2", "800k", "1m36s", "31k", "310 MB", "410", "3.2 MB"],
    ]


@pytest.mark.parametrize("stored", [False, True])
def test_infinite_and_missing_values_are_labeled(stored):
    document = lm_document()
    if stored:  # JSON has no infinity
        document["rows"][0]["score"] = {"value": None, "low": None, "high": None, "infinite": True}
    text = page(document)
    assert cells(text)[-1] == ["ngram", "∞", "–", "1", "800k", "–", "–", "–", "410", "3.2 MB"]
    assert "The score of ngram is infinite" in re.sub("<.*?>", "", text)
    actual = embedded(text)
    assert actual["rows"][0]["value"] == "Infinity"
    assert actual["breakdowns"][0]["values"][0][:2] == ["Infinity", 9.0]
    assert [item["values"][0] for item in actual["items"]].count("Infinity") == 1
    assert ">∞<" in text[text.index('aria-label="by training frequency') :].split("</table>")[0]


def test_missing_values_are_dashes_and_never_nan():
    document = seq2seq_document()
    document["rows"][1]["score"] = {"value": math.nan, "low": None, "high": None}
    document["breakdowns"][0]["values"]["lstm"][2] = None
    document["items"][0]["values"]["lstm"] = math.nan
    document["curves"][0]["train"][3]["value"] = math.inf
    text = page(document)
    assert cells(text)[-1][:2] == ["lstm", "–"]
    assert "nan" not in Reader(text).text.lower().replace("finance", "")
    actual = embedded(text)
    assert actual["items"][0]["values"][1] is None
    assert len(actual["curves"][0]["train"]["value"]) == 59


def test_summary_states_the_results():
    summary = re.sub("<.*?>", "", page(seq2seq_document()))
    assert "transformer is best: BLEU 35.2 [34.1, 36.3]." in summary
    assert "lstm,attention is not significantly worse (p ≥ 0.05); all other models are." in summary
    assert "lstm,attention is smaller: 1.6M parameters instead of 2M." in summary
    assert (
        "On the longest inputs (31+ tokens, 25 items), transformer scores 33.0 and rnn 4.0; on the shortest (1-5), 36.5 and 27.0."
        in summary
    )
    assert "lstm is worse (p = 0.012)." in re.sub("<.*?>", "", page(lm_document()))
    several = lm_document()
    several["rows"][0]["p"] = 0.0001
    assert "All other models are worse (p ≤ 0.012)." in re.sub("<.*?>", "", page(several))
    several["rows"][1]["p"] = 0.0002
    assert "All other models are worse (p &lt;0.001)." in re.sub("<.*?>", "", page(several))


def test_summary_omits_insignificant_results_on_long_inputs():
    document = seq2seq_document()
    last = document["breakdowns"][0]
    last["high"]["rnn"][-1], last["low"]["transformer"][-1] = 30.0, 29.0
    assert "On the longest inputs" not in page(document)
    last["high"]["rnn"][-1] = 28.0
    assert "On the longest inputs" in page(document)


def test_breakdown_metrics_have_their_own_names_and_directions():
    document = seq2seq_document()
    words = {
        "by": "input length in frames of 10 ms",
        "metric": {"name": "token_error_rate", "better": "lower"},
        "unit": "sentences",
    }
    document["breakdowns"][0] |= words
    text = page(document)
    visible = re.sub("<.*?>", "", text)
    # a lower error rate is better, so the RNN is ahead; the interval of the Transformer is above it
    assert "On the longest inputs (31+ frames of 10 ms, 25 items), rnn scores 4.0 and transformer 33.0" in visible
    actual = embedded(text)
    assert actual["breakdowns"][0]["metric"] == {"name": "token error rate", "better": "lower"}
    assert actual["breakdowns"][0]["unit"] == "sentences" and "Table: token error rate" in visible
    assert actual["item_metric"] == {"name": "chrF", "better": "higher"}
    assert actual["curve_metrics"] == {
        "train": {"name": "loss", "better": "lower"},
        "valid": {"name": "BLEU", "better": "higher"},
    }


def test_labels_have_precision_recall_and_f1():
    actual = classification_document()
    (breakdown,) = [breakdown for breakdown in actual["breakdowns"] if breakdown["by"] == "label"]
    name = actual["rows"][0]["name"]
    breakdown["precision"], breakdown["recall"] = ({name: [share] * len(breakdown["bins"])} for share in (97.25, 88.0))
    assert find_problem(actual) == ""
    text = page(actual)
    assert "<summary>Table: F1, precision (P) and recall (R)</summary>" in text
    assert text.count("<small>P 97.2, R 88.0</small>") == len(breakdown["bins"])  # the other rows have no such values
    assert page_data(actual)["breakdowns"][-1]["precision"][0] == [97.25] * len(breakdown["bins"])
    breakdown["recall"][name] = [1.0]
    index = f"breakdowns[{actual['breakdowns'].index(breakdown)}]"
    assert find_problem(actual) == f"{index}.recall.{name} has 1 values for {len(breakdown['bins'])} bins"


def test_curves_of_a_minority_metric_are_omitted():
    document = seq2seq_document()
    for curve in document["curves"]:
        curve["metrics"]["valid"] = "loss"
    document["curves"][3]["metrics"]["valid"] = "exact_match"
    text = page(document)
    actual = embedded(text)
    assert actual["curve_metrics"]["valid"] == {"name": "loss", "better": "lower"}
    assert [bool(curve["valid"]["value"]) for curve in actual["curves"]] == [index != 3 for index in range(8)]
    listed = text[text.index('aria-label="validation scores"') :].split("</table>")[0]
    first = re.findall(r"<td>(.*?)</td>", listed)[:5]
    values = [point["value"] for point in document["curves"][0]["valid"]]
    assert first[1] == f"{min(values):.4g}"  # the lowest, although the comparison is by BLEU


def test_tied_rows_are_those_of_the_comparison():
    document = seq2seq_document()
    document["rows"][2]["tied_with_best"] = False
    assert "not significantly" not in page(document)
    for row in document["rows"]:
        del row["tied_with_best"]  # without this field, p decides
    assert cells(page(document))[1][2] == "0.080 not significantly worse"


def test_too_little_test_data_is_reported_and_no_rows_are_tied():
    document = seq2seq_document()
    document["test_items"] = {"count": 6, "item": "block of about 1,000 bytes"}
    for row in document["rows"]:
        row["has_enough_items"] = bool(row["best"])
        row["tied_with_best"] = bool(row["best"])
    text = page(document)
    assert [row[2] for row in cells(text)] == ["best", *["? too little test data"] * 3]
    visible = re.sub("<.*?>", "", text)
    assert (
        "There is too little test data (6 blocks of about 1,000 bytes) to tell the best model from "
        "lstm,attention, lstm and rnn."
        in visible
        or "to tell the best model from rnn, lstm and lstm,attention." in visible
    )
    assert "not significantly" not in visible and "are worse" not in visible and "is smaller" not in visible


def test_validation_data_is_called_validation_data():
    document = seq2seq_document()
    for row in document["rows"]:
        row["has_enough_items"] = bool(row["best"])
    document["rows"][0]["score"] = {"value": None, "low": None, "high": None, "infinite": True}
    texts = ("too little<br>{} data", "There is too little {} data", "some of the {} data zero", "do not reflect all {} data.")
    for split, name in ((None, "test"), ("test", "test"), ("valid", "validation")):
        document["split"] = split
        text = page(document)
        assert find_problem(document) == "" and f"<h2>{name.capitalize()} items</h2>" in text
        assert all(part.format(name) in text for part in texts)
    document["split"] = "train"
    assert find_problem(document) == "split is not 'test' or 'valid'"


def test_the_chosen_model_has_the_star_the_reason_and_the_test_score():
    document = seq2seq_document()
    best, chosen = document["rows"][3]["name"], document["rows"][2]["name"]
    reason = f"{best} is not significantly better"
    document |= {"split": "valid", "choice": {"name": chosen, "score": "BLEU 33.1", "reason": reason, "test": "BLEU 32.0"}}
    assert find_problem(document) == ""
    text = page(document)
    visible = re.sub("<.*?>", "", text)
    assert f"{chosen} is chosen. On validation data: BLEU 33.1; {reason}." in visible
    assert "On test data: BLEU 32.0." in visible and "is best" not in visible and "is smaller" not in visible
    starred = re.findall(r"<tr class=best>.*?<bdi[^>]*>(.*?)</bdi>(.*?)</tr>", text)
    assert [re.sub("<.*?>", "", name) for name, _ in starred] == [chosen] and 'title="chosen">★' in starred[0][1]
    assert [row["name"] for row in embedded(text)["rows"] if row["best"]] == [chosen]
    document["choice"] |= {"name": best, "reason": ""}
    visible = re.sub("<.*?>", "", page(document))
    assert f"{best} is chosen. On validation data: BLEU 33.1." in visible and "is not significantly worse" not in visible
    del document["choice"]["test"]
    assert find_problem(document) == "choice.test is missing"


def test_the_difference_from_the_best_has_a_column():
    document = seq2seq_document()
    for row, value in zip(document["rows"], (-16.6, -10.2, -2.1, None), strict=True):
        row["difference"] = None if row["best"] else {"value": value, "low": value - 1.0, "high": value + 1.25}
    actual = cells(page(document))
    assert actual[0][2:4] == ["", "best"]
    assert actual[1][2] == "−2.1 [−3.1, −0.9]"
    document["metric"]["better"] = "lower"
    for row in document["rows"]:
        row["difference"] = row["difference"] and {"value": 0.5, "low": -0.25, "high": 1.25}
    assert cells(page(document))[0][2] == "+0.50 [−0.25, +1.25]"


def test_several_seeds_have_a_column():
    document = seq2seq_document()
    assert ">seeds<" in page(document)
    for row in document["rows"]:
        row["seeds"] = [0]
    assert ">seeds<" not in page(document)


def tuned() -> dict[str, Any]:
    """A translation comparison with tuning: two of the Transformer's four trials reach the second rung, and one failed."""

    def trial(number: int, rung: int, value: float | None, lr: float) -> dict[str, Any]:
        score = None if value is None else {"name": "loss", "value": value}
        failed = {"reason": "step 3: the loss is <nan>"} if value is None else {}
        return {"rung": rung, "budget": 0.25 * 2**rung, "trial": number, "options": {"lr": lr}, "score": score, **failed}

    trials = [trial(0, 0, 2.5, 0.001), trial(1, 0, 2.25, 0.002), trial(2, 0, None, 0.05), trial(3, 0, 2.75, 0.0005)]
    trials += [trial(1, 1, 2.125, 0.002), trial(0, 1, 2.0, 0.001)]
    bayes = {
        "rung": 0,
        "budget": 1.0,
        "trial": 0,
        "options": {"features.ngram_range": [1, 2], "features.binary": False, "delta": None},
    }
    actual = {"lstm": {"chosen": 0, "trials": [{**bayes, "score": {"name": "exact_match", "value": 80.0}}]}}
    return {**seq2seq_document(), "tuning": {**actual, "transformer": {"chosen": 0, "trials": trials}}}


def test_every_trial_of_a_search_is_on_the_page():
    document = tuned()
    assert find_problem(document) == ""
    text = page(document)
    part = text[text.index('<section id="tuning">') :].split("</section>")[0]
    rows = [
        [
            re.sub(r"\s+", " ", " ".join(data for _, data in Reader(cell).texts)).strip()
            for cell in re.findall("<t[hd].*?</t[hd]>", row)
        ]
        for row in re.findall("<tr.*?</tr>", part)
    ]
    assert rows[:2] == [
        ["trial", "features.ngram_range", "features.binary", "delta", "budget", "validation exact match"],
        ["0 (run file) ★ chosen", "1-2", "false", "–", "1", "80.0"],
    ]
    assert rows[2:] == [
        ["trial", "lr", "budget", "validation loss"],
        ["0 (run file) ★ chosen", "0.001", "0.5", "2.000"],
        ["1", "0.002", "0.5", "2.125"],
        ["3", "0.0005", "0.25", "2.750"],
        ["2", "0.05", "0.25", "step 3: the loss is <nan>"],
    ]
    assert 'id="tuning"' not in page(seq2seq_document())
    document["tuning"]["lstm"]["trials"][0]["rung"] = "x"
    assert find_problem(document) == "tuning.lstm.trials[0].rung is not a count"


def test_models_without_an_optimizer_have_no_optimizer_options():
    """An n-gram model has a [train] table, as every run file does, but ignores it."""
    document = lm_document()
    names = [row["name"] for row in document["rows"]]
    kinds = {name: "ngram" if name == "ngram" else "lstm" for name in names}
    document["configs"] = {
        name: f'task = "lm"\n[model]\narch = "{kind}"\n[train]\noptimizer = "adamw"\nlr = 0.001\n'
        for name, kind in kinds.items()
    }
    text = page(document)
    table = text[text.index('aria-label="options that differ"') :].split("</table>")[0]
    rows = {
        re.sub("<.*?>", "", row[0]): [re.sub("<.*?>", "", cell) for cell in row[1:]]
        for row in (re.findall("<t[hd].*?</t[hd]>", line) for line in re.findall("<tr.*?</tr>", table)[1:])
    }
    assert rows["train.optimizer"] == ["" if kinds[name] == "ngram" else "&quot;adamw&quot;" for name in names]
    for name, task in ((name, find_task(name)) for name in TASKS):
        for arch, preset in task.presets.items():
            used = _used_options(f'task = "{name}"\n[model]\narch = "{arch}"\n[train]\nlr = 0.001\n')
            assert ("train.lr" in used) == isinstance(preset.estimator, NetworkEstimator)


def test_header_names_the_evaluation_setup():
    document = seq2seq_document()
    document["test_items"] = {"count": 1000, "item": "line"}
    document["about"] = {"date": "2026-11-16 12:00", "tokenizer": "bpe (8,000 tokens)", "budget": "3,500 steps"}
    document["about"]["training data"] = "30,000 words"
    trial = {"rung": 0, "options": {}}
    document["tuning"] = {"rnn": {"chosen": 1, "trials": [trial | {"trial": index} for index in (0, 1, 2, 1)]}}
    text = page(document)
    assert "4 encoder-decoders on de-en.test.tsv (1,000 lines)" in re.sub("<.*?>", "", text)
    entries = re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", text.split("</header>")[0])
    assert dict(entries) == {
        "training data": "30,000 words",
        "tokenizer": "bpe (8,000 tokens)",
        "budget": "3,500 steps",
        "tuning": "3 trials per model",
        "hardware": "Linux-6.1.0-x86_64, CPU, 1 thread",
        "versions": "weft 0.3.0, torch 2.13.0+cpu, Python 3.11.2",
        "date": "2026-11-16 12:00",
    }
    assert find_problem(document) == ""
    document["environment"] |= {"gpu": "NVIDIA H100", "threads": 4}
    assert "<dd>Linux-6.1.0-x86_64, NVIDIA H100, 4 threads</dd>" in page(document)


def test_title_names_the_comparison():
    document = seq2seq_document()
    document["title"] = "run"
    assert "<title>run: rnn, lstm, lstm,attention and transformer</title>" in page(document)
    for row in document["rows"]:
        row["name"] = row["name"] * 4
    assert "<title>run: 4 encoder-decoders</title>" in page(document)
    document["rows"], document["title"] = document["rows"][:1], None
    assert "<title>Comparison</title>" in page(document)
    document["title"] = "rnn-0"
    assert "<title>rnn-0</title>" in page(document)


def test_empty_columns_are_omitted():
    document = seq2seq_document()
    assert ">train tok/s<" in page(document)
    for row in document["rows"]:
        row["tokens_per_second"] = None
    assert ">train tok/s<" not in page(document)


def test_failed_runs_are_reported():
    document = {**seq2seq_document(), "failures": [{"name": "gru", "seed": 1, "reason": "step 3: the loss is nan", "code": 6}]}
    assert "Not in the table: gru, seed 1: step 3: the loss is nan" in re.sub("<.*?>", "", page(document))


def test_differing_options_are_listed_first_then_all_options():
    text = page(seq2seq_document())
    differ = text[text.index('<section id="configs">') :].split("</table>")[0]
    assert re.findall(r'<th scope="row"><code>(.*?)</code>', differ) == [
        "model.arch",
        "model.decoder.attention",
        "model.num_heads",
    ]
    assert re.sub("<.*?>", "", text).count("batch_tokens = 4096") == 4
    same = seq2seq_document()
    same["configs"] = {
        name: same["configs"]["rnn"].replace("seed = 0", f"seed = {index}") for index, name in enumerate(same["configs"])
    }
    assert "Only the seed differs." in page(same)
    same["configs"]["rnn"] = "this is = = no TOML"
    assert "this is = = no TOML" in page(same)


def test_page_has_samples_environment_and_command():
    text = Reader(page(lm_document())).text
    for part in ("The king had a daughter", "Linux-6.1.0-x86_64", "weft compare run.toml --models ngram,lstm,gpt --seeds 2"):
        assert part in text


def test_the_most_frequent_mistakes_are_listed():
    document = classification_document()
    known, matrix = document["confusions"]["labels"], document["confusions"]["matrices"]["lstm"]
    wrong = {(i, j): matrix[i][j] for i in range(8) for j in range(8) if i != j}
    (i, j), count = max(wrong.items(), key=lambda one: one[1])
    text = page(document)
    listed = text[text.index('aria-label="errors of lstm"') :].split("<tbody>")[1]
    first = re.findall(r"<t[hd].*?</t[hd]>", listed)[:4]
    assert [re.sub("<.*?>", "", cell) for cell in first] == [known[i], known[j], f"{count}", f"{count / sum(matrix[i]):.1%}"]


# ---- hostile texts

HOSTILE = "</script></style><!--<img src=x onerror=alert(1)>\"'&lt;\u202eRTL\u2066\x00\x07\x1b[31m\ud800שלום"


def hostile(value: Any) -> Any:
    """A document in which every text and name is malicious."""
    if isinstance(value, str):
        return f"{value}{HOSTILE}"
    if isinstance(value, dict):
        return {name: hostile(inner) for name, inner in value.items()}
    return [hostile(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("make", [seq2seq_document, lm_document, classification_document, tagging_document])
def test_malicious_texts_are_escaped(make):
    document = make()
    for name in ("title", "data", "test", "rows", "curves", "items", "configs", "samples", "environment", "command"):
        document[name] = hostile(document[name])
    for part in ("outputs", "values"):  # these are keyed by row names
        for item in document["items"]:
            item[part] = {f"{name}{HOSTILE}": inner for name, inner in item[part].items()}
    document["configs"] = {f"{name}{HOSTILE}": text for name, text in document["configs"].items()}
    text = page(document)
    text.encode()
    clean = Reader(page(make()))
    reader = Reader(text)
    assert {name for name, _ in reader.elements} <= {name for name, _ in clean.elements} | {"wbr"}
    assert text.count("<script") == 2 and text.count("</script") == 2 and "<img" not in text and "<!--" not in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)
    assert embedded(text)["rows"][0]["name"].endswith("\\u202eRTL\\u2066\\x00\\x07\\x1b[31m\\ud800שלום")


@settings(max_examples=30, deadline=None)
@given(st.text(min_size=1, max_size=40))
def test_any_name_and_text_gives_a_valid_page(text):
    document = seq2seq_document(2)
    old = document["rows"][0]["name"]
    document["rows"][0]["name"] = text
    document["configs"][text] = document["configs"].pop(old)
    document["items"][0]["input"] = document["items"][0]["reference"] = text
    written = page(document)
    Reader(written)
    written.encode()
    assert embedded(written)["items"][0]["input"] == visible(text)


# ---- size


def test_page_of_a_large_comparison_is_small():
    ordinary = page(seq2seq_document(400))
    assert len(ordinary.encode()) < 600_000
    document = seq2seq_document(400)
    for item in document["items"]:
        item["input"] = "長い文書" * 2000
        item["outputs"] = {name: "word " * 2000 for name in item["outputs"]}
    document["curves"] = [
        {**curve, "train": [{"step": n, "tokens": n, "seconds": n / 7, "value": 3 + math.sin(n)} for n in range(20_000)]}
        for curve in document["curves"]
    ]
    assert len(page(document).encode()) < 4_500_000


def test_noisy_curves_have_running_means():
    """By convolution: windows of 5% of the points, truncated at the ends of the curve and centered."""
    document = seq2seq_document()
    curve = document["curves"][0]
    values = np.random.default_rng(0).normal(2, 1, 200)
    curve["train"] = [{"step": index + 1, "value": float(value)} for index, value in enumerate(values)]
    actual = page_data(document)["curves"][0]
    smooth = np.array(actual["train"]["smooth"])
    inside = np.convolve(values, np.full(11, 1 / 11), "valid")
    assert smooth[5:-5] == pytest.approx(inside, rel=1e-5)
    assert (smooth[0], smooth[-1]) == pytest.approx((values[0], values[-1]), rel=1e-5)
    assert smooth[2] == pytest.approx(values[:5].mean(), rel=1e-5)
    assert actual["train"]["value"] == pytest.approx(values, rel=1e-5)
    curve["train"] = curve["train"][:20]  # short curves show every point
    assert page_data(document)["curves"][0]["train"]["smooth"] == []
    assert page_data(document)["curves"][0]["valid"]["smooth"] == []
    points = [{"step": index + 1, "value": float(index % 2)} for index in range(5000)]
    curve["train"] = points
    actual = page_data(document)["curves"][0]["train"]
    assert len(actual["smooth"]) == len(actual["value"]) <= MAX_POINTS + 2 and set(np.round(actual["smooth"][5:-5], 1)) == {0.5}


def test_long_curves_keep_their_spikes_and_ends():
    document = seq2seq_document(1)
    points = [{"step": n, "tokens": n, "seconds": n, "value": 1.0 + n % 3} for n in range(10_001)]
    points[4321]["value"], points[777]["value"] = 99.0, -5.0
    document["curves"][0]["train"] = points
    actual = page_data(document)["curves"][0]["train"]
    assert len(actual["value"]) <= MAX_POINTS + 2
    assert {0, 777, 4321, 10_000} <= set(actual["step"])
    assert actual["step"] == sorted(actual["step"])


# ---- colours

VISION = {  # Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB
    "all": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour: str) -> np.ndarray:
    value = np.array([int(colour[index : index + 2], 16) for index in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIE L*a*b*, in which a distance of 2 is barely visible."""
    x, y, z = np.cbrt(TO_XYZ @ np.clip(rgb, 1e-3, 1) / [0.9505, 1.0, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_row_colors_are_distinguishable_and_contrast_with_the_background(scheme):
    style = files("weft.report").joinpath("page.css").read_text()
    actual = dict(re.findall(r"--(\w+): light-dark\(([^)]*)\)", style))
    colours = [linear(actual[f"c{index}"].split(", ")[scheme]) for index in range(8)]
    for name in ("paper", "panel"):
        paper = TO_XYZ[1] @ linear(actual[name].split(", ")[scheme])
        for colour in colours:
            light, dark = max(paper, TO_XYZ[1] @ colour), min(paper, TO_XYZ[1] @ colour)
            assert (light + 0.05) / (dark + 0.05) >= 3.0  # WCAG 2.1, 1.4.11, of graphics
    for matrix in VISION.values():
        perceived = [lab(np.asarray(matrix) @ colour) for colour in colours]
        assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(perceived, 2)) > 15


# ---- words


def test_number_words():
    assert [short(value) for value in (0, 999, 999.6, 12345, 1_234_567, 2.5e9, 7e12, None)] == (
        ["0", "999", "1k", "12.3k", "1.23M", "2.5B", "7T", "–"]
    )
    assert [size(value) for value in (12, 4_900, 1.5e9, None)] == ["12 B", "4.9 kB", "1.5 GB", "–"]
    assert [duration(value) for value in (0, 0.012, 0.31, 59.97, 75.2, 3599.7, 3725, None)] == (
        ["0.0s", "0.01s", "0.3s", "1m00s", "1m15s", "1h00m", "1h02m", "–"]
    )
    assert [p_value(value) for value in (0.0002, 0.0314, 1, None)] == ["<0.001", "0.031", "1.000", "–"]
    assert [number(value, 2) for value in (1234.567, -1, math.inf, -math.inf, math.nan, None)] == (
        ["1,234.57", "\u22121.00", "∞", "\u2212∞", "–", "–"]
    )
    assert [decimals(widths) for widths in ([1.1], [0.04, 2], [0.00001], [300], [], [math.nan])] == [1, 3, 4, 0, 2, 2]
    names = ("bits_per_char", "f1_macro", "f1")
    assert [score_name(name) for name in names] == ["bits per char", "F1 macro", "F1"]
    names = ("bleu", "bleu_lc", "chrf", "exact_match", "new_one")
    labels = ["BLEU", "BLEU (lowercase)", "chrF", "exact match", "new one"]
    assert [score_label({"task": "seq2seq"}, name) for name in names] == labels
    assert [score_label({"task": "lm"}, name) for name in names[:1]] == ["bleu"]  # not a metric of that task


def test_truncation_reports_its_length_and_keeps_accents():
    assert truncate("short", 5) == "short"
    assert truncate("letters", 3) == "let… (4 more characters)"
    assert truncate("ae\u0301iou", 2) == "a… (5 more characters)"


def test_a_document_without_rows_is_rejected():
    for name in ("rows", "metric"):
        with pytest.raises(UsageError) as caught:
            page({**copy.deepcopy(seq2seq_document()), name: None})
        assert str(caught.value) == f"report: the comparison has no {name}"
