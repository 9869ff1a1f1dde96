"""The regularizers of AWD-LSTM (Merity et al. 2018): each equals a direct implementation, and none changes evaluation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_runs import SilentCallback, make_text, run_file, train_here
from torch import Tensor, nn
from toy_models import DIM, mixer

from weft.config import parse_config
from weft.data.batching import Batch
from weft.errors import ConfigError, TrainingInterrupted
from weft.models.config import LanguageModelConfig
from weft.models.lm import LanguageModel, language_model
from weft.models.seq2seq_config import Seq2SeqConfig, broadcast_to_sides
from weft.nn.dropout import ActivationPenalty, VariationalDropout, WordTypeDropout
from weft.nn.mixers import MIXERS, recurrent_mixers
from weft.tasks.lm.contexts import Context
from weft.tasks.lm.objective import LanguageModelObjective

VOCAB_SIZE = 20
PENALTIES = {"activation_regularization": 2.0, "temporal_activation_regularization": 1.0}
AWD: dict[str, Any] = {"weight_dropout": 0.5, "variational_dropout": True, "word_type_dropout": 0.1, **PENALTIES}


def inputs(positions: int = 6) -> Tensor:
    return torch.randn(3, positions, DIM, generator=torch.Generator().manual_seed(1))


def small_model(**options: Any) -> LanguageModel:
    values = {"layer_type": "lstm", "hidden_size": DIM, "dropout": 0.4, **options}
    config = parse_config(LanguageModelConfig, values, prefix="model").with_defaults()
    torch.manual_seed(0)
    return language_model(config, vocab_size=VOCAB_SIZE, context_length=8, vocabulary="")


def random_batch(mask: Tensor | None = None) -> Batch:
    return Batch(torch.randint(3, VOCAB_SIZE, (3, 7), generator=torch.Generator().manual_seed(2)), mask)


# ---- weight dropout

REFERENCES: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


def with_dropped_weights(name: str, layer: Any) -> nn.RNNBase:
    """torch's module with the mask that the layer draws after `torch.manual_seed(3)`."""
    reference = REFERENCES[name](DIM, DIM, batch_first=True)
    reference.load_state_dict(layer.cell.state_dict())
    torch.manual_seed(3)
    reference.weight_hh_l0.data.mul_(F.dropout(torch.ones_like(reference.weight_hh_l0), 0.5))
    return reference


@pytest.mark.parametrize("name", REFERENCES)
def test_weight_dropout_equals_torch_with_masked_recurrent_weights(name):
    layer: Any = mixer(name, weight_dropout=0.5).train()
    reference: Any = with_dropped_weights(name, layer)
    torch.manual_seed(3)
    assert 0 < (reference.weight_hh_l0 == 0).float().mean() < 1
    y, state = layer(inputs())
    expected, _ = reference(inputs())
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(state[0] if name == "lstm" else state, expected[:, -1])
    y.square().sum().backward()
    expected.square().sum().backward()
    mask = (reference.weight_hh_l0 != 0) * 2.0
    torch.testing.assert_close(layer.cell.weight_hh_l0.grad, reference.weight_hh_l0.grad * mask)
    torch.testing.assert_close(layer.cell.weight_ih_l0.grad, reference.weight_ih_l0.grad)


@pytest.mark.parametrize("name", REFERENCES)
def test_a_single_step_and_padded_rows_use_the_masked_weights(name):
    layer: Any = mixer(name, weight_dropout=0.5).train()
    _, state = layer.eval()(inputs())
    layer.train()
    reference: Any = with_dropped_weights(name, layer)
    torch.manual_seed(3)
    before = tuple(part[None] for part in state) if name == "lstm" else state[None]
    torch.testing.assert_close(layer(inputs(1), state)[0], reference(inputs(1), before)[0])
    token_mask = torch.arange(6) < torch.tensor([[6], [4], [2]])
    torch.manual_seed(3)
    y, _ = layer(inputs(), state, token_mask)
    torch.testing.assert_close(y[token_mask], reference(inputs(), before)[0][token_mask])


