"""Head importance against independent calculations; a pruned run equals the same run with these heads masked."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import expect_error
from label_runs import LabelRuns
from seq2seq_runs import Seq2SeqRuns
from small_runs import SilentCallback, make_text, run_file, train_here

import weft
from weft.cli.main import main
from weft.errors import ConfigError, DataError, UsageError
from weft.explain.attention import sites
from weft.explain.eval_loss import eval_batches, mean_loss
from weft.explain.heads import Head, all_heads, attention_layers, head_name, masked_heads, remaining_heads, remove_heads
from weft.explain.importance import importance_by_gradient, importance_by_masking
from weft.explain.inputs import network
from weft.explain.pruning import count_passes, parse_num_heads, prune, write_pruned_run
from weft.models.config import LanguageModelConfig, StackConfig
from weft.models.lm import language_model
from weft.models.seq2seq_config import DecoderConfig
from weft.nn.attention import PrunedAttention
from weft.runs.resolve import resolve
from weft.tasks.seq2seq.data import pairs

MEASURED: dict[str, Any] = {"measure": "masking", "data": "validation data"}
SMALL = {"hidden_size": 16, "num_layers": 2, "num_heads": 4}
TRAIN = {"max_steps": 4, "batch_tokens": 300, "device": "cpu", "num_validations": 1}


class Runs:
    """Small runs of every architecture with attention, trained briefly on first use."""

    def __init__(self, place: Path) -> None:
        self.directory, self.pairs, self.labels = place, Seq2SeqRuns(place), LabelRuns(place)
        self.text = make_text(place / "text.txt")

    def load(self, name: str) -> Any:
        folder = self.directory / "runs" / name
        if not folder.exists():
            train_here(self.values(*name.split("-")), folder, SilentCallback())
        return weft.load(folder, device="cpu")

    def values(self, task: str, *options: str) -> dict[str, Any]:
        positions = options[0] if options else "learned"
        if task in ("lm", "masked"):
            model = {"arch": "transformer" if task == "lm" else "bert", **SMALL, "position_encoding": positions}
            model |= {"qk_norm": True} if positions == "rotary" else {"bias": positions != "sinusoidal"}
            actual = run_file(self.text, train=TRAIN, tokenizer={"type": "word"}, task="lm" if task == "lm" else "masked-lm")
            return {**actual, "model": model}
        if task == "pairs":
            from seq2seq_runs import seq2seq_run_file

            settings = [f"model.{key}={value}" for key, value in {**SMALL, "position_encoding": positions}.items()]
            actual = seq2seq_run_file(self.pairs.pairs, "transformer", *settings)
            return {**actual, "train": TRAIN}
        name = {"classification": "labels-transformer", "tagging": "spans-transformer"}[task]
        settings = [f"model.{key}={value}" for key, value in {**SMALL, "position_encoding": positions}.items()]
        return {**self.labels.values(name, *settings), "train": TRAIN}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("prune"))


def parts_of(run: Any, directory: Path, data: Any = None) -> Any:
    directory.mkdir(exist_ok=True)
    return eval_batches(run, data, directory, max_tokens=10**6)


def shaken(run: Any) -> Any:
    """Weights so large that losing a head matters; they are saved in the run directory."""
    model, chance = network(run), torch.Generator().manual_seed(0)
    assert model is not None
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=chance))
    run.directory.write_weights(model.state_dict(), run.vocabulary.hash, run.directory.weights_step())
    return model


KINDS = [
    *(f"lm-{positions}" for positions in ("none", "sinusoidal", "learned", "relative", "alibi", "rotary")),
    "masked-learned",
    "masked-alibi",
    "classification-rotary",
    "tagging-relative",
    *(f"pairs-{positions}" for positions in ("sinusoidal", "learned", "relative", "alibi", "rotary")),
]


# ---- the smaller run is the same run with heads silent


@pytest.mark.parametrize("name", KINDS)
def test_a_pruned_run_equals_the_original_with_masked_heads(runs: Runs, name: str, tmp_path: Path) -> None:
    run = runs.load(name)
    model, layers = shaken(run), attention_layers(run)
    # one layer loses all heads, others none, one and three
    removed = {Head(0, 2), *(Head(1, head) for head in range(4))}
    removed |= (
        {Head(3, 0), Head(3, 1), Head(3, 3), Head(4, 1), *(Head(5, head) for head in range(4))} if len(layers) > 2 else set()
    )
    actual = prune(model, layers, parts_of(run, tmp_path / "data")[:1], num_removed=0)
    actual = actual._replace(steps=[*actual.steps, actual.steps[0]._replace(removed=sorted(removed))])
    write_pruned_run(run, tmp_path / "small", actual, MEASURED)
    smaller: Any = weft.load(tmp_path / "small", device="cpu")
    before = [part.total_loss().detach() for part in parts_of(run, tmp_path / "data")]
    with masked_heads(model, layers, removed):
        silent = [part.total_loss().detach() for part in parts_of(run, tmp_path / "data")]
    after = [part.total_loss().detach() for part in parts_of(smaller, tmp_path / "data")]
    for one, two, full in zip(silent, after, before, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(two, full, rtol=1e-4)  # the heads had an effect
    theirs, ours = network(run), network(smaller)
    assert theirs is not None and ours is not None
    assert sum(weight.numel() for weight in ours.parameters()) < sum(weight.numel() for weight in theirs.parameters())
    assert [one.num_heads for one in attention_layers(smaller)] == [len(stay) for stay in remaining_heads(layers, removed)]
    assert sum(isinstance(part, PrunedAttention) for part in ours.modules()) == (2 if len(layers) > 2 else 1)
    # layers keep their indices
    expected = {(one.component, one.layer) for index, one in enumerate(layers) if remaining_heads(layers, removed)[index]}
    assert {(site.component, site.layer) for site in sites(ours)} == expected


def test_logits_of_a_pruned_language_model(runs: Runs, tmp_path: Path) -> None:
    """In one pass and step by step, with the cache of the remaining heads."""
    run = runs.load("lm-rotary")
    model, layers = shaken(run), attention_layers(run)
    removed = [Head(0, 0), Head(0, 3), *(Head(1, head) for head in range(4))]
    actual = prune(model, layers, parts_of(run, tmp_path / "data")[:1], num_removed=0)
    write_pruned_run(run, tmp_path / "small", actual._replace(steps=[actual.steps[0]._replace(removed=removed)]), MEASURED)
    smaller: Any = weft.load(tmp_path / "small", device="cpu").model
    tokens = torch.randint(3, 9, (3, 11), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), masked_heads(model, layers, removed):
        expected = model.head(model(tokens)[0])
    with torch.no_grad():
        torch.testing.assert_close(smaller.head(smaller(tokens)[0]), expected, rtol=1e-5, atol=1e-5)
        pruned_log_probs, state = smaller.start(tokens[:, :4])
        for index in range(4, 11):
            torch.testing.assert_close(pruned_log_probs, expected[:, index - 1], rtol=1e-4, atol=1e-5)
            pruned_log_probs, state = smaller.step(tokens[:, index], state)
    assert weft.load(tmp_path / "small").generate("the cat", max_new_tokens=5, seed=1)  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_pruned_seq2seq_run_supports_all_commands(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, pairs = runs.load("pairs-sinusoidal"), runs.pairs.pairs
    shaken(run)
    small, data = str(tmp_path / "small"), str(pairs)
    words = [
        "prune",
        str(run.directory.path),
        "--remove",
        "50%",
        "--heads-per-round",
        "6",
        "--data",
        data,
        "--max-tokens",
        "300",
    ]
    assert main([*words, "--output-dir", small, "--quiet"]) == 0
    assert "heads removed" in capsys.readouterr().out
    smaller: Any = weft.load(small, device="cpu")
    with torch.no_grad():
        greedy, wide = smaller.predict(["abc", "fade"], beam_size=1), smaller.predict(["abc", "fade"], beam_size=3)
    assert len(greedy) == len(wide) == 2
    best = greedy[0]
    scored = smaller.score([("abc", best.text)])[0].token_log_probs[: len(best.token_ids)]  # with the cache, and without
    assert sum(scored) == pytest.approx(best.log_prob, rel=1e-4)
    assert main(["evaluate", small, "--data", data, "--quiet"]) == 0
    assert main(["explain", small, "abc", "--view", "attention", "--quiet"]) == 0
    # prune again and fine-tune: the run file initializes from its own weights
    assert (
        main(["prune", small, "--remove", "2", "--data", data, "--max-tokens", "300", "--output-dir", small + "2", "--quiet"])
        == 0
    )
    capsys.readouterr()
    train = ["train", small + "2/run.toml", "--output-dir", str(tmp_path / "on"), "--set", "train.max_steps=2"]
    assert main(train) == 0
    assert "Initialized " in capsys.readouterr().err
    assert [item.num_heads for item in attention_layers(weft.load(tmp_path / "on"))] == [
        item.num_heads for item in attention_layers(weft.load(small + "2"))
    ]
    report = json.loads((tmp_path / "small2" / "prune.json").read_text())
    assert report["heads"] == 12 and len(report["steps"]) == 3 and report["unit"] == "nats per token"
    # the number of measured tokens, not the limit: whole batches up to 300
    sizes = [item.num_tokens for item in eval_batches(weft.load(small), data, tmp_path / "again", max_tokens=300)]
    assert report["tokens"] == sum(sizes) >= 300 > sum(sizes[:-1])


# ---- what heads are worth


@pytest.mark.parametrize(
    "name", ["lm-alibi", "masked-learned", "classification-rotary", "tagging-relative", "pairs-sinusoidal"]
)
def test_loss_equals_that_of_evaluate(runs: Runs, name: str, tmp_path: Path) -> None:
    run = runs.load(name)
    actual = mean_loss(parts_of(run, tmp_path / "data"))
    valid = run.config.datasets["valid"]
    if name.startswith("lm"):
        with torch.no_grad():
            nats, _ = run.predictor.token_losses(None)
        assert run.config.datasets.keys() == {"train", "valid"}
        assert actual == pytest.approx(float(np.mean(nats, dtype=np.float64)), rel=1e-5)
    elif name.startswith("pairs"):
        scored = run.score(list(pairs(valid)))
        assert actual == pytest.approx(
            -sum(example.log_prob for example in scored) / sum(len(example.tokens) for example in scored), rel=1e-5
        )
    elif name.startswith("classification"):
        examples = list(valid.records())
        log_probs = run.predictor.model.log_probs([example.texts for example in examples])
        head = run.model.head
        assert float(head.temperature) != 1.0  # not part of the loss: undone here
        scores = torch.from_numpy(log_probs) * float(head.temperature)
        gold = torch.tensor([run.vocabulary.labels.index(example.labels[0]) for example in examples])
        assert actual == pytest.approx(torch.nn.functional.cross_entropy(scores, gold).item(), rel=1e-5)
    elif name.startswith("tagging"):
        sentences = list(valid.records())
        assert 0 < actual < 10 and sum(example.num_items for example in parts_of(run, tmp_path / "data")) == sum(
            len(example.words) for example in sentences
        )
    else:
        masked_counts = [part.num_items for part in parts_of(run, tmp_path / "data")]
        assert actual == mean_loss(parts_of(run, tmp_path / "again")) and sum(masked_counts) > 0  # the same masks each time


def test_data_subset_is_deterministic(runs: Runs, tmp_path: Path) -> None:
    run = runs.load("lm-alibi")
    (tmp_path / "data").mkdir()
    full = eval_batches(run, runs.text, tmp_path / "data", max_tokens=10**6)
    subset = eval_batches(run, runs.text, tmp_path / "data", max_tokens=1)
    assert len(subset) == 1 <= len(full) and mean_loss(subset) == mean_loss(
        eval_batches(run, runs.text, tmp_path / "data", max_tokens=1)
    )


def test_importance_by_masking_is_the_loss_without_a_head(runs: Runs, tmp_path: Path) -> None:
    """Compared with weights set to zero by hand."""
    run = runs.load("pairs-learned")
    model, layers = shaken(run), attention_layers(run)
    parts = parts_of(run, tmp_path / "data")
    actual = importance_by_masking(model, layers, parts, removed=[Head(1, 1)])
    assert set(actual) == set(all_heads(layers)) - {Head(1, 1)}
    names = [(1, "encoder.stack.layers.2.mixer", 1), (4, "decoder.stack.layers.1.mixer", 3)]
    outlets: list[Any] = [model.get_submodule(f"{name}.to_out") for _, name, _ in names]
    with torch.no_grad():
        outlets[0].weight[:, 4:8] = 0.0
        before = mean_loss(parts)
        outlets[1].weight[:, 12:16] = 0.0
        after = mean_loss(parts)
    assert layers[4].component == "cross" and layers[4].name == names[1][1]
    assert actual[Head(4, 3)] == pytest.approx(after - before, rel=1e-4, abs=1e-6)


def test_importance_by_gradient_matches_numerical_derivatives(runs: Runs, tmp_path: Path) -> None:
    run = runs.load("classification-rotary")
    model, layers = shaken(run), attention_layers(run)
    model.double()
    rows = ["the cat is old", "a drill", "some new green there"]
    data = tmp_path / "three.tsv"
    data.write_text(
        "label\ttext\n" + "".join(f"{name}\t{row}\n" for name, row in zip(("animal", "tool", "colour"), rows, strict=True))
    )
    actual = importance_by_gradient(model, layers, parts_of(run, tmp_path / "data", data))
    expected = 0.0
    outlet: Any = model.get_submodule(f"{layers[1].name}.to_out")
    for line in data.read_text().splitlines()[1:]:  # |d loss / d mask| of each row
        alone = tmp_path / "one.tsv"
        alone.write_text(f"label\ttext\n{line}\n")
        (part,) = parts_of(run, tmp_path / line.split()[0], alone)
        values = []
        for share in (1.005, 0.995):
            weight = outlet.weight.detach().clone()
            with torch.no_grad():
                outlet.weight[:, 8:12] *= share
                values.append(part.total_loss().item())
                outlet.weight.copy_(weight)
        expected += abs(values[0] - values[1]) / 0.01  # the head computes in float32
    assert actual[Head(1, 2)] == pytest.approx(expected / 3, rel=2e-3)


def test_heads_are_pruned_in_order_of_importance_and_remeasured(runs: Runs, tmp_path: Path) -> None:
    run = runs.load("lm-learned")
    model, layers = shaken(run), attention_layers(run)
    parts, seen = parts_of(run, tmp_path / "data"), list[tuple[int, int]]()
    actual = prune(
        model, layers, parts, num_removed=3, heads_per_round=1, progress=lambda done, total: seen.append((done, total))
    )
    assert (
        seen == [(index, 25) for index in range(1, 26)] and count_passes(8, 3, 1, "masking") == 25
    )  # 8 + 7 + 6, and four losses
    removed = list[Head]()
    for step in actual.steps[1:]:
        worth = importance_by_masking(model, layers, parts, removed)
        assert step.removed == [min(worth, key=lambda head: worth[head])]
        removed += step.removed
        with masked_heads(model, layers, removed):
            assert mean_loss(parts) == step.loss
    assert actual.removed == removed and actual.importance == importance_by_masking(model, layers, parts)
    fast = prune(model, layers, parts, num_removed=3, heads_per_round=2, measure="gradient")
    assert [len(step.removed) for step in fast.steps] == [0, 2, 1]
    assert count_passes(8, 3, 2, "gradient") == 5 and count_passes(8, 0, 1, "masking") == 10


def test_a_layer_that_loses_all_heads_keeps_its_bias() -> None:
    part, x = PrunedAttention(3), torch.randn(2, 4, 3)
    with torch.no_grad():
        part.bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
    y, state = part(x, None, None)
    assert state == () and torch.equal(y, part.bias.expand(2, 4, 3))


def test_weights_of_a_head_are_sliced_correctly() -> None:
    """Each weight encodes its head and row."""
    from weft.explain.heads import LayerHeads

    layer_heads = LayerHeads("decoder", 1, "m", 3, 2)
    labels = torch.tensor([[100 * part + 10 * head + row for head in range(3) for row in range(2)] for part in range(3)])
    tensors = {
        "m.to_qkv.weight": labels.flatten()[:, None].expand(18, 5).contiguous(),
        "m.to_qkv.bias": labels.flatten(),
        "m.to_out.weight": labels[0].expand(5, 6).contiguous(),
        "m.to_out.bias": torch.arange(5),
        "other": torch.zeros(1),
    }
    actual = remove_heads(tensors, [layer_heads], [[0, 2]])
    stay = [100 * part + 10 * head + row for part in range(3) for head in (0, 2) for row in range(2)]
    assert actual["m.to_qkv.bias"].tolist() == stay and actual["m.to_qkv.weight"][:, 4].tolist() == stay
    assert actual["m.to_out.weight"].tolist() == [stay[:4]] * 5 and actual["m.to_out.bias"].tolist() == list(range(5))
    assert actual["other"] is tensors["other"]
    bare = remove_heads(tensors, [layer_heads], [[]])
    assert set(bare) == {"other", "m.bias"} and bare["m.bias"].tolist() == list(range(5))
    assert head_name([layer_heads], Head(0, 2)) == "decoder 1.3"


# ---- heads by layer in a run file


def test_num_heads_per_layer_is_applied() -> None:
    table = LanguageModelConfig(
        layer_type="attention", num_layers=3, hidden_size=12, num_heads=[3, 0, 1], head_dim=[4, 4, 2], position_encoding="alibi",
        alibi_slopes=[[0.5, 0.1, 0.2], [], [0.25]],
    ).with_defaults()  # fmt: skip
    model = language_model(table, vocab_size=7, context_length=8, vocabulary="")
    mixers = [model.stack.layers[index].mixer for index in (0, 2, 4)]
    assert [getattr(mixer, "num_heads", 0) for mixer in mixers] == [3, 0, 1]
    assert mixers[0].to_qkv.out_features == 36 and mixers[2].to_qkv.out_features == 6
    assert torch.equal(mixers[0].positions.slope, torch.tensor([0.5, 0.1, 0.2]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 0}, "num_heads: must be at least 1, got 0"),
        ({"num_heads": [2, -1], "head_dim": 4}, "num_heads: must be at least 1, got -1"),
        ({"num_heads": [2, 0]}, "head_dim: required if a layer has no heads"),
        ({"num_heads": [2]}, "num_heads: 1 values for 2 layers; set one number, or one per layer"),
        ({"head_dim": [2]}, "head_dim: 1 values for 2 layers; set one number, or one per layer"),
        ({"alibi_slopes": [[0.1]]}, "alibi_slopes: not used with position_encoding 'none'; remove it"),
        (
            {"num_heads": [2, 1], "alibi_slopes": [[0.1], [0.1]], "position_encoding": "alibi"},
            "alibi_slopes: [1, 1] slopes per layer for [2, 1] heads; set one slope per head",
        ),
        ({"rope_theta": 5e5}, "rope_theta: not used with position_encoding 'none'; remove it"),
        ({"layer_type": "lstm", "alibi_slopes": [[0.1]]}, "alibi_slopes: not used with layer_type 'lstm'; remove it"),
    ],
)
def test_invalid_num_heads_is_rejected(options: dict[str, Any], message: str) -> None:
    from weft.config import parse_config

    with pytest.raises(ConfigError) as caught:
        parse_config(StackConfig, {"layer_type": "attention", "num_layers": 2, "hidden_size": 8, **options}, prefix="model")
    assert str(caught.value) == f"model.{message}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer_type": "lstm", "num_cross_heads": 2}, "num_cross_heads: not used with layer_type 'lstm'; remove it"),
        (
            {"layer_type": "attention", "num_layers": 2, "num_cross_heads": [1]},
            "num_cross_heads: 1 values for 2 layers; set one number, or one per layer",
        ),
    ],
)
def test_invalid_cross_num_heads_is_rejected(options: dict[str, Any], message: str) -> None:
    from weft.config import parse_config

    with pytest.raises(ConfigError) as caught:
        parse_config(DecoderConfig, options, prefix="model.decoder")
    assert str(caught.value) == f"model.decoder.{message}"
    assert DecoderConfig(
        layer_type="attention", hidden_size=8, num_heads=2, num_cross_heads=3
    ).with_defaults().cross_heads_in_layer(1) == (3, 4)


# ---- refusals, and the command line


def test_prune_errors(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs.load("lm-alibi")
    run_dir, recurrent = str(run.directory.path), runs.pairs.run_dir("luong")

    def line(*words: str) -> str:
        return expect_error(capsys, "prune", *words, "--quiet")[1]

    assert line(str(recurrent)) == f"heads: luong has no attention heads ({recurrent})"
    assert line(run_dir, "--remove", "half") == "--remove: expected a number or a percentage such as 8 or 50%, got 'half'"
    assert line(run_dir, "--remove", "9") == "--remove: must be from 1 to 8 heads, got 9"
    assert line(run_dir, "--remove", "0", "--output-dir", str(tmp_path / "new")).startswith("--remove: must be from 1 to 8")
    assert not (tmp_path / "new").exists()
    assert line(run_dir, "--remove", "0%") == "--remove: must be from 1 to 8 heads, got 0%"
    assert line(run_dir, "--remove", "1", "--heads-per-round", "0") == "--heads-per-round: must be at least 1, got 0"
    assert line(run_dir, "--importance", "grdient") == (
        "--importance: unknown importance measure 'grdient'; did you mean 'gradient'?"
    )
    assert line(run_dir, "--max-tokens", "0") == "--max-tokens: must be at least 1, got 0"
    assert line(run_dir, "--output-dir", "x") == "--output-dir: requires --remove, the number of heads to remove"
    assert (
        line(run_dir, "--remove", "1", "--output-dir", run_dir)
        == f"{run_dir}: already contains a run; choose another --output-dir"
    )
    assert line(run_dir, "--plot", "x.pdf") == "--plot: x.pdf must end in .html, .svg, .png or .json"
    values = runs.values("lm", "alibi")
    values["data"] = {**values["data"], "valid": None}
    del values["data"]["valid"]
    train_here(values, tmp_path / "bare", SilentCallback())
    assert line(str(tmp_path / "bare")) == f"{tmp_path / 'bare'}: the run has no validation data; set --data"
    train_here(runs.values("lm", "relative-bias"), tmp_path / "biased", SilentCallback())
    assert line(str(tmp_path / "biased"), "--remove", "1", "--output-dir", str(tmp_path / "new")) == (
        "heads: cannot be removed with position_encoding 'relative-bias', which all layers share"
    )
    assert parse_num_heads("50%", 9) == 4 and parse_num_heads("3", 9) == 3


def test_empty_data_and_ensembles_are_rejected(runs: Runs, tmp_path: Path) -> None:
    run = runs.load("classification-rotary")
    data = tmp_path / "new.tsv"
    data.write_text("label\ttext\nnever\tthe cat\n")
    with pytest.raises(DataError) as caught:
        parts_of(run, tmp_path / "data", data)
    assert str(caught.value) == "data: no examples to compute the loss on; check that it has examples with known labels"
    two = weft.ensemble([runs.pairs.run_dir("transformer")] * 2)
    with pytest.raises(UsageError) as several:
        parts_of(two, tmp_path / "data", runs.pairs.pairs)
    assert str(several.value) == "loss: not available for an ensemble; measure one run"


def test_command_prints_and_plots(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs.load("tagging-relative")
    run_dir, page = str(run.directory.path), tmp_path / "x.html"
    assert main(["prune", run_dir, "--plot", str(page), "--quiet"]) == 0  # only measured
    out = capsys.readouterr().out
    assert "encoder 1.1" in out and "heads removed" not in out and page.read_text().count("<svg") == 1
    assert main(["prune", run_dir, "--remove", "3", "--importance", "gradient", "--json", "--quiet"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["heads"] == 8 and sum(len(step["gone"]) for step in data["steps"]) == 3
    assert data["unit"] == "nats per word" and math.isfinite(data["steps"][-1]["loss"])
    words = [record.words for record in run.config.datasets["valid"].records()]
    assert data["tokens"] == sum(
        2 + sum(len(run.vocabulary.tokenizer.encode(word)) for word in arguments) for arguments in words
    )
    assert (
        main(["prune", run_dir, "--remove", "1", "--plot", str(tmp_path / "y.svg"), "--output-dir", str(tmp_path / "small")])
        == 0
    )
    err = capsys.readouterr().err
    assert "7 of 8 heads" in err and (tmp_path / "y.svg").exists() and (tmp_path / "y-2.svg").exists()


def test_run_file_of_the_pruned_run_is_complete(runs: Runs, tmp_path: Path) -> None:
    """The written run file resolves to itself."""
    run = runs.load("lm-alibi")
    model, layers = network(run), attention_layers(run)
    assert model is not None
    actual = prune(model, layers, parts_of(run, tmp_path / "data"), num_removed=5, heads_per_round=5)
    folder = write_pruned_run(run, tmp_path / "small", actual, MEASURED)
    settings = resolve(folder.read_resolved(), base=folder.path)
    stay = remaining_heads(layers, set(actual.removed))
    assert settings.model.num_heads == [len(heads_kept) for heads_kept in stay] and settings.model.head_dim == 4
    slopes = [2.0 ** (-8 / 4 * (head + 1)) for head in range(4)]
    assert settings.model.alibi_slopes == [[pytest.approx(slopes[head]) for head in heads_kept] for heads_kept in stay]
    assert settings.train.init_from == str(tmp_path / "small")
