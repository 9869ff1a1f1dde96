"""comparison.json: breakdowns, items, confusion matrices and curves, each against an independent calculation."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from fake_evaluations import classification_results, compute_scores, lm_results, simulate_runs
from sklearn.metrics import confusion_matrix, f1_score, precision_recall_fscore_support

from weft.comparison.breakdown import LABEL_F1, MAX_LABELS, Cell, as_json, breakdowns, by_bins, round_borders
from weft.comparison.curves import curve
from weft.comparison.results import RunResults
from weft.comparison.scores import item_metric, item_values, ranking_metric
from weft.comparison.significance import Estimate, bootstrap, estimate
from weft.comparison.to_json import MAX_DIFFERING, MAX_EXTREME, confusions, items, select, to_document
from weft.comparison.to_json import MAX_LABELS as MAX_CLASSES
from weft.errors import UsageError
from weft.log import Log
from weft.metrics.classification import SINGLE_LABEL
from weft.metrics.items import ItemStatistics, Score
from weft.metrics.lm import LANGUAGE
from weft.metrics.metric import metric_names, metrics_of
from weft.metrics.seq2seq import seq2seq_items
from weft.metrics.tagging import TAGS, tag_items
from weft.tasks.registry import find_task

LOSS, ACCURACY, TOKEN_ACCURACY = LANGUAGE[0], SINGLE_LABEL[0], TAGS[0]
SPAN_F1 = metrics_of([TAGS], ["span_f1"])["span_f1"]
RATE = LOSS.compute
KNOWN = metric_names(find_task("seq2seq").validation_suites)
CONTRACT = {"title", "task", "data", "metric", "test", "rows", "curves", "breakdowns", "items", "confusions", "samples",
    "configs", "environment", "command"}  # fmt: skip


def two_kinds(**more):
    rng = np.random.default_rng(0)
    tokens = rng.integers(3, 60, 120).astype(np.float64)
    return {
        name: [
            lm_results(one, seed=at, **more)
            for at, one in enumerate(simulate_runs(rng, tokens, np.zeros(120), seeds=2, mean=mean))
        ]
        for name, mean in (("worse", 3.0), ("better", 2.0))
    }


def test_the_document_has_the_keys_of_the_report():
    found = to_document(two_kinds(samples=("a text",)), title="t", command="weft compare x")
    json.dumps(found, allow_nan=False)
    assert set(found) >= CONTRACT
    assert [row["name"] for row in found["rows"]] == ["better", "worse"]
    assert found["metric"] == {"name": "loss", "better": "lower"}
    assert found["samples"] == {"better": ["a text"], "worse": ["a text"]}
    assert found["configs"] == {"better": "", "worse": ""}
    assert [(one["name"], one["seed"]) for one in found["curves"]] == [("better", 0), ("better", 1), ("worse", 0), ("worse", 1)]
    assert found["confusions"] is None
    assert set(found["environment"]) >= {"weft", "torch", "python"}
    assert (found["title"], found["command"]) == ("t", "weft compare x")


@pytest.mark.parametrize("names", [["train"], ["train.words", "train.letters"], ["train.0", "train.1"], ["train.source"]])
def test_training_data_sizes_are_included_if_the_run_still_has_them(tmp_path, names):
    groups = {name: [run._replace(run=tmp_path) for run in runs] for name, runs in two_kinds().items()}
    assert to_document(groups)["about"] == {}
    (tmp_path / "data").mkdir()
    for name in (*names, "valid"):
        (tmp_path / "data" / f"{name}.json").write_text('{"words": 1000}')
    both = "train.1" in names  # two texts an example; letters are those of the same words
    assert to_document(groups)["about"] == {"training data": "2,000 words" if both else "1,000 words"}
    for damaged in ("[]", "{", '{"words": "many"}'):
        (tmp_path / "data" / f"{names[0]}.json").write_text(damaged)
        assert to_document(groups)["about"] == {}


# ---- breakdowns


@pytest.mark.parametrize(
    ("lengths", "borders"),
    [
        (np.arange(1, 61), [11, 20, 30, 40, 50, 55]),
        (np.arange(1, 1201), [200, 400, 600, 800, 1000, 1100]),
        (np.full(50, 7), []),
        (np.random.default_rng(0).integers(480, 520, 100), []),
        (np.repeat([1, 2, 9], [50, 40, 10]), [1, 2]),
        (np.array([1, 2, 30]), []),
    ],
)
def test_bin_edges_are_round_and_no_bin_is_nearly_empty(lengths, borders):
    assert round_borders(lengths) == borders


def test_a_breakdown_by_length_equals_the_score_of_the_items_in_each_bin():
    groups = two_kinds()
    found = next(breakdowns(groups, LOSS))
    assert found["by"] == "input length in tokens"
    lengths = groups["better"][0].lengths
    assert sum(found["counts"]) == 120
    low = 0
    for at, name in enumerate(found["bins"]):
        high = int(name.split("-")[1]) if "-" in name else 10**9
        members = (lengths > low) & (lengths <= high)
        assert found["counts"][at] == members.sum()
        for row, runs in groups.items():
            rates = [run.items.statistics["nats"][members].sum() / lengths[members].sum() for run in runs]
            assert found["values"][row][at] == pytest.approx(np.mean(rates))
            assert found["low"][row][at] < found["values"][row][at] < found["high"][row][at]
        low = high
    assert found["bins"][-1].startswith("over ")


def test_the_breakdown_shows_a_model_that_fails_on_long_inputs():
    """What a fixed-size state forgets: the one row is as good as the other up to 22 tokens, and worse the longer it gets."""
    rng = np.random.default_rng(0)
    words = [str(at) for at in range(50)]
    targets = [" ".join(rng.choice(words, size)) for size in rng.integers(2, 40, 200)]
    lengths = np.array([len(line.split()) for line in targets])

    def evidence(outputs: list[str]) -> RunResults:
        made = seq2seq_items(outputs, targets)
        more = {"task": "seq2seq", "scores": compute_scores("seq2seq", made), "inputs": targets, "references": targets}
        return lm_results(ItemStatistics(made.keys, {**made.statistics, "tokens": lengths.astype(float)}, outputs), **more)

    forgets = [" ".join([*line.split()[:22], *rng.choice(words, max(0, len(line.split()) - 22))]) for line in targets]
    found = to_document({"attends": [evidence(targets)], "forgets": [evidence(forgets)]})
    by = found["breakdowns"][0]
    gaps = np.array(by["values"]["attends"]) - np.array(by["values"]["forgets"])
    short = [name for name in by["bins"] if "-" in name and int(name.split("-")[1]) <= 22]
    assert len(short) >= 2
    assert gaps[: len(short)].max() == 0
    assert (np.diff(gaps[len(short) :]) > 0).all()
    assert by["high"]["forgets"][-1] < by["low"]["attends"][-1]
    assert found["items"][0]["outputs"]["attends"] == found["items"][0]["reference"]


def test_a_breakdown_by_frequency_adds_up():
    groups, rng = two_kinds(), np.random.default_rng(1)
    share = rng.dirichlet(np.ones(6), 120)
    for runs in groups.values():
        for at, run in enumerate(runs):
            tokens = share * run.items.statistics["tokens"][:, None]
            nats = share * run.items.statistics["nats"][:, None] * (1 + np.arange(6))
            runs[at] = run._replace(frequencies={"tokens": tokens, "nats": nats})
    found = list(breakdowns(groups, LOSS))[1]
    assert found["by"] == "training frequency of the token"
    assert found["bins"] == ["0", "1-9", "10-99", "100-999", "1,000-9,999", "10,000 and more"]
    expected = [
        np.mean([run.frequencies["nats"][:, at].sum() / run.frequencies["tokens"][:, at].sum() for run in groups["better"]])
        for at in range(6)
    ]
    assert found["values"]["better"] == pytest.approx(expected)
    assert found["counts"] == [int(v) for v in groups["worse"][0].frequencies["tokens"].sum(0)]


def test_breakdown_by_the_rarest_token_of_a_line():
    groups = two_kinds(rarest=np.arange(120) % 30)
    found = list(breakdowns(groups, LOSS))[1]
    assert found["by"] == "training frequency of the rarest input token"
    assert (found["bins"], found["counts"]) == (["0", "1-9", "10-99"], [4, 36, 80])


def test_bins_have_the_confidence_interval_of_their_items():
    groups = two_kinds()
    (cell,) = by_bins(groups, np.zeros(120), ["all"], RATE)
    whole = estimate([one[""] for one in bootstrap([run.items for run in groups["better"]], {"": RATE})])
    assert cell.scores["better"] == whole


MEANT = [0, 0, 1, 1, 2, 2, 2, 2]
SAID = [0, 1, 1, 1, 2, 2, 0, 2]


def test_breakdown_by_label_equals_the_f1_of_scikit_learn():
    groups = {
        "a": [classification_results(SAID, MEANT, ("x", "y", "z"))],
        "b": [classification_results(MEANT, MEANT, ("x", "y", "z"))],
    }
    found = list(breakdowns(groups, ACCURACY))[-1]
    assert (found["by"], found["metric"]) == ("label", {"name": "f1", "better": "higher"})
    assert (found["bins"], found["counts"]) == (["z", "x", "y"], [4, 2, 2])
    by_hand = dict(zip("xyz", 100 * f1_score(MEANT, SAID, average=None), strict=True))
    assert found["values"]["a"] == pytest.approx([by_hand[name] for name in found["bins"]])
    assert found["values"]["b"] == [100.0] * 3
    precision, recall, _, _ = precision_recall_fscore_support(MEANT, SAID, labels=[2, 0, 1])
    assert found["precision"]["a"] == pytest.approx(100 * precision) and found["recall"]["a"] == pytest.approx(100 * recall)


def test_precision_and_recall_of_several_seeds_are_their_means():
    """By hand: of two seeds one said all right, and what was never said has a precision of 0, as in scikit-learn."""
    names, nothing = ("x", "y", "z"), [2] * 8
    groups = {
        "a": [classification_results(SAID, MEANT, names), classification_results(MEANT, MEANT, names)],
        "b": [classification_results(nothing, MEANT, names)],
    }
    found = list(breakdowns(groups, ACCURACY))[-1]
    assert found["bins"] == ["z", "x", "y"]
    assert found["precision"] == {"a": pytest.approx([100, 75, 250 / 3]), "b": [50.0, 0.0, 0.0]}
    assert found["recall"] == {"a": pytest.approx([87.5, 75, 100]), "b": [100.0, 0.0, 0.0]}
    assert "precision" not in next(breakdowns(two_kinds(), LOSS))


def tagger(said: list[str], meant: list[str], labels: tuple[str, ...], types: tuple[str, ...] = ()) -> RunResults:
    pairs = [[line.split() for line in lines] for lines in (said, meant)]
    made = tag_items(*pairs, np.arange(len(said)), types=types)
    made = ItemStatistics(made.keys, made.statistics, said)
    more = {
        "task": "tagging",
        "scores": compute_scores("tagging", made),
        "inputs": meant,
        "references": meant,
        "labels": labels,
    }
    return lm_results(made, lengths=np.array([len(line.split()) for line in meant]), **more)


def test_breakdown_by_tag_and_by_span_type():
    said, meant = ["N V N", "V V"] * 4, ["N V V", "V N"] * 4
    found = list(breakdowns({"a": [tagger(said, meant, ("V", "N"))]}, TOKEN_ACCURACY))[-1]
    flat = [" ".join(lines).split() for lines in (meant, said)]
    assert (found["by"], found["bins"], found["counts"]) == ("tag", ["V", "N"], [12, 8])
    assert found["values"]["a"] == pytest.approx(100 * f1_score(*flat, average=None, labels=["V", "N"]))
    precision, recall, _, _ = precision_recall_fscore_support(*flat, labels=["V", "N"])
    assert found["precision"]["a"] == pytest.approx(100 * precision) and found["recall"]["a"] == pytest.approx(100 * recall)
    said, meant = ["B-A O", "B-B I-B"] * 3, ["B-A O", "B-B O"] * 3
    one = tagger(said, meant, ("O", "B-A", "B-B", "I-B"), types=("A", "B"))
    found = list(breakdowns({"a": [one]}, SPAN_F1))[-1]
    assert (found["by"], found["bins"]) == ("type of span", ["A", "B"])
    assert found["values"]["a"] == [100.0, 0.0]


def test_bins_have_valid_bounds_units_and_infinite_values():
    cells = [Cell("x", 4, {"a": Estimate(90.0, -20.0, 180.0)}), Cell("y", 2, {"a": Estimate(math.inf, None, None)})]
    found = as_json("tag", LABEL_F1, cells, ["a"], unit="words")
    assert (found["low"], found["high"], found["unit"]) == ({"a": [0.0, None]}, {"a": [100.0, None]}, "words")
    assert (found["values"], found["infinite"]) == ({"a": [90.0, None]}, {"a": [1]})
    found = as_json("length", LOSS, cells[:1], ["a"])
    assert (found["low"], found["high"], found["unit"], found["infinite"]) == ({"a": [0.0]}, {"a": [180.0]}, "items", {})


def test_the_unit_of_counts_depends_on_the_breakdown():
    said, meant = ["N V N", "V V"] * 4, ["N V V", "V N"] * 4
    assert list(breakdowns({"a": [tagger(said, meant, ("V", "N"))]}, TOKEN_ACCURACY))[-1]["unit"] == "words"
    one = tagger(["B-A O", "B-B I-B"] * 3, ["B-A O", "B-B O"] * 3, ("O", "B-A", "B-B", "I-B"), types=("A", "B"))
    assert list(breakdowns({"a": [one]}, SPAN_F1))[-1]["unit"] == "spans"
    assert next(breakdowns(two_kinds(), LOSS))["unit"] == "items"


# ---- items


def test_infinite_items_are_listed_separately_since_json_has_no_infinity():
    groups = two_kinds()
    first = {name: runs[0] for name, runs in groups.items()}
    first["worse"].items.statistics["nats"][7] = math.inf
    found = {one["key"]: one for one in items(first, LOSS)}
    assert found[7]["values"]["worse"] is None and found[7]["infinite"] == ["worse"]
    assert sum("infinite" in one for one in found.values()) == 1


def test_items_where_rows_differ_most_come_first():
    first = {
        "a": classification_results(SAID, MEANT, ("x", "y", "z")),
        "b": classification_results(MEANT, MEANT, ("x", "y", "z")),
    }
    found = items(first, ACCURACY)
    assert {one["key"] for one in found[:2]} == {1, 6}
    assert {one["key"] for one in found} == set(range(8))
    one = next(one for one in found if one["key"] == 1)
    assert one == {
        "key": 1,
        "input": "text 1",
        "reference": "x",
        "outputs": {"a": "y", "b": "x"},
        "values": {"a": 0.0, "b": 100.0},
    }


def test_only_the_extremes_of_many_items_are_kept():
    rng = np.random.default_rng(0)
    values = rng.normal(0, 1, (3, 5000))
    chosen = select(values, None, higher=True)
    assert len(chosen) == len(set(chosen)) <= MAX_DIFFERING + 2 * MAX_EXTREME
    assert chosen[0] == np.argmax(np.ptp(values, axis=0))
    level = values.mean(0)
    assert {int(np.argmax(level)), int(np.argmin(level))} <= set(chosen)
    assert select(-values, None, higher=False) == chosen


def test_identical_rows_show_their_worst_and_best_items():
    values = np.tile(np.arange(10.0), (2, 1))
    assert select(values, None, higher=False)[:2] == [9, 8]
    finer = np.tile(np.arange(10.0)[::-1], (2, 1))
    assert select(np.zeros((2, 10)), finer, higher=True)[0] == 9
    with_infinite = np.array([[1.0, np.inf, np.nan], [1.0, 2.0, 3.0]])
    assert select(with_infinite, None, higher=False)[0] == 1


@pytest.mark.parametrize(
    ("task", "score", "known", "one"),
    [
        ("seq2seq", "bleu", ["bleu", "chrf"], "chrf"),
        ("seq2seq", "bleu", ["bleu"], "bleu"),
        ("tagging", "span_f1", ["token_accuracy", "span_f1"], "token_accuracy"),
        ("classification", "f1_macro", ["accuracy", "f1_macro"], "accuracy"),
        ("classification", "f1_macro", ["exact_match", "f1_macro"], "exact_match"),
        ("classification", "ece", ["exact_match", "log_loss", "ece"], "log_loss"),
        ("qa", "accuracy_no_answer", ["exact_match", "accuracy_no_answer"], "exact_match"),
        ("lm", "loss", ["loss"], "loss"),
    ],
)
def test_metrics_that_are_defined_for_one_item(task, score, known, one):
    found = metrics_of(find_task(task).eval_suites, known)
    assert item_metric(found[score], found).name == one


def test_scores_of_single_items():
    found = ItemStatistics(np.arange(2), {"nats": np.array([2.0, 9.0]), "tokens": np.array([2.0, 3.0])})
    assert item_values(found, RATE).tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    ("task", "names", "decides"),
    [
        ("classification", ["accuracy", "f1_macro"], "accuracy"),
        ("classification", ["exact_match", "f1_macro"], "exact_match"),
        ("tagging", ["token_accuracy", "span_f1"], "span_f1"),
        ("tagging", ["token_accuracy", "sentence_accuracy"], "token_accuracy"),
        ("seq2seq", ["exact_match", "bleu", "chrf", "loss"], "chrf"),
        ("qa", ["f1", "exact_match"], "f1"),
    ],
)
def test_the_metric_that_ranks_rows(task, names, decides):
    assert ranking_metric(task, [[Score(name, 1.0, None, None, "") for name in names]], None).name == decides


def measured_with(tokenizer: str, *names: str) -> list[Score]:
    return [Score(name, 1.0, None, None, f"weft|tokenizer:{tokenizer}") for name in names]


def test_per_token_scores_do_not_rank_rows_with_different_tokenizers():
    names = ("loss", "bits_per_char", "bits_per_byte")
    runs = [measured_with("a", *names), measured_with("b", *names)]
    assert ranking_metric("lm", runs, None).name == "bits_per_char"
    assert ranking_metric("lm", runs, "bits_per_byte").name == "bits_per_byte"
    assert ranking_metric("lm", runs[:1] * 2, "loss").name == "loss"
    hidden = [measured_with(name, "pseudo_loss", "pseudo_perplexity") for name in "ab"]
    for task, given, wanted in (("lm", runs, "loss"), ("masked-lm", hidden, None)):
        with pytest.raises(UsageError) as caught:
            ranking_metric(task, given, wanted)
        assert str(caught.value) == (
            "compare: the runs have different tokenizers, so scores per token are not comparable; "
            "choose another `metric` or train all runs with one tokenizer"
        )


# ---- confusions


def test_confusion_matrices_equal_scikit_learn():
    found = confusions({"a": classification_results(SAID, MEANT, ("x", "y", "z"))})
    assert found == {"labels": ["x", "y", "z"], "matrices": {"a": confusion_matrix(MEANT, SAID).tolist()}}


def test_unseen_labels_have_a_row():
    found = confusions({"a": classification_results([0, 1, 1], [0, 1, -1], ("x", "y"))})
    assert found["labels"] == ["x", "y", "(unseen)"]
    assert found["matrices"]["a"] == [[1, 0, 0], [0, 1, 0], [0, 1, 0]]


def test_rare_labels_are_merged_if_there_are_many():
    names = tuple(f"n{at}" for at in range(100))
    meant = [at for at in range(100) for _ in range(100 - at)]
    said = [(at + 50) % 100 for at in meant]
    found = confusions({"a": classification_results(said, meant, names)})
    assert found["labels"] == [*names[:MAX_CLASSES], "(others)"]
    matrix = np.array(found["matrices"]["a"])
    assert (matrix.shape, matrix.sum()) == ((MAX_CLASSES + 1, MAX_CLASSES + 1), len(meant))
    assert matrix[0].tolist() == [0] * MAX_CLASSES + [100]


def test_confusion_matrix_of_tags():
    found = confusions({"a": tagger(["N V N", "V V"], ["N V V", "V X"], ("V", "N"))})
    assert found == {"labels": ["V", "N", "(unseen)"], "matrices": {"a": [[2, 1, 0], [0, 1, 0], [1, 0, 0]]}}


def test_memory_grows_linearly_with_the_number_of_labels():
    """A table of 1,000 labels by 200 texts has 1.6 MB; a matrix of labels would have 8, one for each label 8,000."""
    rng = np.random.default_rng(0)
    names = tuple(f"n{at}" for at in range(1000))
    meant = rng.integers(0, 1000, 200).tolist()
    row = classification_results([at if rng.random() < 0.7 else 3 for at in meant], meant, names)
    tracemalloc.start()
    cells = [one for one in breakdowns({"a": [row]}, ACCURACY) if one["by"] == "label"]
    by_label = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    confused = confusions({"a": row})
    matrix = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(cells[0]["bins"]) == MAX_LABELS and len(confused["labels"]) == MAX_CLASSES + 1
    assert by_label < 20e6 and matrix < 5e6


def test_multilabel_data_has_no_confusion_matrix():
    one = classification_results(SAID, MEANT, ("x", "y", "z"))
    assert confusions({"a": one._replace(scores=[*one.scores, Score("exact_match", 1.0, None, None, "")])}) is None


# ---- curves


def test_curves_have_tokens_and_seconds(tmp_path: Path):
    lines = [{"step": 1, "tokens": 10, "train_loss": 3.0}, {"step": 3, "tokens": 30, "train_loss": 2.0}]
    lines += [{"step": 2, "valid_loss": 2.5, "valid_bleu": 1.0}, {"step": 4, "tokens": 40, "train_loss": None}]
    times = [{"step": 2, "seconds": 1.0}, {"step": 4, "seconds": 3.0}]
    for name, records in (("metrics.jsonl", lines), ("timings.jsonl", times)):
        with Log(tmp_path / name) as log:
            for record in records:
                log.write(record)
    found = curve(tmp_path, "bleu", KNOWN)
    assert found["train"] == [
        {"step": 1, "tokens": 10, "seconds": 0.5, "value": 3.0},
        {"step": 3, "tokens": 30, "seconds": 2.0, "value": 2.0},
    ]
    assert found["valid"] == [{"step": 2, "tokens": 20, "seconds": 1.0, "value": 1.0}]
    assert found["metrics"] == {"train": "loss", "valid": "bleu"}
    assert curve(tmp_path, "chrf", KNOWN)["metrics"]["valid"] == "loss"
    assert curve(tmp_path / "gone", "bleu", KNOWN)["valid"] == []
