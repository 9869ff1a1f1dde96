"""Starting from another run's weights: what is copied, what is told, what is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import tomli_w
import torch
from command_line import refused
from pair_runs import PairRuns, pair_file
from small_runs import Silent, make_text, run_file, sums, train_here

from weft.cli.main import main
from weft.config import override
from weft.errors import ConfigError
from weft.models.classifier import ClassifierTable, classifier
from weft.models.encoder import Text
from weft.models.masked import MaskedTable, masked_model
from weft.run import ensemble, load_translator
from weft.tensors import read_tensors, write_tensors
from weft.train.job import borrow_tokenizer
from weft.train.loop import Stopped
from weft.train.warm import start_from

pytestmark = pytest.mark.usefixtures("quiet_machine")
# a rate at which nothing moves: what a run ends with is what it started from
STILL = ("train.lr=1e-30", "train.steps=1", "train.average=none", "train.weight_decay=0.0")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return PairRuns(tmp_path_factory.mktemp("runs"))


def from_run(runs: PairRuns, run: Path, *settings: str, model: str = "lstm") -> dict:
    return borrow_tokenizer(override(pair_file(runs.pairs, model), [f"train.init_from={run}", *settings]), run)


def refusal(runs: PairRuns, out: Path, values: dict) -> str:
    with pytest.raises(ConfigError) as caught:
        train_here(values, out)
    return str(caught.value)


def test_a_run_starts_where_another_ended(runs, tmp_path):
    first = runs.folder("lstm")
    watcher = Silent()
    train_here(from_run(runs, first, *STILL), tmp_path / "run", watcher)
    before, after = (read_tensors(folder / "model.safetensors")[0] for folder in (first, tmp_path / "run"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert f"started from {first}: {len(before)} tensors copied, new here: none, left there: none" in watcher.notes


def test_it_says_what_is_new_and_what_was_left(runs, tmp_path):
    first, watcher = runs.folder("lstm"), Silent()
    train_here(from_run(runs, first, *STILL, "model.attention=none"), tmp_path / "run", watcher)
    said = next(note for note in watcher.notes if note.startswith("started from"))
    assert "new here: none, left there: 3 (" in said and "look" in said


def test_a_run_that_was_stopped_goes_on_from_its_own_weights(runs, tmp_path):
    values = from_run(runs, runs.folder("lstm"), "train.steps=6", "train.validations=1")
    train_here(values, tmp_path / "whole")
    with pytest.raises(Stopped):
        train_here(values, tmp_path / "cut", Silent(stop_at=3))
    watcher = Silent()
    train_here(values, tmp_path / "cut", watcher)
    assert sums(tmp_path / "cut") == sums(tmp_path / "whole")
    assert not any(note.startswith("started from") for note in watcher.notes)


def test_the_command_line_takes_weights_and_tokenizers(runs, tmp_path, capsys):
    first = runs.folder("lstm")
    values = pair_file(runs.pairs, "lstm", *STILL)
    (tmp_path / "run.toml").write_text(tomli_w.dumps({**values, "tokenizer": {"kind": "byte"}}))
    assert main(["train", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run"), "--init-from", str(first)]) == 0
    assert f"started from {first}: " in capsys.readouterr().err
    old, new = load_translator(first, device="cpu"), load_translator(tmp_path / "run", device="cpu")
    assert new.tokenizer.hash == old.tokenizer.hash
    assert new.predict(["abc"])[0][0].text == old.predict(["abc"])[0][0].text


def test_another_shape_is_refused(runs, tmp_path):
    first = runs.folder("lstm")
    found = refusal(runs, tmp_path / "run", from_run(runs, first, "model.width=32"))
    assert found == (
        f"train.init_from: encoder.front.embedding.weight is 9 x 32 here, but 9 x 24 in {first}; "
        f"use its tokenizer (--tokenizer-from {first}) and its sizes, or set train.init_loose to leave such weights"
    )


def test_another_kind_is_refused(runs, tmp_path):
    text = make_text(tmp_path / "text.txt")
    train_here(run_file(text, model="lstm"), tmp_path / "lm")
    values = override(pair_file(runs.pairs), [f"train.init_from={tmp_path / 'lm'}"])
    assert refusal(runs, tmp_path / "run", values) == (
        f"train.init_from: {tmp_path / 'lm'} has no weights by the names of this model; is it of another kind?"
    )


def test_a_folder_without_weights_is_refused(runs, tmp_path):
    values = override(pair_file(runs.pairs), [f"train.init_from={tmp_path}"])
    assert refusal(runs, tmp_path / "run", values) == (
        f"train.init_from: {tmp_path} has no model.safetensors; name the folder of a trained run"
    )


def written(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    path.mkdir()
    write_tensors(path / "model.safetensors", tensors)
    return path


class Encoding(torch.nn.Module):
    """Names of an encoder under a head: an embedding of 5 words and the mask, a layer, an output."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.ModuleDict(
            {
                "front": torch.nn.ModuleDict({"embedding": torch.nn.Embedding(6, 2)}),
                "stack": torch.nn.ModuleDict({"layers": torch.nn.ModuleList([torch.nn.Linear(2, 2, bias=False)])}),
            }
        )
        self.head = torch.nn.Linear(2, 3, bias=False)