def test_weight_dropout_of_the_forms_without_a_fused_kernel():
    sigmoid: Any = mixer("rnn", nonlinearity="sigmoid", weight_dropout=0.5).train()
    weight_ih, weight_hh, bias_ih, bias_hh = sigmoid.cell.all_weights[0]
    torch.manual_seed(3)
    dropped, h = F.dropout(weight_hh, 0.5), torch.zeros(3, DIM)
    for x in inputs().unbind(1):
        h = torch.sigmoid(F.linear(x, weight_ih, bias_ih) + F.linear(h, dropped, bias_hh))
    torch.manual_seed(3)
    torch.testing.assert_close(sigmoid(inputs())[1], h)

    gru: Any = mixer("gru-reset-before", weight_dropout=0.5).train()
    torch.manual_seed(3)
    gates, candidate, h = F.dropout(gru.gates.weight, 0.5), F.dropout(gru.candidate.weight, 0.5), torch.zeros(3, DIM)
    for x in inputs().unbind(1):
        update, reset, new = gru.input_proj(x).chunk(3, dim=-1)
        update, reset = torch.sigmoid(update + h @ gates[:DIM].T), torch.sigmoid(reset + h @ gates[DIM:].T)
        h = (1 - update) * h + update * torch.tanh(new + (reset * h) @ candidate.T)
    torch.manual_seed(3)
    torch.testing.assert_close(gru(inputs())[1], h)


@pytest.mark.parametrize("name", [name for name in recurrent_mixers() if "weight_dropout" in MIXERS[name].options])
def test_evaluation_does_not_depend_on_weight_dropout(name):
    plain, dropped = mixer(name).eval(), mixer(name, weight_dropout=0.5).eval()
    dropped.load_state_dict(plain.state_dict())
    y, state = plain(inputs())
    assert torch.equal(dropped(inputs())[0], y)
    token_mask = torch.arange(6) < torch.tensor([[6], [4], [2]])
    for arguments in ((inputs(1), state), (inputs(), state, token_mask)):
        assert torch.equal(dropped(*arguments)[0], plain(*arguments)[0])
    assert not torch.equal(plain(inputs())[0], dropped.train()(inputs())[0])


# ---- dropout of activations and embeddings


def test_variational_dropout_has_one_mask_for_all_positions_of_a_row():
    torch.manual_seed(0)
    dropout, x = VariationalDropout(0.4), torch.rand(50, 6, 40) + 1
    factors = dropout(x) / x
    torch.testing.assert_close(factors, factors[:, :1].expand_as(factors))
    values, counts = factors[:, 0].round(decimals=4).unique(return_counts=True)
    assert values.tolist() == pytest.approx([0.0, 1 / 0.6], abs=1e-3)
    assert counts[0] / counts.sum() == pytest.approx(0.4, abs=0.05)
    assert dropout.eval()(x) is x


def test_word_type_dropout_drops_every_occurrence_of_a_word():
    torch.manual_seed(0)
    dropout, tokens = WordTypeDropout(VOCAB_SIZE, 0.5), torch.randint(VOCAB_SIZE, (30, 40))
    factors = dropout(torch.ones(30, 40, 2), tokens)
    by_word = [factors[tokens == word].unique().tolist() for word in range(VOCAB_SIZE)]
    assert all(len(values) == 1 for values in by_word) and {value for (value,) in by_word} == {0.0, 2.0}
    x = torch.ones(30, 40, 2)
    assert dropout.eval()(x, tokens) is x


def test_variational_dropout_applies_to_embeddings_and_every_layer():
    model, seen = small_model(variational_dropout=True, embedding_dropout=0.2), list[float]()
    for module in model.modules():
        if isinstance(module, VariationalDropout):
            seen.append(module.prob)
    assert seen == [0.4, 0.4, 0.2, 0.0] and not any(isinstance(module, nn.Dropout) for module in model.modules())


# ---- penalties on activations


def test_penalty_equals_the_formula():
    h, dropped = torch.randn(2, 5, 4, dtype=torch.float64).float(), torch.randn(2, 5, 4)
    penalty = ActivationPenalty(activation=2.0, temporal=3.0)(h, dropped)
    expected = [
        [
            2.0 * sum(dropped[row, t, d] ** 2 for d in range(4)) / 4
            + (3.0 * sum((h[row, t, d] - h[row, t - 1, d]) ** 2 for d in range(4)) / 4 if t else 0.0)
            for t in range(5)
        ]
        for row in range(2)
    ]
    torch.testing.assert_close(penalty, torch.tensor(expected))


