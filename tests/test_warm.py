"""Weights of another run are copied where they compute the same function here, and refused where they would not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from weft.errors import ConfigError
from weft.models.encoder import EncoderInput
from weft.runs.resolve import resolve
from weft.training.init_weights import BuiltRun, InitRun, load_initial_weights

WORDS, RUN = 9, Path("runs/there")
DATA: dict[str, dict[str, Any]] = {
    "lm": {"train": "x.txt", "context_length": 16},
    "masked-lm": {"train": "x.txt", "read_as": "windows", "context_length": 16},
    "seq2seq": {"train": "x.tsv", "max_length": 16},
    "classification": {"train": "x.tsv", "max_length": 16},
    "tagging": {"train": "x.conll", "max_length": 16},
    "qa": {"train": "x.json", "max_length": 16, "stride": 4},
}


def tokens(name: str = "a", labels: tuple[str, ...] = ("no", "yes")) -> Any:
    """What all tasks ask of a tokenizer."""
    found = SimpleNamespace(size=WORDS, hash=name * 64)
    found.tokenizer = found.letters = found.source = found.target = found
    found.labels = SimpleNamespace(size=len(labels), names=labels)
    return found


def made(task: str, kind: str, tokenizer: Any = None, *, data: dict[str, Any] | None = None, **options: Any) -> BuiltRun:
    values = {
        "task": task,
        "data": {**DATA[task], **(data or {})},
        "model": {"arch": kind, "hidden_size": 8, "num_layers": 2, **options},
    }
    return BuiltRun(resolve(values, base=Path("/nowhere")), tokenizer or tokens())


def network(one: BuiltRun, seed: int = 0) -> nn.Module:
    """A network whose weights all differ from those that it would start with."""
    torch.manual_seed(seed)
    model: nn.Module = one.config.preset.estimator.shape.build(one.config, one.tokenizer)()  # type: ignore[attr-defined]
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    return model.eval()


def origin(there: BuiltRun, model: nn.Module) -> InitRun:
    return InitRun(RUN, there, model.state_dict())


def started(there: BuiltRun, here: BuiltRun, *, loose: bool = False) -> tuple[Any, Any, str]:
    """The network there, the one here that starts from it, and what is said."""
    old, new = network(there), network(here, seed=1)
    return old, new, load_initial_weights(new, here, origin(there, old), loose=loose)


def refusal(there: BuiltRun, here: BuiltRun) -> str:
    with pytest.raises(ConfigError) as caught:
        started(there, here)
    return str(caught.value)


def text(length: int = 6) -> EncoderInput:
    ids = torch.randint(3, WORDS, (2, length), generator=torch.Generator().manual_seed(0))
    return EncoderInput(ids, torch.arange(length) < torch.tensor([[length], [length - 2]]))


BERT: dict[str, Any] = {"num_heads": 2, "dropout": 0.0}


# ---- what differs in silence: the same names and shapes, another function

SILENT = [
    ({"heads": 4}, "model.head_dim: 4 there, 2 here; model.num_heads: 2 there, 4 here"),
    ({"positions": "sinusoidal"}, "model.position_encoding: learned there, sinusoidal here"),
    ({"positions": "none"}, "model.position_encoding: learned there, none here"),
    ({"positions": "rotary"}, "model.position_encoding: learned there, rotary here"),
    ({"activation": "relu"}, "model.activation: gelu there, relu here"),
    ({"activation": "gelu-tanh"}, "model.activation: gelu there, gelu-tanh here"),
    ({"connection": "residual"}, "model.skip_connection: post-norm there, residual here"),
    ({"norm": "rms"}, "model.norm: layer there, rms here; model.norm_eps: 1e-05 there, none here"),
    ({"norm_eps": 1e-3}, "model.norm_eps: 1e-05 there, 0.001 here"),
    ({"qk_norm": True}, "model.qk_norm: false there, true here"),
    ({"embedding_norm": False}, "model.embedding_norm: true there, false here"),
    ({"ffn_dim": "none"}, "model.activation: gelu there, none here; model.ffn_dim: some there, none here"),
]


@pytest.mark.parametrize(("options", "named"), SILENT, ids=lambda value: "-".join(value) if isinstance(value, dict) else "")
def test_an_option_that_changes_the_function_is_refused_by_name(options, named):
    there = made("masked-lm", "bert", **BERT)
    assert refusal(there, made("masked-lm", "bert", **{**BERT, **options})) == (
        f"train.init_from: the weights of {RUN} would compute something else here ({named}); "
        "use its values, or set train.init_loose to leave such weights"
    )


OTHERS = [
    (made("lm", "gru"), made("lm", "gru", layer_type="gru-reset-before"), None),
    (made("lm", "gpt", num_heads=2), made("lm", "gpt", num_heads=2, logit_softcap="none"), "model.logit_softcap: 15.0 there, none here"),
    (made("lm", "lstm"), made("lm", "lstm", tie_embeddings=True), "model.tie_embeddings: false there, true here"),
    (made("lm", "lstm"), made("lm", "lstm", tokens("b")), "tokenizer: aaaaaaaa there, bbbbbbbb here"),
    (made("lm", "lstm"), made("lm", "lstm", skip_connection="residual"), "model.skip_connection: plain there, residual here"),
    (made("lm", "transformer"), made("classify", "transformer", position_encoding="learned", bidirectional=True),
     "model.bidirectional: false there, true here"),
    (made("classify", "lstm", pooling="max"), made("classify", "lstm", pooling="mean"), "model.pooling: max there, mean here"),
    (made("classify", "lstm"), made("classify", "lstm", tokens(labels=("yes", "no"))),
     "labels: ['no', 'yes'] there, ['yes', 'no'] here"),
    (made("translate", "transformer"), made("translate", "transformer", attention="none"),
     "model.attention: scaled-dot there, none here"),
    (made("translate", "lstm"), made("translate", "lstm", attention="additive"),
     "model.attention: multiplicative there, additive here"),
    (made("translate", "lstm", attention="dot"), made("translate", "lstm", attention="scaled-dot"),
     "model.attention: dot there, scaled-dot here"),
    (made("translate", "sutskever"), made("translate", "sutskever", encoder={"reverse": False}),
     "model.encoder.reverse_source: true there, false here"),
    (made("translate", "lstm"), made("translate", "lstm", share_embeddings=True), "model.share_embeddings: false there, true here"),
    (made("translate", "transformer"), made("translate", "transformer", decoder={"num_cross_heads": 2, "num_heads": 1}),
     "model.decoder.num_cross_heads: 1 there, 2 here"),
    (made("tag", "lstm"), made("tag", "lstm", char_encoder={"pooling": "mean"}), "model.char_encoder.pooling: max there, mean here"),
    (made("translate", "transformer"), made("classify", "transformer", num_heads=1, position_encoding="sinusoidal", activation="gelu"),
     "model.activation: relu there, gelu here"),
]  # fmt: skip


@pytest.mark.parametrize(("there", "here", "named"), OTHERS[1:])
def test_other_kinds_and_tasks_are_compared_too(there, here, named):
    assert named in refusal(there, here)


def test_the_two_forms_of_a_gru_have_other_weights():
    """Their names differ, so only the embedding and the head are copied, and all else is said to be new."""
    there, here, _ = OTHERS[0]
    _, _, said = started(there, here)
    assert "3 tensors copied" in said and "mixer.read" in said


def test_an_option_nobody_has_listed_matters():
    """A table that grows an option is compared by it from that day on."""
    there = made("masked-lm", "bert", **BERT)
    known = {name: getattr(there.config.model, name) for name in type(there.config.model).model_fields}
    grown = type("Grown", (type(there.config.model),), {"__annotations__": {"twist": int}, "twist": 0})
    old, new = (BuiltRun(replace(there.config, model=grown(**known, twist=value)), tokens()) for value in (1, 2))
    model = network(there)
    with pytest.raises(ConfigError, match=r"model\.twist: 1 there, 2 here"):
        load_initial_weights(network(there), new, origin(old, model))


# ---- what must go on working


def test_training_options_and_a_new_head_are_no_difference():
    there = made("masked-lm", "bert", **BERT)
    here = made("masked-lm", "bert", num_heads=[2, 2], dropout=0.4, attention_dropout=0.2, mask_prob=0.3, masking="span", norm_eps=1e-5,
                head_dim=4, word_dropout=0.1, embedding_dropout=0.3)  # fmt: skip
    old, new, said = started(there, here)
    assert said.endswith("new here: none, left there: none")
    assert all(torch.equal(weight, old.state_dict()[name]) for name, weight in new.state_dict().items())


@pytest.mark.parametrize("task", ["classification", "tagging", "qa"])
def test_a_bert_starts_every_task_of_an_encoder(task):
    there, here = made("masked-lm", "bert", **BERT), made(task, "bert", **BERT)
    old, new, said = started(there, here)
    assert "left there: " in said and "head" in said.split("new here: ")[1]
    stacks = [{name: weight for name, weight in one.state_dict().items() if ".stack." in name} for one in (old, new)]
    assert stacks[0].keys() == stacks[1].keys()
    assert all(torch.equal(weight, stacks[0][name]) for name, weight in stacks[1].items())
    wanted = old(text())[text().token_mask]
    if task == "classification":
        torch.testing.assert_close(new.encoder(text())[0][text().token_mask], wanted)


def test_fewer_layers_start_from_the_lower_ones_and_more_are_new():
    there = made("masked-lm", "bert", **BERT)
    _, _, said = started(there, made("masked-lm", "bert", **{**BERT, "layers": 1}))
    assert "left there: " in said and "encoder.stack.layers.2" in said
    _, _, said = started(there, made("masked-lm", "bert", **{**BERT, "layers": 3}))
    assert "new here: " in said and "encoder.stack.layers.4" in said


def test_fewer_learned_positions_are_the_first_ones_and_more_are_refused():
    there = made("masked-lm", "bert", **BERT)
    old, new, _ = started(there, made("classify", "bert", data={"longest": 12}, **BERT))
    torch.testing.assert_close(new.encoder(text())[0][text().token_mask], old(text())[text().token_mask])
    said = refusal(there, made("classify", "bert", data={"longest": 20}, **BERT))
    assert said.startswith("train.init_from: encoder.stack.positions.table.weight is 20 x 8 here, but 16 x 8 in runs/there; ")


def test_a_word_vector_is_no_matter_of_the_stack_above_it():
    old, new, said = started(made("lm", "lstm"), made("classify", "gru"))
    assert said.startswith("started from runs/there: 1 tensors copied, new here: ")
    assert torch.equal(new.encoder.embedder.embedding.weight[:-1], old.embedding.weight)
    torch.testing.assert_close(new.encoder.embedder.embedding.weight[-1], old.embedding.weight.mean(0))


def test_loose_leaves_the_parts_that_differ():
    there = made("classify", "lstm", bidirectional=False)
    old, new, said = started(there, made("classify", "lstm", tokens(labels=("yes", "no")), bidirectional=False), loose=True)
    assert "new here: 3 (head.temperature, head.scores.weight, head.scores.bias)" in said
    assert torch.equal(new.encoder.embedder.embedding.weight, old.encoder.embedder.embedding.weight)
    _, new, said = started(there, made("classify", "lstm", bidirectional=False, skip_connection="residual"), loose=True)
    assert "encoder.stack.layers.0.mixer.cell.weight_ih_l0" in said.split("left there")[0]


def test_how_far_attention_sees_is_told():
    options = {"position_encoding": "rotary", "num_heads": 2}
    _, _, said = started(made("lm", "transformer", **options), made("lm", "transformer", data={"window": 8}, **options))
    assert said.endswith("left there: none; attention sees 8 tokens here, 16 there")


@pytest.mark.parametrize("options", [{"kind": "bert", **BERT}, {"kind": "lstm"}])
@pytest.mark.parametrize("tied", [True, False])
def test_a_text_alone_is_read_as_the_first_of_two_was(options, tied):
    """What an encoder of two texts adds to each token of the first, one of single texts has in its embedding."""
    rest = {name: value for name, value in options.items() if name != "kind"}
    there = made("masked-lm", options["kind"], tie_embeddings=tied, segment_embeddings=True, **rest)
    pairs, alone, said = started(there, made("masked-lm", options["kind"], tie_embeddings=tied, **rest))
    assert "segments" not in said
    one = {"pooling": "mean", "num_layers": 2, **({} if options["kind"] == "bert" else {"dropout": 0.0})}
    _, labels, said = started(there, made("classify", options["kind"], **{**rest, **one}))
    assert "new here: 3 (head." in said and "segments" not in said
    with torch.no_grad():
        wanted = pairs(text())[text().token_mask]
        torch.testing.assert_close(labels.encoder(text())[0][text().token_mask], wanted)
        torch.testing.assert_close(alone(text())[text().token_mask], wanted)
        torch.testing.assert_close(alone.log_probs(wanted), pairs.log_probs(wanted))


# ---- a language model starts a decoder, an encoder starts an encoder


def silenced(model: Any) -> Any:
    """The same encoder-decoder with a decoder that hears nothing of its source."""
    named = dict(model.decoder.named_parameters())
    with torch.no_grad():
        for name, weight in named.items():
            adds = name.endswith("to_out.bias") and name.replace("to_out.", "to_kv.") in named
            if ".to_kv." in name or adds or ".start." in name:  # attention finds zeros, and every state starts at zero
                weight.zero_()
    return model


def scored(model: Any, ids: Tensor) -> Tensor:
    keep = torch.ones(2, 3, dtype=torch.bool)
    found: Tensor = model.score(ids, state=model.encode(torch.full((2, 3), 4), keep))
    return found


DECODERS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("transformer", "transformer", {"heads": 2}, {"position_encoding": "learned", "activation": "gelu"}),
    ("gpt", "transformer", {"heads": 2}, {"position_encoding": "rotary", "norm": "rmsnorm", "qk_norm": True, "activation": "squared-relu",
                                          "logit_softcap": 15.0}),
    ("lstm", "lstm", {}, {"attention": "none", "bridge": "project"}),
    ("gru", "gru", {"ffn_dim": 12, "skip_connection": "residual", "norm": "layernorm"},
     {"ffn_dim": 12, "skip_connection": "residual", "norm": "layernorm", "attention": "none", "bridge": "project"}),
    ("rnn", "rnn", {}, {"attention": "none", "bridge": "project"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "other", "options", "theirs"), DECODERS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_language_model_starts_a_decoder_that_says_the_same_without_a_source(kind, other, options, theirs):
    side = {"decoder": {"heads": 2}} if other == "transformer" else {}
    old, new, said = started(made("lm", kind, **options), made("translate", other, **theirs, **side))
    ids = text().tokens
    with torch.no_grad():
        torch.testing.assert_close(scored(silenced(new), ids), old.score(ids))
    assert "left there: none" in said and "new here: " in said


def test_attention_around_a_recurrent_decoder_is_new():
    _, _, said = started(made("lm", "lstm"), made("translate", "lstm"))
    assert "decoder.stack.layers.1.mixer.look.to_k.weight" in said or "new here: " in said
    assert said.startswith("started from runs/there: 11 tensors copied")


def test_a_decoder_that_differs_from_the_language_model_is_refused_by_name():
    there = made("lm", "transformer", num_heads=2)
    assert refusal(there, made("translate", "transformer", decoder={"heads": 4})) == (
        f"train.init_from: the weights of {RUN} would compute something else here (model.decoder.activation: gelu there, "
        "relu here; model.decoder.head_dim: 4 there, 2 here; model.decoder.num_heads: 2 there, 4 here; model.decoder.position_encoding: "
        "learned there, sinusoidal here); use its values, or set train.init_loose to leave such weights"
    )
    options = {"position_encoding": "learned", "activation": "gelu", "decoder": {"num_heads": 2}}
    assert "model.tie_embeddings: " in refusal(there, made("translate", "transformer", tie_embeddings=True, **options))
    assert "model.logit_softcap: 15.0 there, none here" in refusal(
        made("lm", "transformer", num_heads=2, logit_softcap=15.0), made("translate", "transformer", **options)
    )
    assert "is 32 x 16 here, but 32 x 8" in refusal(made("lm", "lstm"), made("translate", "lstm", input_feeding=True))


ENCODERS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("transformer", {"heads": 2}, {"position_encoding": "rotary", "norm": "rmsnorm", "qk_norm": True, "activation": "gelu", "num_heads": 2}),
    ("bert", BERT, {"position_encoding": "learned", "skip_connection": "post-norm", "activation": "gelu", "num_heads": 2,
                    "embedding_norm": True}),
    ("bert", {**BERT, "segments": True}, {"position_encoding": "learned", "skip_connection": "post-norm", "activation": "gelu", "num_heads": 2,
                                          "embedding_norm": True}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "encoder"), ENCODERS)
def test_a_masked_language_model_starts_the_encoder_of_pairs(kind, options, encoder):
    there, here = made("masked-lm", kind, **options), made("translate", "transformer", encoder=encoder)
    old, new, said = started(there, here)
    assert "decoder." in said
    with torch.no_grad():
        read = text()
        torch.testing.assert_close(
            new.encoder(read.tokens, read.token_mask).values[read.token_mask], old(read)[read.token_mask]
        )


def test_the_encoder_of_pairs_starts_a_classifier():
    there = made("translate", "transformer", num_heads=2)
    here = made("classify", "transformer", num_heads=2, position_encoding="sinusoidal", activation="relu")
    old, new, _ = started(there, here)
    with torch.no_grad():
        read = text()
        torch.testing.assert_close(
            new.encoder(read)[0][read.token_mask], old.encoder(read.tokens, read.token_mask).values[read.token_mask]
        )
