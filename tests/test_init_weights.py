"""Weight initialization from another run: copied where the function is the same, rejected where it differs."""

from __future__ import annotations

import re
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
    "denoising": {"train": "x.txt", "max_length": 16},
    "classification": {"train": "x.tsv", "max_length": 16},
    "tagging": {"train": "x.conll", "max_length": 16},
    "qa": {"train": "x.json", "max_length": 16, "doc_stride": 4},
}


def tokens(name: str = "a", labels: tuple[str, ...] = ("no", "yes")) -> Any:
    """The parts of a tokenizer that all tasks use."""
    actual = SimpleNamespace(vocab_size=WORDS, hash=name * 64)
    actual.tokenizer = actual.char_tokenizer = actual.source = actual.target = actual
    actual.labels = SimpleNamespace(size=len(labels), names=labels)
    return actual


def made(task: str, arch: str, tokenizer: Any = None, *, data: dict[str, Any] | None = None, **options: Any) -> BuiltRun:
    values = {
        "task": task,
        "data": {**DATA[task], **(data or {})},
        "model": {"arch": arch, "hidden_size": 8, "num_layers": 2, **options},
    }
    return BuiltRun(resolve(values, base=Path("/nowhere")), tokenizer or tokens())


def network(built: BuiltRun, seed: int = 0) -> nn.Module:
    """A network whose weights all differ from their initial values."""
    torch.manual_seed(seed)
    model: nn.Module = built.config.preset.estimator.network_task.build(built.config, built.tokenizer)()  # type: ignore[attr-defined]
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    return model.eval()


def origin(old_run: BuiltRun, model: nn.Module) -> InitRun:
    return InitRun(RUN, old_run, model.state_dict())


def started(old_run: BuiltRun, new_run: BuiltRun, *, strict: bool = True) -> tuple[Any, Any, str]:
    """The old network, the new one initialized from it, and the message."""
    old, new = network(old_run), network(new_run, seed=1)
    return old, new, load_initial_weights(new, new_run, origin(old_run, old), strict=strict)


def error_message(old_run: BuiltRun, new_run: BuiltRun) -> str:
    with pytest.raises(ConfigError) as caught:
        started(old_run, new_run)
    return str(caught.value)


def text(length: int = 6) -> EncoderInput:
    ids = torch.randint(3, WORDS, (2, length), generator=torch.Generator().manual_seed(0))
    return EncoderInput(ids, torch.arange(length) < torch.tensor([[length], [length - 2]]))


BERT: dict[str, Any] = {"num_heads": 2, "dropout": 0.0}


# ---- what differs in silence: the same names and shapes, another function

SILENT = [
    ({"num_heads": 4}, "model.head_dim: 4 there, 2 here; model.num_heads: 2 there, 4 here"),
    ({"position_encoding": "sinusoidal"}, "model.position_encoding: learned there, sinusoidal here"),
    ({"position_encoding": "none"}, "model.position_encoding: learned there, none here"),
    ({"position_encoding": "rotary"}, "model.position_encoding: learned there, rotary here"),
    ({"activation": "relu"}, "model.activation: gelu there, relu here"),
    ({"activation": "gelu-tanh"}, "model.activation: gelu there, gelu-tanh here"),
    ({"norm_position": "pre"}, "model.norm_position: post there, pre here"),
    ({"norm": "rmsnorm"}, "model.norm: layernorm there, rmsnorm here; model.norm_eps: 1e-05 there, none here"),
    ({"norm_eps": 1e-3}, "model.norm_eps: 1e-05 there, 0.001 here"),
    ({"qk_norm": True}, "model.qk_norm: false there, true here"),
    ({"bias": False}, "model.bias: true there, false here"),
    ({"embedding_norm": False}, "model.embedding_norm: true there, false here"),
    ({"ffn_dim": 0}, "model.activation: gelu there, none here; model.ffn_dim: some there, 0 here"),
]


@pytest.mark.parametrize(("options", "option"), SILENT, ids=lambda value: "-".join(value) if isinstance(value, dict) else "")
def test_an_option_that_changes_the_function_is_rejected_by_name(options, option):
    old_run = made("masked-lm", "bert", **BERT)
    assert error_message(old_run, made("masked-lm", "bert", **{**BERT, **options})) == (
        f"train.init_from: the weights of {RUN} would compute another function here ({option}); "
        "use the same options, or set train.init_strict = false to skip these weights"
    )


