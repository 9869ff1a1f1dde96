"""The step contract (start, step, score) for every language-model architecture, and initialization."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from toy_models import enlarge_weights

from weft.config import parse_config
from weft.decode.beam import BeamOptions, beam_search
from weft.decode.cache import CachedModel
from weft.decode.cache_options import Cache
from weft.decode.ensemble import Ensemble, LinearEnsemble, LogLinearEnsemble
from weft.decode.logits_processors import random_noise
from weft.decode.sampling import StoppingCriteria, sample
from weft.models.config import ATTENTION_ENCODINGS, CONNECTIONS, INPUT_ENCODINGS
from weft.models.lm import LanguageModel, language_model
from weft.models.ngram import NgramConfig, NgramModel, fit
from weft.nn.state import join, select, tree_leaves
from weft.tasks.lm.presets import PRESETS as LM

WORDS, WIDTH, WINDOW = 7, 8, 32
NETWORKS = [arch for arch, preset in LM.items() if preset.config_class is not NgramConfig]
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def fresh(arch: str, *, window: int = WINDOW, words: int = WORDS, **options: Any) -> LanguageModel:
    """A small, randomly initialized network of an architecture."""
    preset = LM[arch]
    table = parse_config(
        preset.config_class, {**preset.values, "hidden_size": WIDTH, "num_layers": 2, **options}, prefix="model"
    ).with_defaults()
    torch.manual_seed(0)
    return language_model(table, vocab_size=words, context_length=window, vocabulary="v").eval()


def network(arch: str, **options: Any) -> LanguageModel:
    return enlarge_weights(fresh(arch, **options))  # type: ignore[return-value]


def ngram(words: int = WORDS, **options: Any) -> NgramModel:
    generator = np.random.default_rng(0)
    lines = [[*generator.integers(3, words, generator.integers(0, 9)).tolist(), 2] for _ in range(40)]
    tokens, starts = np.concatenate(lines), np.cumsum([0, *map(len, lines)])
    return fit(tokens, starts, NgramConfig(**options), vocab_size=words, vocabulary="v")


BUILDERS: dict[str, Callable[[], Any]] = {
    **{arch: lambda arch=arch: network(arch) for arch in NETWORKS},
    **{
        f"gpt-{where}": lambda where=where: network("gpt", position_encoding=where)
        for where in (*INPUT_ENCODINGS, *ATTENTION_ENCODINGS)
    },
    **{f"lstm-{where}": lambda where=where: network("lstm", position_encoding=where) for where in INPUT_ENCODINGS[1:]},
    **{f"gru-{arch}": lambda arch=arch: network("gru", skip_connection=arch, norm="layernorm") for arch in CONNECTIONS},
    **{f"transformer-{arch}": lambda arch=arch: network("transformer", skip_connection=arch) for arch in CONNECTIONS},
    "gru-before": lambda: network("gru", layer_type="gru-reset-before"),
    "gpt-window-4": lambda: network("gpt", window=4),
    "gpt-heads": lambda: network("gpt", num_heads=[1, 2], head_dim=4, ffn_dim=0, activation=None),
    "gpt-tied": lambda: network("gpt", tie_embeddings=True, zero_init=False),
    "lstm-tied": lambda: network("lstm", tie_embeddings=True, ffn_dim=16, skip_connection="residual"),
    **{f"ngram-{order}": lambda order=order: ngram(order=order) for order in (1, 2, 5)},
    **{f"ngram-{way}": lambda way=way: ngram(order=3, smoothing=way) for way in ("backoff", "add-delta", "mle")},
}
ENSEMBLES: dict[str, Callable[[], Any]] = {
    "mixture": lambda: Ensemble([ngram(), network("lstm"), network("gpt", window=4)], LinearEnsemble([0.5, 0.3, 0.2])),
    "product": lambda: Ensemble([ngram(), network("transformer")], LogLinearEnsemble([0.7, 0.6])),
    "lstm-cache": lambda: CachedModel(network("lstm"), Cache(size=4, theta=0.7, weight=0.4)),
    "gpt-cache": lambda: CachedModel(network("gpt", window=4), Cache(size=100, theta=0.1, weight=0.4)),
}
made = cache(lambda name: (BUILDERS | ENSEMBLES)[name]())
every_model = pytest.mark.parametrize("name", BUILDERS)
everything_that_steps = pytest.mark.parametrize("name", [*BUILDERS, *ENSEMBLES])


@pytest.fixture(autouse=True)
def no_graphs():
    with torch.no_grad():
        yield


def text(rows: int, length: int, *, words: int = WORDS) -> Tensor:
    """Rows of tokens after BOS."""
    tokens = torch.randint(3, words, (rows, length), generator=torch.Generator().manual_seed(length))
    return torch.cat([torch.ones(rows, 1, dtype=torch.long), tokens[:, 1:]], dim=1)


def by_steps(model: Any, tokens: Tensor) -> Tensor:
    """Log-probabilities (B, T, V) after each token, read one by one."""
    log_probs, state = model.start(tokens[:, :1])
    actual = [log_probs]
    for token in tokens[:, 1:].unbind(1):
        log_probs, state = model.step(token, state)
        actual.append(log_probs)
    return torch.stack(actual, dim=1)


# ---- the laws


@everything_that_steps
def test_steps_one_by_one_equal_the_score_of_one_pass(name):
    model, tokens = made(name), text(3, 11)
    expected = by_steps(model, tokens)[:, :-1].gather(2, tokens[:, 1:, None])[..., 0]
    torch.testing.assert_close(model.score(tokens), expected, **CLOSE)


@everything_that_steps
def test_log_probabilities_sum_to_one_at_every_position(name):
    actual = by_steps(made(name), text(2, 9))
    assert actual.shape == (2, 9, WORDS) and actual.dtype == torch.float32
    torch.testing.assert_close(actual.logsumexp(-1), torch.zeros(2, 9), **CLOSE)


@everything_that_steps
@pytest.mark.parametrize("prompt_length", [1, 5, 8])
def test_reading_a_prompt_equals_reading_its_tokens(name, prompt_length):
    model, tokens = made(name), text(2, 9)
    expected = by_steps(model, tokens)
    log_probs, state = model.start(tokens[:, :prompt_length])
    torch.testing.assert_close(log_probs, expected[:, prompt_length - 1], **CLOSE)
    # the rest after the tokens read so far: as a prompt, and scored
    again, _ = model.start(tokens[:, prompt_length:], None, state)
    torch.testing.assert_close(again, expected[:, -1], **CLOSE)
    rest = expected[:, prompt_length:-1].gather(2, tokens[:, prompt_length + 1 :, None])[..., 0]
    torch.testing.assert_close(
        model.score(tokens[:, prompt_length:], None, model.start(tokens[:, :prompt_length])[1]), rest, **CLOSE
    )


@everything_that_steps
@pytest.mark.parametrize("filling", [0, 5])
def test_ragged_prompts_equal_each_row_alone_with_any_padding(name, filling):
    model, tokens, more = made(name), text(3, 7), text(3, 6)
    lengths = torch.tensor([[1], [4], [7]])
    keep = torch.arange(7) < lengths
    together, state = model.start(tokens.masked_fill(~keep, filling), keep)
    stepped, _ = model.step(more[:, 1], state)
    for row, length in enumerate(lengths[:, 0].tolist()):
        alone, row_state = model.start(tokens[row : row + 1, :length])
        torch.testing.assert_close(together[row : row + 1], alone, **CLOSE)
        torch.testing.assert_close(stepped[row : row + 1], model.step(more[row : row + 1, 1], row_state)[0], **CLOSE)


@everything_that_steps
def test_scores_of_padding_are_0_and_padding_changes_no_score(name):
    model, tokens = made(name), text(3, 8)
    keep = torch.arange(8) < torch.tensor([[8], [3], [1]])
    scores = model.score(tokens.masked_fill(~keep, 0), keep)
    assert scores.shape == (3, 7)
    assert (scores[~keep[:, 1:]] == 0).all()
    torch.testing.assert_close(scores, model.score(tokens).masked_fill(~keep[:, 1:], 0.0), **CLOSE)


@everything_that_steps
def test_one_token_has_nothing_to_score(name):
    assert made(name).score(torch.ones(3, 1, dtype=torch.long)).shape == (3, 0)


@everything_that_steps
def test_a_state_is_tensors_in_tuples_with_the_rows_first(name):
    def check(part: Any) -> None:
        assert part is None or isinstance(part, Tensor | tuple)
        if isinstance(part, Tensor):
            assert part.dim() >= 2 and part.size(0) == 3 and not part.requires_grad
        for inner in part if isinstance(part, tuple) else ():
            check(inner)

    _, state = made(name).start(text(3, 5))
    check(state)
    check(made(name).step(torch.tensor([3, 4, 5]), state)[1])


@everything_that_steps
def test_rows_can_be_selected_repeated_and_reordered(name):
    """Branches of one row continue with different tokens, as in beam search."""
    model, tokens = made(name), text(3, 6)
    rows, following = torch.tensor([2, 0, 2]), torch.tensor([3, 4, 5])
    branches, state = model.step(following, select(model.start(tokens)[1], rows))
    further, _ = model.step(following, select(state, torch.tensor([2, 1, 0])))
    for index, (row, token) in enumerate(zip(rows, following, strict=True)):
        before = torch.cat([tokens[row], token[None]])
        torch.testing.assert_close(branches[index], model.start(before[None])[0][0], **CLOSE)
        last = torch.cat([before, following[2 - index][None]])
        torch.testing.assert_close(further[2 - index], model.start(last[None])[0][0], **CLOSE)


@everything_that_steps
def test_joined_rows_of_different_age_equal_each_row_alone(name):
    model, old, young, more = made(name), text(2, 9), text(1, 2), text(3, 8)
    state = join(model.start(old)[1], model.start(young)[1])
    first, second = model.start(old)[1], model.start(young)[1]
    for token in more[:, 1:].unbind(1):
        together, state = model.step(token, state)
        one, first = model.step(token[:2], first)
        other, second = model.step(token[2:], second)
        torch.testing.assert_close(together, torch.cat([one, other]), **CLOSE)


@every_model
def test_the_loss_is_the_score(name):
    model, tokens = made(name), text(3, 8)
    nats, state = model.loss(tokens[:, :-1], tokens[:, 1:])
    torch.testing.assert_close(-nats, model.score(tokens), **CLOSE)
    # the state is after the last token read, without the last target
    torch.testing.assert_close(model.step(tokens[:, -1], state)[0], model.start(tokens)[0], **CLOSE)


@every_model
@pytest.mark.parametrize("chunk_length", [1, 4, 9])
def test_a_loss_in_chunks_equals_the_whole(name, chunk_length):
    model, tokens = made(name), text(2, 11)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    full, _ = model.loss(inputs, targets)
    first, state = model.loss(inputs[:, :chunk_length], targets[:, :chunk_length])
    second, _ = model.loss(inputs[:, chunk_length:], targets[:, chunk_length:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), full, **CLOSE)


def test_only_learned_positions_are_limited():
    limits = {name: made(name).max_positions for name in [*BUILDERS, *ENSEMBLES]}
    limited = {name: length for name, length in limits.items() if length is not None}
    transformers = ["transformer", *(f"transformer-{arch}" for arch in CONNECTIONS)]
    assert limited == dict.fromkeys([*transformers, "gpt-learned", "lstm-learned", "product"], WINDOW)


def test_models_store_their_vocabulary_hash():
    assert {made(name).vocabulary for name in [*BUILDERS, *ENSEMBLES]} == {"v"}


# ---- search


def texts_by_force(model: Any, prompt: list[int], *, limit: int, end: int, words: int) -> list[tuple[float, list[int]]]:
    """Every text of at most `limit` tokens with its log-probability, best first, by enumeration."""
    endings = torch.tensor(list(itertools.product(range(words), repeat=limit)))
    full = torch.cat([torch.tensor(prompt).expand(len(endings), -1), endings], dim=1)
    scores = model.score(full)[:, len(prompt) - 1 :].double()
    actual: dict[tuple[int, ...], float] = {}
    for tokens, values in zip(endings.tolist(), scores.tolist(), strict=True):
        length = tokens.index(end) + 1 if end in tokens else limit
        actual[tuple(tokens[:length])] = sum(values[:length])
    return sorted(((value, list(tokens)) for tokens, value in actual.items()), reverse=True)


SEARCHED: dict[str, Callable[[], Any]] = {
    "ngram": lambda: ngram(5, order=3),
    "lstm": lambda: network("lstm", words=5),
    "transformer": lambda: network("transformer", words=5),
    "gpt": lambda: network("gpt", words=5, window=3),
    "ensemble": lambda: Ensemble([ngram(5, order=2), network("lstm", words=5)], LinearEnsemble([0.4, 0.6])),
    "cache": lambda: CachedModel(network("lstm", words=5), Cache(size=3, theta=0.5, weight=0.5)),
}


@pytest.mark.parametrize("name", SEARCHED)
@pytest.mark.parametrize("prompt", [[1], [1, 4, 3, 3]], ids=["bos", "prompt"])
@pytest.mark.parametrize("alpha", [0.0, 0.8])
def test_a_wide_beam_finds_the_global_optimum(name, prompt, alpha):
    model, limit = SEARCHED[name](), 4
    options = BeamOptions(beam_size=5**3, max_new_tokens=limit, eos_id=2, length_penalty=alpha, n_best=6)
    actual = beam_search(model, torch.tensor([prompt]), options=options)[0]
    every = texts_by_force(model, prompt, limit=limit, end=2, words=5)
    every = sorted(((value / len(tokens) ** alpha, tokens, value) for value, tokens in every), reverse=True)[:6]
    assert [item.tokens for item in actual] == [tokens for _, tokens, _ in every]
    assert [item.score for item in actual] == pytest.approx([score for score, _, _ in every], abs=1e-4)
    assert [item.log_prob for item in actual] == pytest.approx([value for _, _, value in every], abs=1e-4)


@everything_that_steps
def test_greedy_is_the_path_of_the_most_probable_tokens(name):
    model, tokens = made(name), text(2, 3)
    drawn = [item.tokens for item in sample(model, tokens, criteria=StoppingCriteria(max_new_tokens=8))]
    for _ in range(8):
        tokens = torch.cat([tokens, model.start(tokens)[0].argmax(1, keepdim=True)], dim=1)
    assert torch.equal(torch.stack(drawn, dim=1), tokens[:, 3:])


@everything_that_steps
def test_sampled_log_probs_equal_scores(name):
    model, prompt = made(name), text(3, 4)
    keep = torch.arange(4) < torch.tensor([[4], [2], [1]])
    noise = [random_noise(0, row, 0) for row in range(3)]
    drawn = list(sample(model, prompt, criteria=StoppingCriteria(max_new_tokens=12), token_mask=keep, noise=noise))
    tokens_drawn = torch.stack([item.tokens for item in drawn], dim=1)
    spent = torch.stack([item.log_probs for item in drawn], dim=1)
    assert len(set(map(tuple, tokens_drawn.tolist()))) == 3
    for row, length in enumerate(keep.sum(1).tolist()):
        full = torch.cat([prompt[row, :length], tokens_drawn[row]])
        expected = model.score(full[None])[0, length - 1 :].double()
        assert torch.isfinite(expected).all()
        torch.testing.assert_close(spent[row], expected, **CLOSE)


# ---- attention's memory


@pytest.mark.parametrize("encoding", ["none", "sinusoidal", *ATTENTION_ENCODINGS])
@pytest.mark.parametrize("read", [1, 7, 30])
def test_attention_state_is_bounded_during_generation(encoding, read):
    model, window = network("gpt", position_encoding=encoding, window=4), 4
    log_probs, state = model.start(text(2, read))
    tokens = text(2, read)
    for _ in range(25):
        columns = [key_at.size(1) for key_at in tree_leaves(state) if key_at.dtype == torch.long][1:]
        assert columns and max(columns) < 2 * window
        assert torch.isfinite(log_probs).all()
        tokens = torch.cat([tokens, log_probs.argmax(1, keepdim=True)], dim=1)
        log_probs, state = model.step(tokens[:, -1], state)
    torch.testing.assert_close(log_probs, model.start(tokens)[0], **CLOSE)


@pytest.mark.parametrize("layers", [1, 2])
def test_attention_is_limited_to_the_context_length_in_each_layer(layers):
    """Each layer sees window - 1 tokens further back; tokens beyond that have no effect."""
    model, tokens = network("gpt", window=4, num_layers=layers), text(1, 20)
    reach = layers * 3 + 1
    for back, same in ((reach, False), (reach + 1, True)):
        other = tokens.clone()
        other[0, -back] = 3 + (tokens[0, -back] - 2) % 4
        assert torch.allclose(model.start(other)[0], model.start(tokens)[0], atol=1e-7) == same


# ---- what models are made of


def stack_of(arch: str) -> int:
    """Parameters of the stack by hand: hidden size D, two layers, context length W."""
    d, w, n = WIDTH, WINDOW, 3
    attention = (3 * d * d + 3 * d) + (d * d + d)
    feed_forward = (4 * d * d + 4 * d) + (4 * d * d + d)
    small_feed_forward = (2 * d * d + 2 * d) + (2 * d * d + d)
    return {
        "conv": 2 * (n * d * d + d),
        "rnn": 2 * (2 * d * d + 2 * d),
        "lstm": 2 * 4 * (2 * d * d + 2 * d),
        "gru": 2 * 3 * (2 * d * d + 2 * d),
        "mingru": 2 * (2 * (d * d + d) + small_feed_forward + 2 * 2 * d) + 2 * d,
        "minlstm": 2 * (3 * (d * d + d) + small_feed_forward + 2 * 2 * d) + 2 * d,
        "transformer": w * d + 2 * (attention + feed_forward + 2 * 2 * d) + 2 * d,  # norms have gain and bias
        "gpt": 2 * (attention + feed_forward + 2 * d) + d,  # RMS norms have a gain
    }[arch]


@pytest.mark.parametrize("arch", NETWORKS)
def test_parameters_by_hand(arch):
    counted = sum(weight.numel() for weight in fresh(arch).parameters())
    assert counted == WORDS * WIDTH + stack_of(arch) + WORDS * WIDTH + WORDS


def test_parameters_of_options_by_hand():
    d = WIDTH
    plain = sum(weight.numel() for weight in fresh("gru").parameters())
    more = {
        "gru-before": (fresh("gru", layer_type="gru-reset-before"), -2 * 3 * d),  # one bias per gate, not two
        "tied": (fresh("gru", tie_embeddings=True), -WORDS * d),
        "residual": (fresh("gru", skip_connection="residual"), 0),
        "highway": (fresh("gru", skip_connection="highway"), 2 * (d * d + d)),
        "dense": (fresh("gru", skip_connection="dense"), (d * d + d) + (2 * d * d + d) + (3 * d * d + d)),
        "post-norm": (fresh("gru", skip_connection="residual", norm="layernorm", norm_position="post"), 2 * 2 * d),
        "layer": (fresh("gru", norm="layernorm"), 3 * 2 * d),
        "rms": (fresh("gru", norm="rmsnorm"), 3 * d),
        "sinusoidal": (fresh("gru", position_encoding="sinusoidal"), 0),
        "feed-forward": (fresh("gru", ffn_dim=5), 2 * (2 * 5 * d + 5 + d)),
        "gated": (fresh("gru", ffn_dim=5, activation="swiglu"), 2 * (d * 10 + 10 + 5 * d + d)),
    }
    assert {name: sum(w.numel() for w in model.parameters()) - plain for name, (model, _) in more.items()} == {
        name: expected for name, (_, expected) in more.items()
    }
    gpt = sum(weight.numel() for weight in fresh("gpt", position_encoding="none").parameters())
    more = {
        "rotary": (fresh("gpt"), 0),
        "alibi": (fresh("gpt", position_encoding="alibi"), 0),
        "relative": (fresh("gpt", position_encoding="relative"), 2 * 65 * d),  # one head: a vector per distance from -32 to 32
        "heads": (
            fresh("gpt", position_encoding="none", num_heads=[1, 2], head_dim=4),
            -2 * (4 * d * d + 3 * d) + 12 * (4 * d + 3),
        ),
    }
    assert {name: sum(w.numel() for w in model.parameters()) - gpt for name, (model, _) in more.items()} == {
        name: expected for name, (_, expected) in more.items()
    }


def test_parameters_of_an_ngram_model_are_its_ngrams():
    # 3 4 3 4 </s>: five pairs with the one of <s>, all different but 3 4
    model = fit(np.array([3, 4, 3, 4, 2]), np.array([0, 5]), NgramConfig(order=2), vocab_size=5, vocabulary="v")
    assert model.counts == [5, 4]
    assert model.num_parameters == 9


@pytest.mark.parametrize("name", [name for name in BUILDERS if not name.startswith("ngram")])
def test_muon_parameters_are_linear_and_recurrent_matrices(name):
    model = made(name)
    maps = {path: part for path, part in model.stack.layers.named_modules() if isinstance(part, nn.Linear | nn.RNNBase)}
    weights = {
        f"stack.layers.{path}.{weight_name}"
        for path, part in maps.items()
        for weight_name, weight in part.named_parameters()
        if weight.dim() > 1
    }
    assert model.muon_parameters() == weights and weights
    assert all(dict(model.named_parameters())[name].dim() == 2 for name in weights)


# ---- how models begin


def test_zero_init_gives_uniform_predictions_and_an_identity_stack():
    model, tokens = fresh("gpt"), text(2, 9)
    assert torch.equal(by_steps(model, tokens), torch.full((2, 9, WORDS), -math.log(WORDS)))
    assert torch.equal(model(tokens)[0], model.stack.final_norm(model.embedding(tokens)))
    lstm = fresh("lstm", zero_init=True)
    torch.testing.assert_close(by_steps(lstm, tokens), torch.full((2, 9, WORDS), -math.log(WORDS)))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("arch", NETWORKS)
def test_initial_loss_is_near_uniform(arch, tied):
    """The initial loss is about log V; large logits would have to be unlearned first."""
    model = fresh(arch, hidden_size=128, words=100, num_layers=4, tie_embeddings=tied, zero_init=False)
    tokens = text(8, 33, words=100)
    nats, _ = model.loss(tokens[:, :-1], tokens[:, 1:])
    assert nats.mean().item() == pytest.approx(math.log(100), abs=0.8)


@pytest.mark.parametrize("arch", ["lstm", "transformer", "gpt"])
def test_highway_gates_start_mostly_closed_for_every_mixer(arch):
    for layer in fresh(arch, skip_connection="highway").stack.layers:
        assert torch.equal(layer.connection.gate.bias, torch.full((WIDTH,), -1.0))


def test_residual_projections_start_smaller_in_deeper_stacks():
    for layers in (1, 8):
        model = fresh("transformer", num_layers=layers, hidden_size=64)
        spread = [weight.std().item() for name, weight in model.named_parameters() if name.endswith("to_out.weight")]
        assert spread == pytest.approx([0.02 * (2 * layers) ** -0.5] * 2 * layers, rel=0.1)
        inside = [
            weight.std().item() for name, weight in model.named_parameters() if name.endswith(("qkv.weight", "up_proj.weight"))
        ]
        assert inside == pytest.approx([0.02] * 2 * layers, rel=0.1)


def test_initialization_depends_on_the_seed():
    for arch in NETWORKS:
        first, second = fresh(arch).state_dict(), fresh(arch).state_dict()
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_dropout_applies_only_in_training():
    for arch in ("lstm", "gpt", "transformer"):
        tokens = text(2, 9)
        model, still = network(arch, dropout=0.5), network(arch)
        expected = still.loss(tokens[:, :-1], tokens[:, 1:])[0]
        torch.testing.assert_close(model.loss(tokens[:, :-1], tokens[:, 1:])[0], expected, **CLOSE)
        torch.testing.assert_close(still.train().loss(tokens[:, :-1], tokens[:, 1:])[0], expected, **CLOSE)
        dropped = [model.train().loss(tokens[:, :-1], tokens[:, 1:])[0] for _ in range(2)]
        assert (dropped[0] != dropped[1]).any() and torch.isfinite(dropped[0]).all()