def test_the_penalty_is_minimized_and_not_reported():
    mask = torch.arange(7) < torch.tensor([[7], [5], [3]])
    objective = LanguageModelObjective(carry_state=False, valid=None, context=Context("reset", 8), device=torch.device("cpu"))
    plain, penalized = small_model(), small_model(**PENALTIES)
    torch.manual_seed(4)
    expected = objective.loss(plain, random_batch(mask), None)
    torch.manual_seed(4)
    actual = objective.loss(penalized, random_batch(mask), None)
    assert torch.equal(actual.total, expected.total) and actual.count == expected.count  # the same dropout as well
    assert expected.penalty is None and torch.equal(expected.to_minimize(), expected.total)

    torch.manual_seed(4)
    outputs = list[Tensor]()
    penalized.output_dropout.register_forward_hook(lambda module, given, y: outputs.extend([given[0], y]))
    objective.loss(penalized, random_batch(mask), None)
    h, y = outputs
    squares = 2.0 * y.square().mean(-1)[mask[:, 1:]].sum() + (h[:, 1:] - h[:, :-1]).square().mean(-1)[mask[:, 2:]].sum()
    torch.testing.assert_close(actual.to_minimize(), actual.total + squares)
    assert not torch.equal(h, y)


def test_evaluation_does_not_depend_on_the_regularizers():
    plain, regularized = small_model().eval(), small_model(**AWD).eval()
    regularized.load_state_dict(plain.state_dict())
    tokens = random_batch().tokens
    assert torch.equal(plain.score(tokens), regularized.score(tokens))
    y, penalties, _ = regularized.penalized(tokens[:, :-1])
    losses = regularized.head.loss(y, tokens[:, 1:])
    assert penalties is None and torch.equal(losses, -plain.score(tokens))


# ---- configuration


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layer_type": "attention", "weight_dropout": 0.5}, "weight_dropout: not used with layer_type 'attention'; remove it"),
        ({"layer_type": "conv", "word_type_dropout": 0.1}, "word_type_dropout: not used with layer_type 'conv'; remove it"),
        (
            {"layer_type": "attention", "variational_dropout": True},
            "variational_dropout: not used with layer_type 'attention'; remove it",
        ),
        (
            {"layer_type": "conv", "temporal_activation_regularization": 1.0},
            "temporal_activation_regularization: not used with layer_type 'conv'; remove it",
        ),
        (
            {"activation_regularization": 1.0, "skip_connection": "residual"},
            "activation_regularization: requires skip_connection 'none' and norm 'none'",
        ),
        ({"weight_dropout": 1.0}, "weight_dropout: must be less than 1, got 1.0"),
    ],
)
def test_options_are_refused_where_they_do_not_apply(values, message):
    with pytest.raises(ConfigError) as caught:
        parse_config(LanguageModelConfig, values, prefix="model")
    assert str(caught.value) == f"model.{message}"


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"input_feeding": True}, "input_feeding"), ({"attention_placement": "before"}, "attention_placement 'before'")],
)
def test_a_decoder_that_takes_single_steps_refuses_weight_dropout(options, reason):
    values = {"layer_type": "lstm", "attention": "multiplicative", **options}
    with pytest.raises(ConfigError) as caught:
        parse_config(Seq2SeqConfig, broadcast_to_sides({**values, "weight_dropout": 0.2}), prefix="model")
    assert str(caught.value) == f"model.decoder.weight_dropout: not possible with {reason}; set it in [model.encoder] only"
    parse_config(Seq2SeqConfig, broadcast_to_sides({**values, "encoder": {"weight_dropout": 0.2}}), prefix="model")


# ---- training


def test_bfloat16_gradients_are_finite():
    model = small_model(**AWD)
    tokens = random_batch().tokens
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, penalties, _ = model.penalized(tokens[:, :-1])
        losses = model.head.loss(y, tokens[:, 1:])
    assert penalties is not None and penalties.dtype == torch.float32
    (losses.sum() + penalties.sum()).backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


def test_a_run_with_all_regularizers_resumes_bit_for_bit(tmp_path):
    text = make_text(tmp_path / "text.txt")
    options = {f"model__{name}": value for name, value in AWD.items()} | {"train__max_steps": 6, "data__read_as": "stream"}
    whole, first, second = SilentCallback(), SilentCallback(stop_at=3), SilentCallback()
    train_here(run_file(text, "lstm", **options), tmp_path / "whole", whole)
    with pytest.raises(TrainingInterrupted):
        train_here(run_file(text, "lstm", **options), tmp_path / "parts", first)
    train_here(run_file(text, "lstm", **options), tmp_path / "parts", second)
    assert first.losses + second.losses == whole.losses


def test_the_training_loop_minimizes_the_penalty(tmp_path):
    text = make_text(tmp_path / "text.txt")
    plain, penalized = SilentCallback(), SilentCallback()
    train_here(run_file(text, "lstm", train__max_steps=2), tmp_path / "plain", plain)
    train_here(run_file(text, "lstm", train__max_steps=2, model__activation_regularization=1e3), tmp_path / "run", penalized)
    assert penalized.losses[0] == plain.losses[0] and penalized.losses[1] != plain.losses[1]
