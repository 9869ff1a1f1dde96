"""The table of a comparison: the best model, those that are not significantly worse, and the output formats."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from fake_evaluations import COST, classification_results, lm_results, simulate_runs

from weft.comparison import table, table_text
from weft.comparison.results import RunResults
from weft.comparison.significance import holm, randomization_test, welch_test_of_items
from weft.errors import UsageError
from weft.metrics.items import ItemStatistics
from weft.metrics.lm import LANGUAGE

RATE = LANGUAGE[0].compute


def kinds(**means: float):
    """Rows of language models by their means, two seeds each, on the same 60 lines."""
    rng = np.random.default_rng(0)
    tokens, difficulty = rng.integers(3, 40, 60).astype(np.float64), rng.normal(0, 0.6, 60)
    results = {}
    for name, mean in means.items():
        runs = simulate_runs(rng, tokens, difficulty, seeds=2, mean=mean, seed_sd=0.01, own=0.05)
        results[name] = [lm_results(items, run=Path(f"runs/{name}-{index}"), seed=index) for index, items in enumerate(runs)]
    return results


def test_rows_are_ordered_and_those_as_good_as_the_best_are_marked():
    groups = kinds(bad=3.0, good=2.0, fair=2.01)
    rows = table.rows(groups)
    assert [row.name for row in rows[:2]] in (["good", "fair"], ["fair", "good"])
    assert [row.best for row in rows] == [True, False, False]
    assert [row.tied_with_best for row in rows] == [True, True, False]
    assert rows[0].p is None
    items = {name: [run.items for run in runs] for name, runs in groups.items()}
    by_hand = holm([welch_test_of_items(items[row.name], items[rows[0].name], RATE) for row in rows[1:]])
    assert [row.p for row in rows[1:]] == pytest.approx(by_hand)
    assert rows[0].score.value == pytest.approx(np.mean([RATE({n: v.sum(0, keepdims=True) for n, v in
        run.items.statistics.items()}).item() for run in groups[rows[0].name]]))  # fmt: skip
    assert rows[0].score.low < rows[0].score.value < rows[0].score.high
    assert (rows[0].seeds, rows[0].metric.name) == ([0, 1], "loss")


def test_validation_data_is_called_validation_data():
    groups = {name: [run._replace(split="valid") for run in runs] for name, runs in kinds(a=2.0, b=2.1).items()}
    single = {name: runs[:1] for name, runs in groups.items()}
    texts = [describe(rows) for rows in (groups, single) for describe in (table.describe_test, table.describe_test_details)]
    assert all("validation items" in text and "test items" not in text for text in texts)
    few = {name: [run._replace(items=table_items(run.items, 3)) for run in runs] for name, runs in single.items()}
    assert table.insufficient_data(table.rows(few), few).startswith("Too little validation data (?) to tell ")


def table_items(items: ItemStatistics, count: int) -> ItemStatistics:
    """The first items."""
    return ItemStatistics(items.keys[:count], {name: values[:count] for name, values in items.statistics.items()})


def test_single_runs_are_tested_over_items():
    groups = {name: runs[:1] for name, runs in kinds(a=2.0, b=2.1).items()}
    rows = table.rows(groups)
    assert rows[1].p == randomization_test(groups["b"][0].items, groups["a"][0].items, RATE)
    assert table.describe_test(groups) == (
        "One run per model. CI over test items (bootstrap). "
        "p: difference from the best model (paired approximate randomization test)."
    )
    assert "paired over test items (approximate randomization), so it is about these runs" in table.describe_test_details(
        groups
    )
    assert "Holm" not in table.describe_test(groups)


def test_the_test_is_stated():
    both = kinds(a=2.0, b=2.1, c=2.2)
    assert table.describe_test(both) == (
        "Mean over 2 seeds. CI over seeds and test items. p: difference from the best model (Welch's t-test, Holm-corrected)."
    )
    details = table.describe_test_details(both)
    assert "means over seeds. The interval is Student's t over seeds and test items." in details
    assert "(variance over items from a bootstrap). Holm's correction accounts for the number of models." in details
    mixed = kinds(a=2.0, b=2.1, c=2.2)
    some = {**mixed, "a": mixed["a"][:1], "b": mixed["b"][:1]}
    assert "; where both models have one run, it is paired over test items (approx" in table.describe_test_details(some)
    assert table.describe_test(some).startswith("Mean over 1 to 2 seeds.")
    assert "; paired approximate randomization test where both models have one run" in table.describe_test(some)
    assert table.describe_test({"a": mixed["a"][:1]}) == "One run per model. CI over test items (bootstrap)."
    assert table.describe_test_details({"a": mixed["a"][:1]}).endswith("(1,000 resamples).")


def test_another_metric_may_rank_the_rows():
    better, worse = (
        classification_results([0, 0, 1, 1, 0, 1], [0, 0, 1, 1, 1, 1], ("x", "y")),
        classification_results([1] * 6, [0, 0, 1, 1, 1, 1], ("x", "y")),
    )
    assert table.rows({"w": [worse], "b": [better]})[0].name == "b"
    rows = table.rows({"w": [worse], "b": [better]}, "log_loss")
    assert rows[0].metric.name == "log_loss"
    assert rows[0].scores["ece"].low is None
    with pytest.raises(UsageError) as caught:
        table.rows({"b": [better]}, "acuracy")
    assert str(caught.value) == "metric: unknown metric 'acuracy'; did you mean 'accuracy'?"


def test_confidence_bounds_stay_in_the_range_of_the_metric():
    """Student's t of two seeds reaches far beyond 100%."""
    right = [0, 1] * 20
    groups = {
        "a": [
            classification_results(right, right, ("x", "y")),
            classification_results([1, 1, *right[2:]], right, ("x", "y"), seed=1),
        ]
    }
    row = table.rows(groups)[0]
    assert row.score.high == 100.0
    assert row.score.low < 98.75