OTHERS = [
    (made("lm", "gru"), made("lm", "gru", layer_type="gru-reset-before"), None),
    (made("lm", "gpt", num_heads=2), made("lm", "gpt", num_heads=2, logit_softcap=0), "model.logit_softcap: 15.0 there, 0.0 here"),
    (made("lm", "lstm"), made("lm", "lstm", tie_embeddings=True), "model.tie_embeddings: false there, true here"),
    (made("lm", "lstm"), made("lm", "lstm", tokens("b")), "tokenizer: aaaaaaaa there, bbbbbbbb here"),
    (made("lm", "lstm"), made("lm", "lstm", skip_connection="residual"), "model.skip_connection: none there, residual here"),
    (made("lm", "transformer"), made("classification", "transformer", position_encoding="learned", bidirectional=True),
     "model.bidirectional: false there, true here"),
    (made("classification", "lstm", pooling="max"), made("classification", "lstm", pooling="mean"), "model.pooling: max there, mean here"),
    (made("classification", "lstm"), made("classification", "lstm", tokens(labels=("yes", "no"))),
     "labels: ['no', 'yes'] there, ['yes', 'no'] here"),
    (made("seq2seq", "transformer"), made("seq2seq", "transformer", attention="none"),
     "model.attention: scaled-dot there, none here"),
    (made("seq2seq", "lstm"), made("seq2seq", "lstm", attention="additive"),
     "model.attention: multiplicative there, additive here"),
    (made("seq2seq", "lstm", attention="dot"), made("seq2seq", "lstm", attention="scaled-dot"),
     "model.attention: dot there, scaled-dot here"),
    (made("seq2seq", "sutskever"), made("seq2seq", "sutskever", encoder={"reverse_source": False}),
     "model.encoder.reverse_source: true there, false here"),
    (made("seq2seq", "lstm"), made("seq2seq", "lstm", head_bias=False), "model.head_bias: true there, false here"),
    (made("seq2seq", "lstm"), made("seq2seq", "lstm", share_embeddings=True), "model.share_embeddings: false there, true here"),
    (made("seq2seq", "transformer"), made("seq2seq", "transformer", decoder={"num_cross_heads": 2, "num_heads": 1}),
     "model.decoder.num_cross_heads: 1 there, 2 here"),
    (made("tagging", "lstm"), made("tagging", "lstm", char_encoder={"pooling": "mean"}), "model.char_encoder.pooling: max there, mean here"),
    (made("seq2seq", "transformer"), made("classification", "transformer", num_heads=1, position_encoding="sinusoidal", activation="gelu"),
     "model.activation: relu there, gelu here"),
]  # fmt: skip


@pytest.mark.parametrize(("old_run", "new_run", "option"), OTHERS[1:])
def test_architectures_and_tasks_are_compared_too(old_run, new_run, option):
    assert option in error_message(old_run, new_run)


def test_the_two_gru_variants_are_incompatible():
    """Their parameter names differ, so only the embedding and the head are copied, and the rest is reported as new."""
    old_run, new_run, _ = OTHERS[0]
    _, _, note = started(old_run, new_run)
    assert "Initialized 3 tensors from" in note and "mixer.input_proj" in note


def test_unlisted_options_must_match():
    """An option that is added to the config is compared automatically."""
    old_run = made("masked-lm", "bert", **BERT)
    options = {name: getattr(old_run.config.model, name) for name in type(old_run.config.model).model_fields}
    grown = type("Grown", (type(old_run.config.model),), {"__annotations__": {"twist": int}, "twist": 0})
    old, new = (BuiltRun(replace(old_run.config, model=grown(**options, twist=value)), tokens()) for value in (1, 2))
    model = network(old_run)
    with pytest.raises(ConfigError, match=r"model\.twist: 1 there, 2 here"):
        load_initial_weights(network(old_run), new, origin(old, model))


# ---- what must go on working


def test_training_options_and_a_new_head_are_ignored():
    old_run = made("masked-lm", "bert", **BERT)
    new_run = made("masked-lm", "bert", num_heads=[2, 2], dropout=0.4, attention_dropout=0.2, mask_prob=0.3, masking="span", norm_eps=1e-5,
                head_dim=4, word_dropout=0.1, embedding_dropout=0.3)  # fmt: skip
    old, new, note = started(old_run, new_run)
    assert re.fullmatch(r"Initialized \d+ tensors from runs/there", note)
    assert all(torch.equal(weight, old.state_dict()[name]) for name, weight in new.state_dict().items())


