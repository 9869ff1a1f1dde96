"""Stored results of runs of every task: equal to `evaluate`, items that add up to the scores, lossless files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from label_runs import LabelRuns
from seq2seq_runs import Seq2SeqRuns
from small_runs import SilentCallback, flip_bit, make_text, run_file, train_here
from toy_qa import make_questions, qa_run_file, write_tsv

from weft import files
from weft.comparison import results as module
from weft.comparison.costs import Cost, compute_cost
from weft.comparison.results import RunResults, evaluate_run, load, load_or_evaluate, save
from weft.comparison.scores import metrics
from weft.comparison.to_json import to_document
from weft.errors import ModelError, ResourceError
from weft.log import Log, read_log
from weft.metrics.frequency import FREQUENCIES
from weft.metrics.items import total
from weft.runs.load import load as load_run
from weft.runs.machine import read_machines, this_machine, write_machine
from weft.runs.run_dir import RunDir, open_run_dir
from weft.tasks.lm.compare import text_edges
from weft.tensors import read_tensors, write_tensors

TASKS = ("lm-lines", "lm-text", "ngram", "masked", "labels-lstm", "several-naive-bayes", "pairs-lstm", "spans-lstm")
TASKS += ("speech-conv", "seq2seq", "qa")


class Runs:
    """Runs by the name of what they do, and their evidence, each made when it is first asked for."""

    def __init__(self, place: Path) -> None:
        self.directory, self.labels, self.text = place, LabelRuns(place), make_text(place / "text.txt", words=3000)
        self.found: dict[str, RunResults] = {}

    def _values(self, name: str) -> dict[str, Any]:
        read = "lines" if name in ("lm-lines", "masked") else "windows"
        values = run_file(self.text, "conv", data__read_as=read, data__valid=0.2)
        if name == "ngram":
            values |= {"model": {"arch": "ngram"}, "train": {}}
        if name == "masked":
            values |= {"task": "masked-lm", "model": {"arch": "lstm", "hidden_size": 8, "num_layers": 1}}
        return values

    def run_dir(self, name: str) -> Path:
        if name == "seq2seq":
            return Seq2SeqRuns(self.directory).run_dir("lstm")
        if name == "qa":
            values = qa_run_file(write_tsv(self.directory / "asked.tsv", make_questions(150)), "lstm", "train.max_steps=5")
        elif name.startswith(("lm", "masked", "ngram")):
            values = self._values(name)
        else:
            values = self.labels.values(name, "train.max_steps=8") if "bayes" not in name else self.labels.values(name)
        if not (self.directory / name).exists():
            train_here(values, self.directory / name, SilentCallback())
        return self.directory / name

    def evidence(self, name: str) -> RunResults:
        if name not in self.found:
            self.found[name] = evaluate_run(load_run(self.run_dir(name), device="cpu"))
        return self.found[name]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


def same(a: RunResults, b: RunResults) -> None:
    """All fields of both, to the last bit."""
    for name in (
        "run",
        "arch",
        "seed",
        "task",
        "scores",
        "inputs",
        "references",
        "cost",
        "data",
        "split",
        "labels",
        "samples",
        "cache_key",
    ):
        assert getattr(a, name) == getattr(b, name), name
    assert a.items.outputs == b.items.outputs
    tables = [{"keys": item.items.keys, "lengths": item.lengths, **item.items.statistics} for item in (a, b)]
    tables[0] |= {f"f.{name}": values for name, values in a.frequencies.items()} | {"rarest": np.asarray(a.rarest)}
    tables[1] |= {f"f.{name}": values for name, values in b.frequencies.items()} | {"rarest": np.asarray(b.rarest)}
    assert set(tables[0]) == set(tables[1])
    for name, values in tables[0].items():
        assert np.array_equal(values, tables[1][name]), name
        assert values.dtype == tables[1][name].dtype


@pytest.mark.parametrize("name", TASKS)
def test_scores_equal_evaluate_and_items_add_up_to_them(runs, name):
    result = runs.evidence(name)
    assert result.scores == list(load_run(runs.run_dir(name), device="cpu").evaluate())
    sums = total(result.items.statistics)
    for score_name, metric in metrics(result.task, result.scores).items():
        value = next(score.value for score in result.scores if score.name == score_name)
        assert metric.compute(sums).item() == pytest.approx(value, rel=1e-6), score_name
    assert metrics(result.task, result.scores).keys() == {score.name for score in result.scores}
    size = len(result.items.keys)
    assert size == len(result.inputs) == len(result.references) == len(result.lengths) > 1
    assert result.items.outputs is None or len(result.items.outputs) == size
    assert (result.items.outputs is None) == (result.task in ("lm", "masked-lm"))


@pytest.mark.parametrize("name", TASKS)
def test_results_round_trip_bit_for_bit(runs, tmp_path, name):
    result = runs.evidence(name)
    save(result, tmp_path / "deep" / "evidence")
    same(load(tmp_path / "deep" / "evidence"), result)
    save(result, tmp_path / "deep" / "evidence")  # again, in its place
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["evidence"]


@pytest.mark.parametrize("name", TASKS)
def test_every_task_makes_a_document(runs, name):
    result = to_document({"a": [runs.evidence(name)]}, title=name)
    json.dumps(result, allow_nan=False)
    assert result["task"] == runs.evidence(name).task
    assert result["rows"][0]["best"]
    assert result["curves"][0]["valid"]
    assert result["configs"]["a"] == (runs.run_dir(name) / "resolved.toml").read_text()


@pytest.mark.parametrize("name", ["labels-lstm", "several-naive-bayes", "spans-lstm", "seq2seq", "qa"])
def test_items_have_predictions_and_references(runs, name):
    """Right answers, counted from the texts that are kept, are those that the scores count."""
    result = runs.evidence(name)
    exact = next(v for n, v in result.items.statistics.items() if n == "exact")
    if name == "several-naive-bayes":
        right = [set(a.split(", ")) == set(b.split(", ")) for a, b in zip(result.items.outputs, result.references, strict=True)]
    elif name == "seq2seq":
        right = [a.split() == b.split() for a, b in zip(result.items.outputs, result.references, strict=True)]
    else:
        right = [a == b for a, b in zip(result.items.outputs, result.references, strict=True)]
    assert right == (exact > 0).tolist()


def test_items_of_a_language_model_are_the_lines_of_the_text(runs):
    result = runs.evidence("lm-lines")
    lines = runs.text.read_text().split("\n")[:-1]
    assert result.inputs == lines[-len(result.inputs) :]
    assert result.lengths.tolist() == [len(line) + 1 for line in result.inputs]
    scored = load_run(runs.run_dir("lm-lines"), device="cpu").score(result.inputs[:5])
    assert result.items.statistics["nats"][:5] == pytest.approx([-item.log_prob for item in scored], rel=1e-5)
    assert len(result.samples) == 4
    assert result.samples == evaluate_run(load_run(runs.run_dir("lm-lines"), device="cpu")).samples


def test_blocks_of_running_text_are_whole_lines_whatever_the_tokenizer(runs, tmp_path):
    chars = runs.evidence("lm-text")
    values = run_file(runs.text, "conv", data__valid=0.2, tokenizer={"type": "bpe", "vocab_size": 300})
    train_here(values, tmp_path / "bpe", SilentCallback())
    pieces = evaluate_run(load_run(tmp_path / "bpe", device="cpu"))
    assert chars.inputs == pieces.inputs
    assert (chars.item, pieces.item) == ("block of about 100 bytes",) * 2
    longest = max(len(line) + 1 for line in runs.text.read_text().split("\n"))
    assert len(chars.inputs) > 10
    assert all(text.endswith("\n") and len(text) < 100 + longest for text in chars.inputs[1:-1])
    assert np.array_equal(chars.items.statistics["bytes"], pieces.items.statistics["bytes"])
    assert chars.lengths.sum() > pieces.lengths.sum()
    result = to_document({"chars": [chars], "bpe": [pieces]})
    assert result["metric"]["name"] == "bits_per_char"
    assert not any(breakdown["by"].startswith("frequency") for breakdown in result["breakdowns"])


def test_masked_windows_are_the_text_of_their_tokens(runs, tmp_path):
    values = run_file(runs.text, "conv", data__valid=0.2)
    values |= {"task": "masked-lm", "model": {"arch": "lstm", "hidden_size": 8, "num_layers": 1}}
    values["train"]["max_steps"] = 2
    train_here(values, tmp_path / "masked", SilentCallback())
    result = evaluate_run(load_run(tmp_path / "masked", device="cpu"))
    whole = "".join(result.inputs)
    assert whole == runs.text.read_text()[-len(whole) :]
    assert [len(text) for text in result.inputs] == result.lengths.tolist()


# ---- how frequent things were in training


def test_frequencies_of_tokens_by_hand(runs):
    result = runs.evidence("lm-lines")
    lines = runs.text.read_text().split("\n")[:-1]
    counts = Counter("".join(lines[: -len(result.inputs)])) + Counter({"\n": len(lines) - len(result.inputs)})
    classes = np.zeros(len(FREQUENCIES) + 1)
    for letter in "".join(line + "\n" for line in result.inputs):
        classes[np.digitize(counts[letter], FREQUENCIES)] += 1
    assert result.frequencies["tokens"].sum(0).tolist() == classes.tolist()
    assert result.frequencies["nats"].sum(1) == pytest.approx(result.items.statistics["nats"], rel=1e-6)


@pytest.mark.parametrize("read", ["lines", "windows"])
def test_frequencies_of_masked_tokens_by_hand(runs, tmp_path, read):
    values = run_file(runs.text, "conv", data__valid=0.2, data__read_as=read)
    values |= {"task": "masked-lm", "model": {"arch": "lstm", "hidden_size": 8, "num_layers": 1}}
    values["train"]["max_steps"] = 2
    train_here(values, tmp_path / "masked", SilentCallback())
    result = evaluate_run(load_run(tmp_path / "masked", device="cpu"))
    original, held = runs.text.read_text(), "".join(text + ("\n" if read == "lines" else "") for text in result.inputs)
    counts, classes = Counter(original.removesuffix(held)), np.zeros(len(FREQUENCIES) + 1)
    for letter in "".join(result.inputs):
        classes[np.digitize(counts[letter], FREQUENCIES)] += 1
    assert result.frequencies["tokens"].sum(0).tolist() == classes.tolist()
    assert result.frequencies["tokens"].sum(1).tolist() == result.items.statistics["tokens"].tolist()
    assert result.frequencies["nats"].sum(1) == pytest.approx(result.items.statistics["nats"], rel=1e-9)
    (made,) = [
        breakdown
        for breakdown in to_document({"lstm": [result]})["breakdowns"]
        if breakdown["by"] == "training frequency of the token"
    ]
    assert (made["metric"], made["unit"]) == ({"name": "pseudo_loss", "better": "lower"}, "tokens")
    mean = np.dot(made["values"]["lstm"], made["counts"]) / sum(made["counts"])
    assert mean == pytest.approx(result.scores[0].value)


def test_frequencies_of_words_by_hand(runs):
    result = runs.evidence("speech-conv")
    train = load_run(runs.run_dir("speech-conv"), device="cpu").config.datasets["train"]
    known = Counter(word for sentence in train.records() for word in sentence.words)
    new = sum(not known[word] for text in result.inputs for word in text.split())
    assert result.frequencies["tokens"].sum(0)[0] == new == result.items.statistics["oov"].sum() > 0
    assert result.frequencies["correct"].sum() == result.items.statistics["correct"].sum()
    assert result.frequencies["correct"].sum(0)[0] == result.items.statistics["oov_correct"].sum()


def test_the_rarest_character_of_a_source_by_hand(runs):
    result, path = runs.evidence("seq2seq"), runs.directory / "pairs.tsv"
    words = [line.split("\t")[0] for line in path.read_text().split("\n")[:-1]]
    counts = Counter("".join(words[: len(words) - 2 * len(result.inputs)]))
    assert result.rarest.tolist() == [min(counts[letter] for letter in word) for word in result.inputs]


def test_without_training_tokens_there_are_no_frequencies(runs, tmp_path, monkeypatch):
    run = load_run(runs.run_dir("lm-lines"), device="cpu")
    monkeypatch.setattr(RunDir, "data", property(lambda folder: tmp_path / "gone"))
    assert evaluate_run(run, run.config.datasets["train"].paths).frequencies == {}


def test_line_offsets_are_line_starts(runs):
    _, corpus = load_run(runs.run_dir("lm-lines"), device="cpu").predictor.token_losses()
    assert np.array_equal(text_edges(corpus), corpus.starts)


# ---- kept


def counting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which runs are really measured from now on."""
    seen: list[str] = []
    real = module.evaluate

    def evaluate(run: Any, data: Any, how: Any, watch: Any) -> Any:
        seen.append(run.directory.path.name)
        return real(run, data, how, watch)

    monkeypatch.setattr(module, "evaluate", evaluate)
    return seen