def test_an_infinite_row_comes_last_without_p():
    groups = {name: runs[:1] for name, runs in kinds(a=2.0, b=2.1).items()}
    nats = groups["b"][0].items.statistics["nats"].copy()
    nats[::2] = math.inf
    lines = ItemStatistics(groups["b"][0].items.keys, {**groups["b"][0].items.statistics, "nats": nats})
    rows = table.rows({"b": [lm_results(lines)] * 2, "a": groups["a"]})
    assert [row.name for row in rows] == ["a", "b"]
    assert (rows[1].p, rows[1].tied_with_best, rows[1].best) == (None, False, False)
    data = json.loads(table.json(rows))[1]["score"]
    assert (data["value"], data["infinite"]) == (None, True)
    assert "inf" in table_text.terminal(rows)


def test_runs_that_cannot_be_compared():
    a = kinds(a=2.0)["a"][0]
    b = lm_results(ItemStatistics(a.items.keys[:-1], {name: values[:-1] for name, values in a.items.statistics.items()}))
    with pytest.raises(UsageError) as caught:
        table.rows({"a": [a], "b": [b]})
    assert str(caught.value) == "compare: runs/a-0 and runs/x were evaluated on different items; use the same data for both"
    with pytest.raises(
        UsageError, match="use the same data, tokenizer and noise for both: the corrupted texts depend on all of"
    ):
        table.rows({"a": [a._replace(task="denoising")], "b": [b._replace(task="denoising")]})
    with pytest.raises(UsageError) as caught:
        table.rows({"a": [a], "b": [classification_results([0], [0], ("x",))]})
    assert str(caught.value) == "compare: runs/a-0 (lm) and runs/x (classification) have different tasks"
    with pytest.raises(UsageError) as caught:
        table.rows({})
    assert str(caught.value) == "compare: no runs to compare; name at least one"