def test_an_encoder_starts_from_a_language_model_and_its_mask_from_the_mean(tmp_path):
    words, layer = torch.arange(10.0).view(5, 2), torch.eye(2)
    tensors = {"embedding.weight": words, "stack.layers.0.weight": layer, "head.weight": torch.ones(5, 2)}
    model, run = Encoding(), written(tmp_path / "lm", tensors)
    said = start_from(model, run)
    found = model.state_dict()
    assert torch.equal(found["encoder.front.embedding.weight"], torch.cat([words, torch.tensor([[4.0, 5.0]])]))
    assert torch.equal(found["encoder.stack.layers.0.weight"], layer)
    assert said == (f"started from {run}: 2 tensors copied, new here: 1 (head.weight), left there: 1 (encoder.head.weight)")


ENCODERS = [
    {
        "mixer": "attention",
        "heads": 2,
        "positions": "learned",
        "connection": "post-norm",
        "norm": "layer",
        "embedding_norm": True,
    },
    {"mixer": "lstm"},
]


@pytest.mark.parametrize("options", ENCODERS)
@pytest.mark.parametrize("tied", [True, False])
def test_a_text_alone_is_read_as_the_first_of_two_was(tmp_path, options, tied):
    """What an encoder of two texts adds to each token of the first, one of single texts has in its embedding."""
    sizes = {"width": 8, "layers": 1, **options}
    pairs = masked_model(MaskedTable(**sizes, tied=tied, segments=True).filled(), words=9, longest=6)
    pairs.encoder.front.segments.weight.data.normal_()
    run = written(tmp_path / "pairs", pairs.state_dict())
    tokens = torch.randint(10, (3, 6))
    text = Text(tokens, torch.arange(6) < torch.tensor([[6], [4], [2]]))
    table = ClassifierTable(**sizes).filled()
    labels = classifier(table, words=10, labels=2, longest=6, segments=False, several=False)
    said = start_from(labels, run)
    assert "new here: 3 (head." in said and "segments" not in said
    alone = masked_model(MaskedTable(**sizes, tied=tied).filled(), words=9, longest=6)
    assert said != start_from(alone, run)
    for model in (pairs, labels, alone):
        model.eval()
    with torch.no_grad():
        wanted = pairs(text)[text.keep]
        assert torch.allclose(labels.encoder(text)[0][text.keep], wanted, atol=1e-6)
        assert torch.allclose(alone(text)[text.keep], wanted, atol=1e-6)
        assert torch.allclose(alone.log_probs(wanted), pairs.log_probs(wanted), atol=1e-5)
    two = classifier(table, words=10, labels=2, longest=6, segments=True, several=False)
    start_from(two, run)
    for part in ("embedding", "segments"):
        assert torch.equal(getattr(two.encoder.front, part).weight, getattr(pairs.encoder.front, part).weight)