def test_results_are_reused_unless_weights_or_data_changed(tmp_path, monkeypatch):
    text, seen, reported = make_text(tmp_path / "t.txt"), counting(monkeypatch), []
    values = run_file(text, data__read_as="lines", train__max_steps=2)
    train_here(values, tmp_path / "run", SilentCallback())
    run, kept = tmp_path / "run", tmp_path / "evidence" / "run"
    first = load_or_evaluate(run, kept, device="cpu", progress=lambda done, total: reported.append((done, total)))
    assert seen == ["run"]
    assert reported[-1][0] == reported[-1][1]
    same(load_or_evaluate(run, kept, device="cpu"), first)
    assert seen == ["run"]
    train_here({**values, "seed": 9}, run, SilentCallback(), overwrite=True)
    second = load_or_evaluate(run, kept, device="cpu")
    assert (len(seen), second.seed) == (2, 9)
    assert second.cache_key != first.cache_key
    other = make_text(tmp_path / "other.txt", words=100, seed=8)
    third = load_or_evaluate(run, kept, other, device="cpu")
    assert third.data == str(other)
    assert third.cache_key == load_or_evaluate(run, kept, other, device="cpu").cache_key != second.cache_key
    make_text(other, words=100, seed=9)
    assert load_or_evaluate(run, kept, other, device="cpu").cache_key != third.cache_key
    assert len(seen) == 4