@pytest.mark.parametrize("task", ["classification", "tagging", "qa"])
def test_bert_initializes_every_encoder_task(task):
    old_run, new_run = made("masked-lm", "bert", **BERT), made(task, "bert", **BERT)
    old, new, note = started(old_run, new_run)
    assert "; unused: " in note and "head" in note.split("not in runs/there: ")[1]
    stacks = [{name: weight for name, weight in item.state_dict().items() if ".stack." in name} for item in (old, new)]
    assert stacks[0].keys() == stacks[1].keys()
    assert all(torch.equal(weight, stacks[0][name]) for name, weight in stacks[1].items())
    expected = old(text())[text().token_mask]
    if task == "classification":
        torch.testing.assert_close(new.encoder(text())[0][text().token_mask], expected)


def test_fewer_layers_copy_the_lower_ones_and_additional_layers_are_new():
    old_run = made("masked-lm", "bert", **BERT)
    _, _, note = started(old_run, made("masked-lm", "bert", **{**BERT, "num_layers": 1}))
    assert "; unused: " in note and "encoder.stack.layers.2" in note
    _, _, note = started(old_run, made("masked-lm", "bert", **{**BERT, "num_layers": 3}))
    assert "not in runs/there: " in note and "encoder.stack.layers.4" in note


def test_fewer_learned_positions_copy_the_first_and_more_are_rejected():
    old_run = made("masked-lm", "bert", **BERT)
    old, new, _ = started(old_run, made("classification", "bert", data={"max_length": 12}, **BERT))
    torch.testing.assert_close(new.encoder(text())[0][text().token_mask], old(text())[text().token_mask])
    message = error_message(old_run, made("classification", "bert", data={"max_length": 20}, **BERT))
    assert message.startswith("train.init_from: encoder.stack.positions.table.weight is 20x8 here and 16x8 in runs/there; ")


def test_embeddings_are_copied_whatever_the_stack():
    old, new, note = started(made("lm", "lstm"), made("classification", "gru"))
    assert note.startswith("Initialized 1 tensors from runs/there; not in runs/there: ")
    assert torch.equal(new.encoder.embedder.embedding.weight[:-1], old.embedding.weight)
    torch.testing.assert_close(new.encoder.embedder.embedding.weight[-1], old.embedding.weight.mean(0))


def test_non_strict_initialization_skips_parts_that_differ():
    old_run = made("classification", "lstm", bidirectional=False)
    old, new, note = started(
        old_run, made("classification", "lstm", tokens(labels=("yes", "no")), bidirectional=False), strict=False
    )
    assert "; not in runs/there: head.temperature, head.scores.weight, head.scores.bias; " in note
    assert torch.equal(new.encoder.embedder.embedding.weight, old.encoder.embedder.embedding.weight)
    _, new, note = started(
        old_run, made("classification", "lstm", bidirectional=False, skip_connection="residual"), strict=False
    )
    assert "encoder.stack.layers.0.mixer.cell.weight_ih_l0" in note.split("unused")[0]


def test_a_different_context_length_is_reported():
    options = {"position_encoding": "rotary", "num_heads": 2}
    _, _, note = started(made("lm", "transformer", **options), made("lm", "transformer", data={"context_length": 8}, **options))
    assert note.endswith(" from runs/there; attention span 8 tokens (was 16)")


@pytest.mark.parametrize("options", [{"arch": "bert", **BERT}, {"arch": "lstm"}])
@pytest.mark.parametrize("tied", [True, False])
def test_a_single_text_gets_the_segment_of_the_first_text(options, tied):
    """The segment vector that an encoder of text pairs adds to the first text is added to the embedding."""
    rest = {name: value for name, value in options.items() if name != "arch"}
    old_run = made("masked-lm", options["arch"], tie_embeddings=tied, segment_embeddings=True, **rest)
    pairs, alone, note = started(old_run, made("masked-lm", options["arch"], tie_embeddings=tied, **rest))
    assert "segments" not in note
    classifier_options = {"pooling": "mean", "num_layers": 2, **({} if options["arch"] == "bert" else {"dropout": 0.0})}
    _, labels, note = started(old_run, made("classification", options["arch"], **{**rest, **classifier_options}))
    assert "not in runs/there: head." in note and "segments" not in note
    with torch.no_grad():
        expected = pairs(text())[text().token_mask]
        torch.testing.assert_close(labels.encoder(text())[0][text().token_mask], expected)
        torch.testing.assert_close(alone(text())[text().token_mask], expected)
        torch.testing.assert_close(alone.log_probs(expected), pairs.log_probs(expected))


# ---- a language model starts a decoder, an encoder starts an encoder


