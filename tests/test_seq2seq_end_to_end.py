"""Encoder-decoders end to end: beam search against a plain loop, and consistency between commands."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
import torch
from command_line import set_stdin
from seq2seq_runs import Seq2SeqRuns
from torch import Tensor
from toy_seq2seq import ATTENTION, BOS, EOS, large_weight_model, seq2seq_model, sources

from weft.cli.main import main
from weft.decode.beam import BeamOptions, beam_search
from weft.decode.ensemble import Ensemble, LinearEnsemble
from weft.decode.incremental import IncrementalModel

# ---- a narrow beam

LIMIT = 7
DECODERS: dict[str, dict[str, Any]] = {
    "bahdanau": {"layer_type": "gru-reset-before", "attention": "additive", "attention_placement": "before"},
    "luong": {"layer_type": "lstm", "attention": "multiplicative", "input_feeding": True},
    "transformer": {**ATTENTION, "position_encoding": "rotary"},
    "bottleneck": {"layer_type": "rnn", "bridge": "copy"},
    "copying": {"layer_type": "gru", "attention": "dot", "copy_mechanism": True},
}


class Plain(NamedTuple):
    """A textbook hypothesis."""

    log_prob: float
    tokens: list[int]

    def score(self, alpha: float) -> float:
        return self.log_prob / len(self.tokens) ** alpha


def plain_beam(model: Any, source: Tensor, options: BeamOptions) -> list[Plain]:
    """Beam search over lists: each prefix is read from its start, and no row leaves early. EOS counts among the `width` best
    candidates of a step, and the `width` best others continue."""
    alive, ended = [Plain(0.0, [])], []
    for count in range(options.max_new_tokens):
        prompts = torch.tensor([[BOS, *item.tokens] for item in alive])
        log_probs, _ = model.start(prompts, None, encoded(model, source.expand(len(alive), -1)))
        candidates = [
            Plain(item.log_prob + value, [*item.tokens, word])
            for item, row in zip(alive, log_probs.tolist(), strict=True)
            for word, value in enumerate(row)
            if word != EOS or count >= options.min_new_tokens
        ]
        best = sorted(candidates, key=lambda item: -item.log_prob)
        ended += [item for item in best[: options.beam_size] if item.tokens[-1] == EOS]
        alive = [item for item in best if item.tokens[-1] != EOS][: options.beam_size]
    return sorted(ended + alive, key=lambda item: -item.score(options.length_penalty))[: options.n_best]


def encoded(model: Any, rows: Tensor) -> Any:
    parts = model.models if isinstance(model, Ensemble) else [model]
    states = tuple(part.encode(rows, torch.ones_like(rows, dtype=torch.bool)) for part in parts)
    return states if isinstance(model, Ensemble) else states[0]


def decoder(name: str) -> Any:
    model = large_weight_model(**DECODERS[name])
    with torch.no_grad():  # some targets end early, and outputs depend on the source
        model.decoder.embedder.embedding.weight.mul_(2)
        model.head.head.weight.mul_(1.5)
        model.head.head.bias.zero_()
    return model


def searched(model: Any, options: BeamOptions) -> None:
    rows, _ = sources(6, 6, 6)
    actual = beam_search(model, torch.full((3, 1), BOS), options=options, state=encoded(model, rows))
    for source, best in zip(rows, actual, strict=True):
        expected = plain_beam(model, source, options)
        assert [item.tokens for item in best] == [item.tokens for item in expected]
        assert [item.log_prob for item in best] == pytest.approx([item.log_prob for item in expected], abs=1e-4)
        assert [item.score for item in best] == pytest.approx(
            [item.score(options.length_penalty) for item in expected], abs=1e-4
        )


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize(
    ("beam_size", "n_best", "length_penalty", "min_new_tokens"), [(2, 2, 0.0, 0), (3, 2, 1.0, 0), (5, 5, 0.7, 3)]
)
@torch.no_grad()
def test_beam_search_equals_a_plain_loop(name, beam_size, n_best, length_penalty, min_new_tokens):
    searched(
        decoder(name),
        BeamOptions(
            beam_size=beam_size,
            max_new_tokens=LIMIT,
            eos_id=EOS,
            length_penalty=length_penalty,
            n_best=n_best,
            min_new_tokens=min_new_tokens,
        ),
    )


@torch.no_grad()
def test_beam_search_of_an_ensemble_equals_a_plain_loop():
    ensemble = Ensemble([decoder("luong"), decoder("transformer")], LinearEnsemble([0.6, 0.4]))
    searched(ensemble, BeamOptions(beam_size=3, max_new_tokens=LIMIT, eos_id=EOS, length_penalty=1.0, n_best=3))


@torch.no_grad()
def test_the_score_of_a_long_output_is_the_sum_of_its_log_probabilities():
    model, (source, keep) = seq2seq_model(layer_type="gru", attention="dot", vocab_size=200), sources(9, vocab_size=200)
    options = BeamOptions(beam_size=3, max_new_tokens=500, eos_id=EOS, n_best=3, min_new_tokens=499)
    for item in beam_search(model, torch.tensor([[BOS]]), options=options, state=model.encode(source, keep))[0]:
        assert len(item.tokens) == 500 and item.score == pytest.approx(item.log_prob, abs=1e-4)


# ---- models


def test_encoder_decoder_implements_the_step_contract():
    promised = {name for name in vars(IncrementalModel) if not name.startswith("_")}
    assert {name for name in promised if not hasattr(seq2seq_model(), name)} == set()


def test_highway_gates_of_a_transformer_start_closed():
    model = seq2seq_model(**{**ATTENTION, "skip_connection": "highway"})
    gates = [weight for name, weight in model.named_parameters() if name.endswith("connection.gate.bias")]
    assert gates and all((weight == -1).all() for weight in gates)


# ---- one command against another


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Seq2SeqRuns:
    return Seq2SeqRuns(tmp_path_factory.mktemp("pairs"))


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main([*words, "--device", "cpu"])
    actual = capsys.readouterr()
    return code, actual.out, actual.err


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_score_command_reproduces_the_scores_of_predict(runs, name, capsys, monkeypatch):
    folder = str(runs.run_dir(name))
    set_stdin(monkeypatch, b"abc\nfade\ncab\n")
    _, out, _ = said(capsys, "predict", folder, "--json", "--n-best", "3", "--length-penalty", "0")
    pairs = [(row["source"], prediction) for row in map(json.loads, out.splitlines()) for prediction in row["predictions"]]
    ended = [
        (source, prediction) for source, prediction in pairs if prediction["tokens"] < 32
    ]  # outputs cut by the limit have no </s>
    set_stdin(monkeypatch, "".join(f"{source}\t{prediction['text']}\n" for source, prediction in ended).encode())
    _, out, _ = said(capsys, "score", folder, "--json")
    again = [json.loads(line)["log_prob"] for line in out.splitlines()]
    assert ended and again == pytest.approx([prediction["score"] for _, prediction in ended], abs=1e-4)


def test_a_too_long_pair_is_reported_with_its_line(runs, capsys, monkeypatch):
    monkeypatch.setattr("weft.cli.commands.score.BATCH_LINES", 2)
    set_stdin(monkeypatch, b"a\tA\nb\tB\n" + b"ab" * 10 + b"\tA\n")
    code, _, error = said(capsys, "score", str(runs.run_dir("lstm")))
    assert (
        code == 3
        and error == "weft: warning: line 3: 21 tokens exceed the model's limit of 16; shorten it or set --truncate; skipped\n"
    )


@pytest.mark.parametrize("company", ["with", "lm", "with-and-lm"])
def test_score_command_supports_ensembles_and_shallow_fusion_like_predict(runs, company, capsys, monkeypatch):
    folder, words = str(runs.run_dir("lstm")), list[str]()
    if "with" in company:
        words += ["--ensemble", str(runs.run_dir("transformer"))]
    if "lm" in company:
        words += ["--lm", str(runs.run_dir("lm-ngram")), "--lm-weight", "0.4"]
    _, out, _ = said(capsys, "predict", folder, "abc", "--json", "--n-best", "3", *words)
    ended = [item for item in json.loads(out)["predictions"] if not item["truncated"]]
    set_stdin(monkeypatch, "".join(f"abc\t{item['text']}\n" for item in ended).encode())
    _, out, _ = said(capsys, "score", folder, "--json", *words)
    again = [json.loads(line)["log_prob"] for line in out.splitlines()]
    assert ended and again == pytest.approx([item["log_prob"] for item in ended], abs=1e-4)


def test_outputs_cut_by_max_new_tokens_are_marked_truncated(runs, capsys):
    folder = str(runs.run_dir("lstm"))
    for length, truncated in (("1", True), ("30", False)):
        _, out, _ = said(capsys, "predict", folder, "abc", "--json", "--min-new-tokens", "1", "--max-new-tokens", length)
        (prediction,) = json.loads(out)["predictions"]
        assert (prediction["truncated"], prediction["tokens"] == int(length)) == (truncated, truncated)


def test_a_too_long_source_in_evaluation_is_reported_with_its_line(runs, capsys, tmp_path):
    table = tmp_path / "long.tsv"
    table.write_text(f"source\ttarget\nab\tA BB\n{'ab' * 10}\tA\n")
    code, _, error = said(capsys, "evaluate", str(runs.run_dir("lstm")), "--data", str(table))
    assert code == 3 and f"{table}:3" in error


@pytest.mark.parametrize("command", ["evaluate", "score"])
def test_suggested_options_work(runs, command, capsys, tmp_path):
    table = tmp_path / "long.tsv"
    table.write_text(f"{'ab' * 10}\tA\n")
    words = (command, str(runs.run_dir("lstm")), "--data", str(table))
    _, _, error = said(capsys, *words)
    assert "--truncate" not in error or said(capsys, *words, "--truncate")[0] == 0


def test_lines_of_several_batches_are_sampled_independently(runs, capsys, monkeypatch):
    monkeypatch.setattr("weft.tasks.encoder_decoder.lines.OutputLines.batch_size", 2)
    set_stdin(monkeypatch, b"fade\n" * 3)
    _, out, _ = said(capsys, "predict", str(runs.run_dir("lstm")), "--num-samples", "5", "--seed", "1")
    drawn = [[line.split("\t")[2] for line in out.splitlines() if line.startswith(f"{number}\t")] for number in (1, 2, 3)]
    assert drawn[0] != drawn[1] and drawn[0] != drawn[2]


def test_samples_of_a_line_do_not_depend_on_batches_or_other_lines(runs, capsys, monkeypatch):
    def drawn(text: bytes) -> list[str]:
        set_stdin(monkeypatch, text)
        return said(capsys, "predict", str(runs.run_dir("lstm")), "--num-samples", "5", "--seed", "1")[1].splitlines()

    full = drawn(b"abc\nfade\n\ncab\n")
    other = drawn(b"cab\n\nfade\ncab\n")
    assert [line for line in other if line.startswith("4\t")] == [line for line in full if line.startswith("4\t")]
    monkeypatch.setattr("weft.tasks.encoder_decoder.lines.OutputLines.batch_size", 2)
    assert drawn(b"abc\nfade\n\ncab\n") == full