def test_costs_are_means_over_seeds():
    runs = kinds(a=2.0)["a"]
    costs = [COST._replace(seconds=None), COST._replace(seconds=20.0, peak_memory=5_000_000, inference_rate=70.0)]
    row = table.rows({"a": [run._replace(cost=item) for run, item in zip(runs, costs, strict=True)]})[0]
    assert (row.seconds, row.peak_memory, row.inference_rate, row.num_parameters) == (20.0, 5_000_000, 60.0, 1000)


# ---- too little data


def few(items: int, seeds: int = 1) -> dict[str, list[RunResults]]:
    """Three models on so many blocks of text, each far worse than the one before it on every block."""
    rng = np.random.default_rng(0)
    tokens = np.full(items, 100.0)
    rates = rng.uniform(0.2, 0.24, items)
    return {
        name: [
            lm_results(
                ItemStatistics(np.arange(items), {"nats": tokens * (rates + more + 0.001 * seed), "tokens": tokens}),
                run=Path(f"runs/{name}-{seed}"),
                seed=seed,
                item="block of about 1,000 bytes",
            )
            for seed in range(seeds)
        ]
        for name, more in (("gpt", 0.0), ("lstm", 0.07), ("ngram", 0.1))
    }


def test_an_underpowered_test_says_so_and_marks_no_ties():
    """6 blocks can be exchanged in 64 ways, of which 2 give the largest difference; 2 rows are tested: 2 * 2 / 64."""
    rows = table.rows(few(6))
    assert [row.name for row in rows] == ["gpt", "lstm", "ngram"]
    assert [row.smallest_p for row in rows] == [None, 0.0625, 0.0625]
    assert [row.p for row in rows] == [None, 0.0625, 0.0625]
    assert [row.has_enough_items for row in rows] == [True, False, False]
    assert [row.tied_with_best for row in rows] == [True, False, False]
    assert table.insufficient_data(rows, few(6)) == (
        "Too little test data (?) to tell gpt from lstm, ngram: with 6 blocks of about 1,000 bytes, p is at least 0.062 "
        "however large the difference is."
    )
    lines = table_text.terminal(rows).split("\n")
    assert [line[1] for line in lines[1:4]] == ["*", "?", "?"]
    assert [line.split()[5] for line in lines[2:4]] == ["?", "?"]
    assert "**lstm**" not in table_text.markdown(rows) and "**gpt**" in table_text.markdown(rows)
    data = json.loads(table.json(rows))
    assert [(row["has_enough_items"], row["smallest_p"], row["tied_with_best"]) for row in data[1:]] == [
        (False, 0.0625, False)
    ] * 2
    read = list(csv.DictReader(io.StringIO(table_text.csv(rows))))
    assert [line["has_enough_items"] for line in read] == ["1", "0", "0"]


def test_enough_items_or_seeds_allow_a_test():
    for groups in (few(7), few(60), few(6, seeds=2)):
        rows = table.rows(groups)
        assert all(row.has_enough_items for row in rows) and [row.tied_with_best for row in rows] == [True, False, False]
        assert table.insufficient_data(rows, groups) == ""
    assert table.rows(few(7))[1].smallest_p == 2 * 2 / 2**7


def test_one_item_allows_no_test_whatever_the_seeds():
    for seeds in (1, 2):
        rows = table.rows(few(1, seeds=seeds))
        assert [(row.has_enough_items, row.tied_with_best) for row in rows[1:]] == [(False, False)] * 2
        assert "with 1 block of about 1,000 bytes, p is at least 1 " in table.insufficient_data(rows, few(1, seeds=seeds))


def test_many_rows_need_more_permutations():
    """Holm multiplies p by 60: of 1,000 exchanges the least would be 0.06."""
    rng, tokens = np.random.default_rng(0), np.full(30, 50.0)
    rates = rng.uniform(1, 2, 30)
    groups = {
        f"m{index}": [lm_results(ItemStatistics(np.arange(30), {"nats": tokens * (rates + index), "tokens": tokens}))]
        for index in range(61)
    }
    assert all(row.has_enough_items and row.tied_with_best == (row.name == "m0") for row in table.rows(groups))