def silenced(model: Any) -> Any:
    """The same encoder-decoder with a decoder that ignores its source."""
    weights_by_name = dict(model.decoder.named_parameters())
    with torch.no_grad():
        for name, weight in weights_by_name.items():
            adds = name.endswith("to_out.bias") and name.replace("to_out.", "to_kv.") in weights_by_name
            if ".to_kv." in name or adds or ".start." in name:  # attention returns zeros, and every state starts at zero
                weight.zero_()
    return model


def scored(model: Any, ids: Tensor) -> Tensor:
    keep = torch.ones(2, 3, dtype=torch.bool)
    scores: Tensor = model.score(ids, state=model.encode(torch.full((2, 3), 4), keep))
    return scores


DECODERS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("transformer", "transformer", {"num_heads": 2}, {"position_encoding": "learned", "activation": "gelu"}),
    ("gpt", "transformer", {"num_heads": 2}, {"position_encoding": "rotary", "norm": "rmsnorm", "qk_norm": True, "activation": "squared-relu",
                                          "logit_softcap": 15.0}),
    ("lstm", "lstm", {}, {"attention": "none", "bridge": "project"}),
    ("gru", "gru", {"ffn_dim": 12, "skip_connection": "residual", "norm": "layernorm"},
     {"ffn_dim": 12, "skip_connection": "residual", "norm": "layernorm", "attention": "none", "bridge": "project"}),
    ("rnn", "rnn", {}, {"attention": "none", "bridge": "project"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arch", "other", "options", "theirs"), DECODERS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_decoder_initialized_from_an_lm_equals_it_without_a_source(arch, other, options, theirs):
    side = {"decoder": {"num_heads": 2}} if other == "transformer" else {}
    old, new, note = started(made("lm", arch, **options), made("seq2seq", other, **theirs, **side))
    ids = text().tokens
    with torch.no_grad():
        torch.testing.assert_close(scored(silenced(new), ids), old.score(ids))
    assert "unused" not in note and "not in runs/there: " in note


@pytest.mark.parametrize(
    ("old_options", "new_options"),
    [({"bias": False, "head_bias": False}, {}), ({"scale_embeddings": False}, {}), ({}, {"scale_embeddings": False})],
)
def test_new_biases_and_another_scale_do_not_change_the_function(old_options, new_options):
    old, new, note = started(made("seq2seq", "transformer", **old_options), made("seq2seq", "transformer", **new_options))
    with torch.no_grad():
        for name, weight in new.named_parameters():
            if name not in old.state_dict():
                weight.zero_()  # `network` changed the biases, which start at 0
        torch.testing.assert_close(scored(new, text().tokens), scored(old, text().tokens))
    assert "unused" not in note


def test_attention_around_a_recurrent_decoder_is_new():
    _, _, note = started(made("lm", "lstm"), made("seq2seq", "lstm"))
    assert "decoder.stack.layers.1.mixer.look.to_k.weight" in note or "not in runs/there: " in note
    assert note.startswith("Initialized 11 tensors from runs/there")


def test_a_decoder_that_differs_from_the_lm_is_rejected_by_option():
    old_run = made("lm", "transformer", num_heads=2)
    assert error_message(old_run, made("seq2seq", "transformer", decoder={"num_heads": 4})) == (
        f"train.init_from: the weights of {RUN} would compute another function here (model.decoder.activation: gelu there, "
        "relu here; model.decoder.head_dim: 4 there, 2 here; model.decoder.num_heads: 2 there, 4 here; model.decoder.position_encoding: "
        "learned there, sinusoidal here); use the same options, or set train.init_strict = false to skip these weights"
    )
    options = {"position_encoding": "learned", "activation": "gelu", "decoder": {"num_heads": 2}}
    assert "model.tie_embeddings: " in error_message(old_run, made("seq2seq", "transformer", tie_embeddings=True, **options))
    assert "model.logit_softcap: 15.0 there, 0.0 here" in error_message(
        made("lm", "transformer", num_heads=2, logit_softcap=15.0), made("seq2seq", "transformer", **options)
    )
    assert "is 32x16 here and 32x8" in error_message(made("lm", "lstm"), made("seq2seq", "lstm", input_feeding=True))


ENCODERS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("transformer", {"num_heads": 2}, {"position_encoding": "rotary", "norm": "rmsnorm", "qk_norm": True, "activation": "gelu", "num_heads": 2}),
    ("bert", BERT, {"position_encoding": "learned", "norm_position": "post", "activation": "gelu", "num_heads": 2,
                    "embedding_norm": True}),
    ("bert", {**BERT, "segment_embeddings": True}, {"position_encoding": "learned", "norm_position": "post", "activation": "gelu", "num_heads": 2,
                                          "embedding_norm": True}),
]  # fmt: skip


@pytest.mark.parametrize(("arch", "options", "encoder"), ENCODERS)
def test_a_masked_lm_initializes_a_seq2seq_encoder(arch, options, encoder):
    old_run, new_run = made("masked-lm", arch, **options), made("seq2seq", "transformer", encoder=encoder)
    old, new, note = started(old_run, new_run)
    assert "decoder." in note
    with torch.no_grad():
        read = text()
        torch.testing.assert_close(
            new.encoder(read.tokens, read.token_mask).values[read.token_mask], old(read)[read.token_mask]
        )


def test_a_seq2seq_encoder_initializes_a_classifier():
    old_run = made("seq2seq", "transformer", num_heads=2)
    new_run = made("classification", "transformer", num_heads=2, position_encoding="sinusoidal", activation="relu")
    old, new, _ = started(old_run, new_run)
    with torch.no_grad():
        read = text()
        torch.testing.assert_close(
            new.encoder(read)[0][read.token_mask], old.encoder(read.tokens, read.token_mask).values[read.token_mask]
        )


# ---- denoising

SHARED: dict[str, Any] = {"num_heads": 2, "share_embeddings": True, "tie_embeddings": True}


def log_probs(model: Any, read: EncoderInput) -> Tensor:
    """The log-probabilities of the tokens of the tokenizer, without noise tokens, after each token of a text."""
    state = model.encode(read.tokens, read.token_mask)
    result: Tensor = model.log_probs(read.tokens, state)[..., :WORDS].log_softmax(-1)
    return result


@pytest.mark.parametrize("noise", ["infilling", "span-corruption"])
@pytest.mark.parametrize("arch", ["transformer", "lstm-input-feeding"])
def test_a_denoising_model_and_a_seq2seq_model_start_from_each_other(noise, arch):
    options = SHARED if arch == "transformer" else {"share_embeddings": True, "tie_embeddings": True, "num_layers": 1}
    data = {"noise": noise, **({"num_sentinels": 4} if noise == "span-corruption" else {})}
    denoising, pairs = made("denoising", arch, data=data, **options), made("seq2seq", arch, **options)
    num_noise = denoising.config.data.num_noise_tokens
    for old_run, new_run in ((denoising, pairs), (pairs, denoising)):
        old, new, note = started(old_run, new_run)
        assert "not in" not in note and "unused" not in note
        with torch.no_grad():
            torch.testing.assert_close(log_probs(new, text()), log_probs(old, text()))
    assert len(new.head.head.bias) == WORDS + num_noise  # new rows are the mean
    torch.testing.assert_close(new.head.head.weight[WORDS:], old.head.head.weight.mean(0).expand(num_noise, -1))
    untied = made("seq2seq", arch, **{**options, "share_embeddings": False, "tie_embeddings": False})
    old, new, _ = started(denoising, untied)
    with torch.no_grad():
        torch.testing.assert_close(log_probs(new, text()), log_probs(old, text()))


def test_a_denoising_model_of_other_noise_keeps_the_rows_that_both_have():
    old_run = made("denoising", "transformer", data={"noise": "span-corruption", "num_sentinels": 5}, **SHARED)
    old, new, _ = started(old_run, made("denoising", "transformer", **SHARED))
    torch.testing.assert_close(new.head.head.bias, old.head.head.bias[: WORDS + 1])


def test_a_denoising_encoder_initializes_a_classifier():
    old_run = made("denoising", "transformer", **SHARED)
    new_run = made("classification", "transformer", num_heads=2, position_encoding="sinusoidal", activation="relu")
    old, new, _ = started(old_run, new_run)
    with torch.no_grad():
        read = text()
        torch.testing.assert_close(
            new.encoder(read)[0][read.token_mask], old.encoder(read.tokens, read.token_mask).values[read.token_mask]
        )


def test_a_language_model_initializes_the_decoder_of_a_denoising_model():
    old_run = made("lm", "transformer", num_heads=2)
    options = {"position_encoding": "learned", "activation": "gelu", "decoder": {"num_heads": 2}}
    untied = {"share_embeddings": False, "tie_embeddings": False}
    _, new, note = started(old_run, made("denoising", "transformer", **options, **untied))
    assert "decoder" in note or "encoder" in note
    assert new.decoder.embedder.embedding.weight.shape[0] == WORDS + 1
