"""Models on the meta device: equal shapes, nothing initialized, no compiler imported."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn

from weft.models.config import LanguageModelConfig
from weft.models.lm import language_model
from weft.nn.meta import meta_device
from weft.tasks.lm.presets import GPT, TRANSFORMER

LSTM = {"layer_type": "lstm", "num_layers": 2}


@pytest.mark.parametrize("options", [GPT, TRANSFORMER, LSTM])
def test_weights_have_the_shapes_of_the_model(options):
    config = LanguageModelConfig.model_validate({"hidden_size": 16, **options}).with_defaults()

    def build():
        return language_model(config, vocab_size=11, context_length=8, vocabulary="v")

    with meta_device():
        expected = build().state_dict()
    actual = build().state_dict()
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in expected.items()} == {
        name: (tensor.shape, tensor.dtype) for name, tensor in actual.items()
    }
    assert all(tensor.is_meta for name, tensor in expected.items())


def test_random_numbers_are_left_alone():
    before = torch.get_rng_state()
    with meta_device():
        layer = nn.Linear(3, 4)
        nn.init.orthogonal_(layer.weight)
        table = torch.empty(2, 3).normal_(std=0.5).uniform_()
    assert layer.weight.is_meta and table.shape == (2, 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_compiler_is_not_imported():
    """It takes longer than importing torch."""
    script = (
        "import sys, torch\nfrom torch import nn\nfrom weft.nn.meta import meta_device\nfrom weft.nn.positions import RotaryEmbedding\n"
        "import weft.nn.experts, weft.training.neural\n"
        "with meta_device():\n    nn.Embedding(3, 4), nn.Linear(3, 4), nn.LSTM(3, 4), RotaryEmbedding(8)\n"
        "print('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "False\n"