def test_the_difference_from_the_best_row_has_a_confidence_interval():
    rows = table.rows(few(60))
    assert rows[0].difference is None
    value, low, high = rows[1].difference
    assert value == pytest.approx(0.07) and low == pytest.approx(0.07, abs=1e-6) and high == pytest.approx(0.07, abs=1e-6)
    read = list(csv.DictReader(io.StringIO(table_text.csv(rows))))
    assert [float(read[1][name]) for name in ("difference", "difference_low", "difference_high")] == [value, low, high]
    assert read[0]["difference"] == ""
    # scores vary far more over blocks than their difference does
    assert rows[1].score.high - rows[1].score.low > 0.004
    right = [0, 1] * 20
    worse = [1, 1, 1, 1, *right[4:]]
    percents = table.rows(
        {"a": [classification_results(right, right, ("x", "y"))], "b": [classification_results(worse, right, ("x", "y"))]}
    )
    assert percents[1].difference.value == pytest.approx(-5.0) and percents[1].difference.low < -5 < percents[1].difference.high
    assert table.rows(
        {"a": [classification_results(right, right, ("x", "y"))], "b": [classification_results(worse, right, ("x", "y"))]}, "ece"
    )[1].difference.low is None  # fmt: skip


def test_a_narrow_terminal_omits_the_last_columns():
    rows = table.rows(few(60))
    wide = table_text.terminal(rows, 200)
    assert wide == table_text.terminal(rows) and "peak memory" in wide
    narrow = table_text.terminal(rows, 72)
    assert "peak memory" not in narrow and "train time" in narrow and max(map(len, narrow.split("\n"))) <= 72
    assert table_text.terminal(rows, 10).split("\n")[0].split() == ["model", "loss", "95%", "CI", "p"]


# ---- writing


ODD = "lstm|a_b*50%&\\x"


def odd_rows() -> list[table.Row]:
    good, bad = kinds(good=2.0, bad=3.0).values()
    return table.rows({ODD: good, "plain": bad})


def test_terminal():
    lines = table_text.terminal(odd_rows()).split("\n")
    titles = ["model", "loss", "95% CI", "p", "params", "train time", "train tok/s", "peak memory"]
    assert lines[0].split() == " ".join(titles).split()
    assert lines[1].startswith(f" * {ODD}")
    assert lines[2].startswith("   plain")
    assert lines[2].split()[-6:] == ["<0.001", "1.0k", "12s", "900", "2.0", "MB"]
    assert len({line.index("MB") for line in lines[1:3]}) == 1
    assert lines[2].split()[2][0] + lines[2].split()[3][-1] == "[]"
    assert lines[3:] == ["", " * best model, or not significantly worse (p >= 0.05)", ""]


def test_csv_round_trips():
    rows = odd_rows()
    read = list(csv.DictReader(io.StringIO(table_text.csv(rows))))
    assert [line["name"] for line in read] == [ODD, "plain"]
    assert [float(line["value"]) for line in read] == [row.score.value for row in rows]
    assert [line["best"] + line["tied_with_best"] for line in read] == ["11", "00"]
    assert float(read[1]["perplexity_high"]) == rows[1].scores["perplexity"].high
    assert (read[0]["p"], float(read[1]["p"])) == ("", rows[1].p)
    assert read[0]["seeds"] == "0 1"


def test_markdown_escapes_what_would_break_it():
    lines = table_text.markdown(odd_rows()).split("\n")
    assert lines[1] == "| :-- |" + " --: |" * 7
    assert lines[2].startswith("| **lstm\\|a\\_b\\*50%&\\\\x** | **")
    assert lines[3].startswith("| plain | 3.")
    assert {line.replace("\\|", "").count("|") for line in lines[:4]} == {9}