@pytest.mark.parametrize("name", ["numbers.safetensors", "results.json", "manifest.json"])
def test_damaged_results_are_recomputed(runs, tmp_path, monkeypatch, name):
    kept, run = tmp_path / "kept", runs.run_dir("lm-lines")
    save(runs.evidence("lm-lines"), kept)
    seen = counting(monkeypatch)
    load_or_evaluate(run, kept, device="cpu")
    assert seen == []
    flip_bit(kept / name)
    with pytest.raises(ModelError):
        load(kept)
    load_or_evaluate(run, kept, device="cpu")
    assert len(seen) == 1
    load(kept)


ODD: tuple[Any, ...] = (None, True, -1, 10**400, 1e308, "x", [], ["x"], [1], [[]], {}, {"x": 1})


def forged(about: dict[str, Any], arrays: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Evidence with one thing in it that is not as it was written."""
    for name in about:
        yield {key: value for key, value in about.items() if key != name}, arrays
        yield from (({**about, name: odd}, arrays) for odd in ODD)
    yield from (({**about, "cost": {**about["cost"], name: odd}}, arrays) for name in about["cost"] for odd in ODD[:6])
    for name in ("inputs", "references", "outputs", "labels"):
        if about[name]:
            yield {**about, name: about[name][1:]}, arrays
            yield {**about, name: ["no such thing", *about[name][1:]]}, arrays
    for name, values in arrays.items():
        yield about, {key: value for key, value in arrays.items() if key != name}
        yield from ((about, {**arrays, name: odd}) for odd in (values[1:], values[None], values.int(), values.bool()))
        if values.ndim > 1:
            yield about, {**arrays, name: values[:, 1:].contiguous()}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "spans-lstm")) for name in TASKS])
def test_forged_results_are_refused_or_harmless(runs, tmp_path, name):
    """The sums are right, what is summed is not: whoever made a run could have made its evidence, too."""
    kept = tmp_path / "kept"
    save(runs.evidence(name), kept)
    about = files.read_json(kept / "results.json")
    arrays = read_tensors(kept / "numbers.safetensors")[0]
    refused = 0
    for words, numbers in forged(about, arrays):
        (kept / "results.json").write_text(json.dumps(words))
        write_tensors(kept / "numbers.safetensors", numbers)
        files.write_manifest(kept)
        try:
            result = load(kept)
        except ModelError as error:
            refused += 1
            assert "\n" not in str(error)
            continue
        json.dumps(to_document({"a": [result]}), allow_nan=False)
    assert refused > 100
    (kept / "results.json").write_text(json.dumps({**about, "inputs": about["inputs"][1:]}))
    write_tensors(kept / "numbers.safetensors", arrays)
    files.write_manifest(kept)
    with pytest.raises(ModelError) as caught:
        load(kept)
    assert str(caught.value) == f"{kept}: corrupted results: invalid keys; remove the directory to evaluate the run again"


def test_two_processes_may_store_the_same_results(runs, tmp_path, monkeypatch):
    """As one that was looked at twice at once: the other has just put there what this one is about to."""
    kept, run = tmp_path / "kept", runs.run_dir("lm-lines")
    whole = module.save

    def late(found: RunResults, folder: Path) -> None:
        whole(found, folder)
        raise ResourceError(folder, "cannot write: Directory not empty", "nothing was changed")

    monkeypatch.setattr(module, "save", late)
    same(load_or_evaluate(run, kept, device="cpu"), load(kept))
    files.remove(kept)

    def full(found: RunResults, folder: Path) -> None:
        raise ResourceError("", "no space left")

    monkeypatch.setattr(module, "save", full)
    with pytest.raises(ResourceError, match="no space left"):
        load_or_evaluate(run, kept, device="cpu")


def test_results_of_another_version_are_refused(runs, tmp_path):
    save(runs.evidence("lm-lines"), tmp_path / "e")
    about = files.read_json(tmp_path / "e" / "results.json")
    files.write_json(tmp_path / "e" / "results.json", {**about, "version": 0})
    files.write_manifest(tmp_path / "e")
    with pytest.raises(ModelError) as caught:
        load(tmp_path / "e")
    why = "not results of this version of weft; remove the directory to evaluate the run again"
    assert str(caught.value) == f"{tmp_path / 'e'}: {why}"


# ---- costs


def test_costs_are_those_recorded_by_the_run(tmp_path):
    (tmp_path / "resolved.toml").write_text("")
    (tmp_path / "model.safetensors").write_bytes(b"x" * 77)
    lines = [{"step": 1, "seconds": 2.0, "tokens_per_second": 10.0, "peak_memory": 900}]
    lines += [{"step": 9, "seconds": 5.0, "tokens_per_second": 12.0, "peak_memory": 700}]
    with Log(tmp_path / "timings.jsonl") as timings:
        for line in lines:
            timings.write(line)
    with (tmp_path / "timings.jsonl").open("a") as torn:
        torn.write('{"step": 10, "sec')
    result = compute_cost(open_run_dir(tmp_path), 5, inference_rate=3.0, inference_unit="lines/s")
    assert result[:8] == (5, 5.0, 12.0, 900, 77, 3.0, "lines/s", None)
    assert result.train_hosts == result.train_hardware == ()  # not recorded
    here = this_machine()
    assert (result.inference_host, result.inference_hardware) == (here.host, here.hardware)
    write_machine(tmp_path, 0)
    with Log(tmp_path / "machines.jsonl") as machines:
        machines.write({"step": 4, "host": "other", "processor": "P", "gpu": "none", "threads": 2})
        machines.write({"step": 6, "host": "third", "processor": "P", "gpu": "G", "threads": 2})
    write_machine(tmp_path, 8)
    moved = compute_cost(open_run_dir(tmp_path), 5, inference_rate=3.0, inference_unit="lines/s")
    assert moved.train_hosts == (here.host, "other", "third")
    assert moved.train_hardware == (here.hardware, "P, 2 threads", "G")
    assert Cost.from_json(json.loads(json.dumps(moved._asdict()))) == moved
    (tmp_path / "machines.jsonl").write_text("damaged\n")
    assert read_machines(tmp_path) == []
    (tmp_path / "timings.jsonl").unlink()
    assert compute_cost(open_run_dir(tmp_path), 5, inference_rate=3.0, inference_unit="lines/s")[1:4] == (None, None, None)
    assert read_log(tmp_path / "timings.jsonl") == []


@pytest.mark.parametrize(("name", "unit"), [("ngram", "tokens/s scored"), ("seq2seq", "lines/s"), ("qa", "questions/s")])
def test_costs_of_real_runs(runs, name, unit):
    result, run = runs.evidence(name).cost, load_run(runs.run_dir(name), device="cpu")
    assert (result.num_parameters, result.inference_unit) == (run.info()["parameters"], unit)
    assert result.inference_rate > 0
    assert result.model_bytes == run.directory.weights.stat().st_size
    assert (result.peak_memory is None) == (name == "ngram")
