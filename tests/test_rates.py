"""How fast each weight learns: frozen parts, slower lower layers, layers that thaw."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from weft.config import read_table
from weft.errors import ConfigError
from weft.train.optimizers import optimizers
from weft.train.rates import Rate, rates_of
from weft.train.tables import TrainTable

NAMES = [
    "encoder.front.embedding.weight",
    "encoder.stack.layers.0.mixer.weight",
    "encoder.stack.layers.1.mixer.weight",
    "encoder.stack.outlet.weight",
    "head.scores.weight",
]


def table(**options: Any) -> TrainTable:
    return read_table(TrainTable, options, at="train").filled()


def test_without_options_every_weight_learns_at_the_rate_of_the_run():
    assert set(rates_of(NAMES, table()).values()) == {Rate(1.0, 0.0)}


def test_lower_layers_learn_slower_by_the_same_factor_each():
    found = [rate.factor for rate in rates_of(NAMES, table(layer_decay=0.5)).values()]
    assert found == [0.125, 0.25, 0.5, 1.0, 1.0]


def test_layers_thaw_from_the_top_down_at_equal_distances():
    found = rates_of(NAMES, table(thaw=0.6))
    assert [rate.start for rate in found.values()] == pytest.approx([0.6, 0.4, 0.2, 0.0, 0.0])
    second = found[NAMES[2]]
    assert (second.at(0.1), second.at(0.2), second.at(1.0)) == (0.0, 1.0, 1.0)


def test_the_longest_name_counts_and_zero_freezes():
    given = {"encoder": 0.1, "encoder.stack.layers.1": 2.0, "head": 0.0}
    found = [rate.factor for rate in rates_of(NAMES, table(rates=given)).values()]
    assert found == [0.1, 0.1, 2.0, 0.1, 0.0]


def test_what_is_no_part_is_refused_with_the_nearest():
    with pytest.raises(ConfigError) as caught:
        rates_of(NAMES, table(rates={"encoder.stak": 0.1}))
    assert str(caught.value).startswith(
        "train.rates: no weight is called 'encoder.stak', or starts so; did you mean 'encoder.stack'?"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rates": {"head": -1.0}}, "train: rates: head=-1 must be 0 or more"),
        ({"init_loose": True}, "train: init_loose=true is about init_from, which is not given"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(ConfigError) as caught:
        table(**options)
    assert str(caught.value) == message


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.front, self.head = nn.Linear(3, 3), nn.Linear(3, 2)


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
def test_a_frozen_part_has_no_gradient_and_stays_as_it_is(optimizer):
    model = Small()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    steps = optimizers(model, {"front.weight", "head.weight"}, table(optimizer=optimizer, rates={"front": 0.0}))
    model.head(model.front(torch.ones(4, 3))).square().sum().backward()
    assert model.front.weight.grad is None
    steps.step(1.0)
    moved = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    assert moved == {"head.weight", "head.bias"}
    assert set(steps.names.values()) == {"head.weight", "head.bias"}


def test_a_part_that_has_not_thawed_stays_and_then_moves():
    model = Small()
    steps = optimizers(model, set(), table(thaw=0.5))
    for progress, expected in ((0.1, {"head.weight", "head.bias"}), (0.9, set(dict(model.named_parameters())))):
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        model.head(model.front(torch.ones(4, 3))).square().sum().backward()
        steps.step(1.0, progress)
        steps.clear()
        assert {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])} == expected


def test_a_model_that_is_all_frozen_is_refused():
    with pytest.raises(ConfigError) as caught:
        optimizers(Small(), set(), table(rates={"front": 0.0, "head": 0.0}))
    assert str(caught.value) == "train.rates: every weight is frozen; there is nothing to train"