def test_weights_of_another_shape_are_left_if_that_is_asked_for(tmp_path):
    tensors = {"encoder.stack.layers.0.weight": torch.eye(2), "head.weight": torch.ones(4, 2)}
    model, run = Encoding(), written(tmp_path / "first", tensors)
    with pytest.raises(ConfigError, match="head.weight is 3 x 2 here, but 4 x 2 in".replace(".", r"\.")):
        start_from(model, run)
    said = start_from(model, run, loose=True)
    assert "1 tensors copied" in said and "left there: 1 (head.weight)" in said
    assert torch.equal(model.state_dict()["encoder.stack.layers.0.weight"], torch.eye(2))


def test_counting_starts_from_nothing(tmp_path):
    values = override(run_file(make_text(tmp_path / "text.txt"), model="lstm"), ["train.init_from=x"])
    with pytest.raises(ConfigError) as caught:
        train_here({**values, "model": {"kind": "ngram"}, "train": {"init_from": "x"}}, tmp_path / "run")
    assert str(caught.value) == "train.init_from: an n-gram model is counted anew and starts from no weights; drop it"


# ---- the commands that tell a translating run from a language model


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    place = tmp_path_factory.mktemp("lm")
    train_here(run_file(make_text(place / "text.txt"), model="lstm"), place / "run")
    return place / "run"


def test_each_kind_of_run_refuses_the_others_options(runs, lm, capsys):
    pairs = str(runs.folder("lstm"))
    assert refused(capsys, "evaluate", pairs, "--context", "carry") == (
        2,
        f"--context: is for language models, and {pairs} is a run of task 'translate'; drop it",
    )
    assert refused(capsys, "evaluate", str(lm), "--beam", "3") == (
        2,
        f"--beam: is for runs that write outputs, and {lm} is a language model; drop it",
    )
    assert refused(capsys, "evaluate", pairs, "--lm-weight", "1") == (2, "--lm-weight: weighs --lm RUN, which is not given")
    assert refused(capsys, "generate", pairs, "x") == (
        2,
        f"{pairs}: is a run of task 'translate', which writes outputs for sources; use weft predict",
    )


def test_pairs_are_scored_by_lines_with_one_tab(runs, tmp_path, capsys):
    run, data = runs.folder("lstm"), tmp_path / "pairs.tsv"
    data.write_text("abc\tA BB C\nb\tB\n")
    assert main(["score", str(run), "--data", str(data)]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    model = load_translator(run, device="cpu")
    assert [row[2:] for row in rows] == [["abc", "A BB C"], ["b", "B"]]
    assert [float(row[0]) for row in rows] == pytest.approx(
        [one.log_prob for one in model.score([("abc", "A BB C"), ("b", "B")])], abs=1e-4
    )
    data.write_text("abc\tA BB C\nb\n")
    assert main(["score", str(run), "--data", str(data)]) == 3
    said = capsys.readouterr()
    assert said.err == "weft: line 2: has 0 tabs; a pair is a source, one tab, and a target\n"
    assert said.out.endswith("\tabc\tA BB C\n\n")


def test_evaluate_prints_every_score_and_signature(runs, capsys):
    assert main(["evaluate", str(runs.folder("lstm")), "--beam", "2"]) == 0
    said = capsys.readouterr().out
    for name in ("exact match", "edit rate", "bleu", "chrf", "nats/token"):
        assert f"\n{name}" in said
    assert "search:beam:2/alpha:1" in said and "tok:13a" in said


def test_a_signature_tells_who_searched_together(runs):
    lstm, luong, lm = (runs.folder(name) for name in ("lstm", "luong", "lm-ngram"))
    pair = ensemble([lstm, luong], device="cpu").evaluate()
    assert "|search:beam:5/alpha:1/runs:2|" in pair[0].signature and pair[-1].name == "perplexity"
    fused = ensemble([lstm], lm=lm, lm_weight=0.25, device="cpu").evaluate()
    which = hashlib.sha256((lm / "model.safetensors").read_bytes()).hexdigest()[:8]
    assert f"|search:beam:5/alpha:1/lm:{which}*0.25|" in fused[0].signature
    uneven = ensemble([lstm, luong], weights=[0.75, 0.25], device="cpu").evaluate(beam=1, least=2)
    assert "|search:greedy/least:2/runs:2/weights:0.75,0.25|" in uneven[0].signature
    # beside a language model there is no probability of the targets to speak of
    assert [score.name for score in fused] == ["exact_match", "edit_rate", "bleu", "bleu_lc", "chrf"]