def test_latex_escapes_what_would_break_it():
    lines = table_text.latex(odd_rows()).split("\n")
    assert lines[0] == r"\begin{tabular}{lrrrrrrr}"
    assert lines[1::2][:2] == [r"\toprule", r"\midrule"]
    assert lines[4].startswith(r"\textbf{lstm|a\_b*50\%\&\textbackslash{}x} & \textbf{")
    assert lines[2].count("&") == lines[5].count("&") == 7
    assert r"95\% CI" in lines[2]
    assert r"\textless{}0.001" in lines[5]
    assert lines[-3:] == [r"\bottomrule", r"\end{tabular}", ""]


def test_a_row_is_one_line_whatever_its_directory_name():
    (single,) = kinds(one=2.0).values()
    rows = table.rows({"a\nb\x07c": single})
    for text in (table_text.terminal(rows), table_text.markdown(rows), table_text.latex(rows)):
        assert sum("a b c" in line for line in text.split("\n")) == 1
    assert rows[0].name == "a\nb\x07c"


def test_json_rows():
    data = json.loads(table.json(odd_rows()))
    assert set(data[0]) == {"name", "runs", "seeds", "p", "best", "tied_with_best", "has_enough_items", "smallest_p",
        "difference", "num_parameters", "seconds", "tokens_per_second",
        "peak_memory", "model_bytes", "score", "scores", "inference_rate", "inference_unit",
        "train_hosts", "train_hardware", "inference_hardware"}  # fmt: skip
    assert (data[0]["inference_rate"], data[0]["inference_unit"]) == (50.0, "tokens/s scored")
    assert data[0]["score"] == data[0]["scores"]["loss"]


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (table_text.format_seconds, 4.25, "4.2s"),
        (table_text.format_seconds, 12.5, "12s"),
        (table_text.format_seconds, 75, "1m15s"),
        (table_text.format_seconds, 3700.4, "1h01m"),
        (table_text.format_seconds, None, "-"),
        (table_text.format_bytes, 999, "999 B"),
        (table_text.format_bytes, 1500, "1.5 kB"),
        (table_text.format_bytes, 123_456_789, "123 MB"),
        (table_text.format_bytes, 5e12, "5000 GB"),
        (table_text.format_bytes, None, "-"),
        (table_text.format_p, 0.0004, "<0.001"),
        (table_text.format_p, 0.5, "0.500"),
        (table_text.format_p, None, "-"),
        (table_text.format_count, 3.14159, "3.1"),
        (table_text.format_count, 900, "900"),
        (table_text.format_count, 11_712, "11.7k"),
        (table_text.format_count, 999_700, "1.0M"),
        (table_text.format_count, 21_603_480_026, "21.6B"),
        (table_text.format_count, None, "-"),
    ],
)
def test_numbers(function, value, text):
    assert function(value) == text


@pytest.mark.parametrize(
    ("name", "percent", "value", "text"),
    [
        ("loss", False, 1.59049, "1.590"),
        ("loss", False, math.nan, "-"),
        ("loss", False, math.inf, "inf"),
        ("loss", False, 12345.678, "12,345.7"),
        ("accuracy", True, 88.8889, "88.9"),
        ("perplexity", False, 1.2649, "1.26"),
        ("perplexity", False, 20.0, "20.0"),
        ("word_perplexity", False, 1234.5, "1,234"),
    ],
)
def test_precision_depends_on_the_metric(name, percent, value, text):
    metric = LANGUAGE[0]._replace(name=name, percent=percent)
    assert table_text.format_value(value, metric) == text


def test_percents_have_one_decimal():
    right = [0, 1] * 20
    line = table_text.terminal(table.rows({"a": [classification_results(right, right, ("x", "y"))]})).split("\n")[1]
    assert line.startswith(" * a") and line.split()[2] == "100.0"
