"""Show, attend and tell (Xu et al. 2015): the gate of the context, and doubly stochastic attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from weft.config import parse_config
from weft.data.frame_batching import FrameBatch
from weft.errors import ConfigError
from weft.explain.alignment import recorded_attention
from weft.metrics.captioning import CAPTIONING_VALIDATION
from weft.models import caption_config as configs
from weft.models.caption import captioner
from weft.models.caption_config import CaptionConfig, FrameShape
from weft.models.frame_to_text import FrameToText
from weft.nn.cross_attention import AttentionBeforeStep, SourceAttention
from weft.nn.memory import Memory
from weft.tasks.media_objective import MediaObjective
from weft.text.tokenizers import TokenizerConfig, train_tokenizer

TOKENIZER = train_tokenizer(TokenizerConfig(type="whitespace"), ["a red square", "a blue circle"])
TINY: dict[str, Any] = {"hidden_size": 8, "dropout": 0.0}
TOKENS = torch.tensor([[1, 3, 4, 5, 2], [1, 3, 2, 2, 2]])
TOKEN_MASK = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])


def build(preset: Mapping[str, Any] = configs.SHOW_ATTEND_TELL, **options: Any) -> FrameToText:
    config = CaptionConfig.model_validate(configs.merge(preset, {**TINY, **options})).with_defaults()
    torch.manual_seed(0)
    return captioner(config, TOKENIZER, FrameShape(None, 6), max_positions=20)


def batch() -> FrameBatch:
    source = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[True] * 4, [True] * 3 + [False]])
    return FrameBatch(source=source, source_mask=mask, tokens=TOKENS, token_mask=TOKEN_MASK)


def loss(model: FrameToText) -> torch.Tensor:
    objective = MediaObjective(
        valid=None,
        tokenizer=TOKENIZER,
        device=torch.device("cpu"),
        smoothing=0.0,
        score=lambda outputs, references: {},
        monitors=CAPTIONING_VALIDATION,
    )
    return objective.loss(model, batch(), None).to_minimize()


def attention_of(model: FrameToText) -> tuple[torch.Tensor, Memory]:
    """The weights (B, T, S) that explanations record, and the memory."""
    data = batch()
    memory = model.encoder(data.source, data.source_mask)
    state = model.decoder.stack.init_state(memory)
    return recorded_attention(model, lambda: model.decoder(TOKENS[:, :-1], state)), memory


def test_the_gate_multiplies_the_context():
    torch.manual_seed(0)
    attention, gate = SourceAttention(6, score="additive", memory_size=5), torch.nn.Linear(6, 1)
    memory = Memory(torch.randn(2, 4, 5), torch.ones(2, 4, dtype=torch.bool), (), torch.zeros(2, 5))
    x, query = torch.randn(2, 1, 3), torch.randn(2, 1, 6)
    state = attention.init_state(memory)
    y = AttentionBeforeStep(attention, gate=gate).step_input(x, query, state)
    beta = 1 / (1 + torch.exp(-(query @ gate.weight.T + gate.bias)))
    torch.testing.assert_close(y, torch.cat([x, beta * attention(query, state)], dim=-1))
    plain = AttentionBeforeStep(attention).step_input(x, query, state)
    torch.testing.assert_close(plain, torch.cat([x, attention(query, state)], dim=-1))


def test_the_option_adds_a_gate_that_is_trained():
    names = {name for name, _ in build(attention_gate=True).named_parameters() if ".gate." in name}
    assert len(names) == 2 and not [name for name, _ in build().named_parameters() if ".gate." in name]
    model = build(attention_gate=True)
    model.zero_grad()
    loss(model).backward()
    assert all(parameter.grad.abs().sum() > 0 for name, parameter in model.named_parameters() if ".gate." in name)


@pytest.mark.parametrize(
    "preset", [configs.SHOW_ATTEND_TELL, {**configs.RECURRENT, "layer_type": "gru"}], ids=["before", "after"]
)
def test_the_penalty_is_equation_14(preset):
    """lambda * sum_i (1 - sum_t a_ti)^2, over the words and positions that are not padding."""
    model = build(preset, doubly_stochastic_weight=0.7).eval()
    with torch.no_grad():
        weights, _ = attention_of(model)
        expected = 0.0
        for row, (words, positions) in enumerate(((4, 4), (2, 3))):
            for position in range(positions):
                total = sum(float(weights[row, word, position]) for word in range(words))
                expected += 0.7 * (1 - total) ** 2
        penalized = float(loss(model))
        model.doubly_stochastic_weight = 0.0
        assert penalized - float(loss(model)) == pytest.approx(expected, rel=1e-4) and expected > 0.1


def test_the_penalty_has_gradients_and_makes_attention_even():
    model = build(doubly_stochastic_weight=1.0).train()
    data = batch()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    def penalty() -> torch.Tensor:
        memory = model.encoder(data.source, data.source_mask)
        with model.recorded_attention() as weights:
            model.attention_loss(memory, data.tokens)
        value = model.attention_penalty(weights, memory, data.token_mask[:, 1:])
        assert isinstance(value, torch.Tensor)
        return value.sum()

    assert float(penalty().detach()) > 0.4
    for _ in range(30):
        optimizer.zero_grad()
        penalty().backward()
        optimizer.step()
    assert float(penalty().detach()) == pytest.approx(1 / 3, abs=0.01)  # two words for three positions: 3 (1 - 2/3)^2


def test_nothing_is_recorded_without_a_penalty_and_no_hook_stays():
    model = build(doubly_stochastic_weight=0.0)
    with model.recorded_attention() as weights:
        loss(model)
    assert weights == [] and model.attention_penalty(weights, attention_of(model)[1], TOKEN_MASK[:, 1:]) is None
    model.doubly_stochastic_weight = 1.0
    loss(model)
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("preset", "options", "problem"),
    [
        (
            configs.SHOW_ATTEND_TELL,
            {"attention_placement": "after", "attention_gate": True},
            "model.attention_gate: requires attention_placement 'before'; set it to false",
        ),
        (
            configs.TRANSFORMER,
            {"doubly_stochastic_weight": 1.0},
            "model.doubly_stochastic_weight: requires a recurrent decoder with attention; set it to 0",
        ),
        (
            configs.SHOW_AND_TELL,
            {"doubly_stochastic_weight": 1.0},
            "model.doubly_stochastic_weight: requires a recurrent decoder with attention; set it to 0",
        ),
    ],
)
def test_options_that_do_not_fit(preset, options, problem):
    with pytest.raises(ConfigError) as caught:
        parse_config(CaptionConfig, configs.merge(preset, options), prefix="model")
    assert str(caught.value) == problem
