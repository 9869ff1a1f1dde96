"""Encoder-decoders against references: torch.nn with the same weights, and the papers' equations in plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_references import Array, agree, array, gru_before_equations, lstm_equations, seeded, sigmoid
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from toy_models import enlarge_weights
from toy_seq2seq import VOCAB_SIZE, large_weight_model, random_memory, seq2seq_config, sources, targets

from weft.models.build import stack
from weft.models.seq2seq import EncoderDecoder
from weft.nn import cross_attention as cross
from weft.nn.attention import SelfAttention
from weft.nn.choices import ATTENTION_SCORES
from weft.nn.cross_attention import CrossAttention, SourceAttention
from weft.nn.lm_head import LMHead
from weft.nn.pointer_generator import PointerGeneratorOutput
from weft.nn.state import tree_leaves
from weft.tasks.seq2seq.batching import PairBatch
from weft.tasks.seq2seq.objective import Seq2SeqObjective
from weft.tasks.seq2seq.presets import PRESETS as TRANSLATE

EXACT = {"atol": 1e-10, "rtol": 1e-8}
FLOAT32 = {"atol": 2e-5, "rtol": 1e-4}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


# ---- attention against nn.MultiheadAttention


def test_cross_attention_matches_torch_multihead_attention():
    reference = seeded(lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True))
    part, memory, x = (
        CrossAttention(8, num_heads=2, memory_size=6).double().eval(),
        random_memory(5, 3, hidden_size=6),
        random(2, 4, 8),
    )
    with torch.no_grad():
        part.to_q.weight.copy_(reference.q_proj_weight)
        part.to_kv.weight.copy_(torch.cat([reference.k_proj_weight, reference.v_proj_weight]))
        part.to_q.bias.copy_(reference.in_proj_bias[:8])
        part.to_kv.bias.copy_(reference.in_proj_bias[8:])
        part.to_out.load_state_dict(reference.out_proj.state_dict())
    expected, weights = reference(
        x, memory.values, memory.values, key_padding_mask=~memory.token_mask, average_attn_weights=False
    )
    seen = part.init_state(memory)
    y, state = part(x, seen)
    torch.testing.assert_close(y, expected, **EXACT)
    assert state is seen
    q = part.to_q(x).unflatten(-1, (2, -1)).transpose(1, 2)
    k, v, keep = seen.parts
    torch.testing.assert_close(part.attend.weights(q, k, v, keep[:, None, None], False), weights, **EXACT)


def test_qk_norm_of_cross_attention_ignores_the_scale_of_queries_and_keys():
    part = seeded(lambda: CrossAttention(8, num_heads=2, memory_size=6, qk_norm=nn.RMSNorm(4))).double().eval()
    memory, x = random_memory(5, 3, hidden_size=6), random(2, 4, 8)
    before, _ = part(x, part.init_state(memory))
    with torch.no_grad():
        for weight, factor in (
            (part.to_q.weight, 5.0),
            (part.to_q.bias, 5.0),
            (part.to_kv.weight[:8], 3.0),
            (part.to_kv.bias[:8], 3.0),
        ):
            weight.mul_(factor)
    after, _ = part(x, part.init_state(memory))
    torch.testing.assert_close(after, before, **EXACT)
    with torch.no_grad():
        part.to_kv.weight[8:].mul_(3.0)
    assert (part(x, part.init_state(memory))[0] - before).abs().max() > 0.01  # values are not normalized


@pytest.mark.parametrize("padded", [False, True])
def test_bidirectional_self_attention_matches_torch_multihead_attention(padded):
    reference = seeded(lambda: nn.MultiheadAttention(8, 2, batch_first=True))
    part, x = SelfAttention(8, num_heads=2, context_length="bidirectional").double().eval(), random(2, 5, 8)
    with torch.no_grad():
        part.to_qkv.weight.copy_(reference.in_proj_weight)
        part.to_qkv.bias.copy_(reference.in_proj_bias)
        part.to_out.load_state_dict(reference.out_proj.state_dict())
    keep = torch.arange(5) < torch.tensor([[5], [3]]) if padded else None
    expected, _ = reference(x, x, x, key_padding_mask=None if keep is None else ~keep, need_weights=False)
    y, _ = part(x, None, keep)
    real = torch.ones(2, 5, dtype=torch.bool) if keep is None else keep
    torch.testing.assert_close(y[real], expected[real], **EXACT)


# ---- a whole Transformer against nn.Transformer


def torch_transformer() -> nn.Transformer:
    options: dict[str, Any] = {"dropout": 0.0, "activation": "relu", "batch_first": True, "norm_first": True}
    layer = nn.TransformerEncoderLayer(8, 2, 16, **options)
    # avoids torch's warning about a fast path that pre-norm layers do not have
    encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False)
    return enlarge_weights(nn.Transformer(8, 2, 2, 2, 16, custom_encoder=encoder, **options)).double().eval()  # type: ignore[return-value]


def copy_attention(attention: nn.MultiheadAttention, layer: Any) -> None:
    """Copy the weights of torch's attention into our Layer around it."""
    part, bias = layer.mixer, attention.in_proj_bias
    if isinstance(part, SelfAttention):
        part.to_qkv.weight.copy_(attention.in_proj_weight)
        part.to_qkv.bias.copy_(bias)
    else:
        part.to_q.weight.copy_(attention.in_proj_weight[:8])
        part.to_q.bias.copy_(bias[:8])
        part.to_kv.weight.copy_(attention.in_proj_weight[8:])
        part.to_kv.bias.copy_(bias[8:])
    part.to_out.load_state_dict(attention.out_proj.state_dict())


@torch.no_grad()
def copy_transformer(reference: Any, model: Any) -> None:
    for side, parts in ((reference.encoder, 2), (reference.decoder, 3)):
        ours = (model.encoder if parts == 2 else model.decoder).stack
        for number, layer in enumerate(side.layers):
            sublayers = ours.layers[parts * number : parts * (number + 1)]
            copy_attention(layer.self_attn, sublayers[0])
            if parts == 3:
                copy_attention(layer.multihead_attn, sublayers[1])
            sublayers[-1].mixer.up_proj.load_state_dict(layer.linear1.state_dict())
            sublayers[-1].mixer.to_out.load_state_dict(layer.linear2.state_dict())
            for norm, sublayer in zip((layer.norm1, layer.norm2, getattr(layer, "norm3", None)), sublayers, strict=False):
                sublayer.norm.load_state_dict(norm.state_dict())
        ours.final_norm.load_state_dict(side.norm.state_dict())


def sinusoids(length: int, dim: int) -> Tensor:
    wave = [
        [np.sin(index / 10000 ** (2 * (i // 2) / dim) + (np.pi / 2) * (i % 2)) for i in range(dim)] for index in range(length)
    ]
    return torch.tensor(np.array(wave))


def test_transformer_matches_torch_transformer():
    # exact up to the frequencies of the sinusoids, which are float32
    model = large_weight_model(
        layer_type="attention", num_layers=2, num_heads=2, ffn_dim=16, activation="relu", skip_connection="residual", norm="layernorm",
        position_encoding="sinusoidal", attention="scaled-dot",
    ).double()  # fmt: skip
    torch.manual_seed(1)
    reference = torch_transformer()
    copy_transformer(reference, model)
    (source, keep), tokens = sources(6, 4), targets(2, 5)

    def read(front: Any, ids: Tensor) -> Tensor:
        return front.embedding.weight[ids] * 8**0.5 + sinusoids(ids.size(1), 8)

    y, _ = model(tokens, model.encode(source, keep))
    expected = reference(
        read(model.encoder.embedder, source),
        read(model.decoder.embedder, tokens),
        tgt_mask=~torch.ones(5, 5, dtype=torch.bool).tril(),
        src_key_padding_mask=~keep,
        memory_key_padding_mask=~keep,
    )
    torch.testing.assert_close(y, expected, atol=1e-6, rtol=1e-6)


# ---- a two-way encoder against nn.LSTM


@pytest.mark.parametrize("mixer", ["rnn", "lstm", "gru"])
def test_bidirectional_encoder_matches_torch_and_the_bridge_passes_both_final_states(mixer):
    kinds: dict[str, Any] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
    model = large_weight_model(layer_type=mixer, num_layers=2, bridge="copy").double()
    reference = kinds[mixer](8, 4, 2, batch_first=True, bidirectional=True).double()
    for height, layer in enumerate(model.encoder.stack.layers):
        for part, end in ((layer.mixer.forward_mixer, ""), (layer.mixer.backward_mixer, "_reverse")):
            for name, weight in part.cell.named_parameters():
                getattr(reference, f"{name.removesuffix('0')}{height}{end}").data.copy_(weight)
    source, keep = sources(6, 3)
    packed = pack_padded_sequence(model.encoder.embedder(source), torch.tensor([6, 3]), batch_first=True)
    y, last = reference(packed)
    values, _ = nn.utils.rnn.pad_packed_sequence(y, batch_first=True)
    memory = model.encoder(source, keep)
    torch.testing.assert_close(memory.values[keep], values[keep], **EXACT)
    for height, state in enumerate(memory.states):
        for ours, theirs in zip(tree_leaves(state), last if mixer == "lstm" else [last], strict=True):
            joined = torch.cat([theirs[2 * height], theirs[2 * height + 1]], dim=-1)  # where each direction ends
            torch.testing.assert_close(ours, joined, **EXACT)
    torch.testing.assert_close(memory.summary, tree_leaves(memory.states[-1])[0])
    (_, ((_, started),)), _ = model.encode(source, keep)
    for ours, theirs in zip(tree_leaves(started), tree_leaves(memory.states), strict=True):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


def test_summary_of_an_encoder_without_state_is_the_mean():
    for mixer in ("attention", "conv"):
        model = large_weight_model(encoder={"layer_type": mixer}, decoder={"layer_type": "gru"}).double()
        memory = model.encoder(*sources(5, 2))
        torch.testing.assert_close(memory.summary[1], memory.values[1, :2].mean(0), **EXACT)


def test_reversed_source():
    options: dict[str, Any] = {"layer_type": "lstm", "attention": "dot"}
    ahead = large_weight_model(**options, encoder={"bidirectional": False}).double()
    back = large_weight_model(**options, encoder={"bidirectional": False, "reverse_source": True}).double()
    source, keep = sources(6, 4)
    turned = source.clone()
    turned[0], turned[1, :4] = source[0].flip(0), source[1, :4].flip(0)
    first, second = ahead.encoder(turned, keep), back.encoder(source, keep)
    torch.testing.assert_close(second.summary, first.summary, **EXACT)
    # values are in the order of the tokens, so attention refers to the original positions
    torch.testing.assert_close(second.values[1, :4], first.values[1, :4].flip(0), **EXACT)


# ---- the papers' equations, one row at a time


def softmax(scores: Array) -> Array:
    shifted = np.exp(scores - scores.max())
    return shifted / shifted.sum()


def linear(part: nn.Linear, x: Array) -> Array:
    y: Array = array(part.weight) @ x
    return y if part.bias is None else y + array(part.bias)


def words(front: Any, ids: Tensor) -> Array:
    return array(front.embedding.weight)[ids.numpy()] * front.scale


def log_probs(model: EncoderDecoder, states: list[Array]) -> Array:
    scores = np.array(states) @ array(model.head.head.weight).T + array(model.head.head.bias)
    return scores - np.log(np.exp(scores).sum(-1, keepdims=True))


def agrees(model: EncoderDecoder, states: Any) -> None:
    """Compare the model's log-probabilities on two ragged sources with the states of the equations."""
    (source, keep), tokens = sources(6, 4), targets(2, 5)
    y, _ = model(tokens, (encoded := model.encode(source, keep)))
    for number, length in enumerate((6, 4)):
        expected = states(model, source[number, :length], tokens[number])
        agree(y[number], np.array(expected), atol=1e-9, rtol=1e-8)
        said = torch.stack([model.head(position, encoded[1])[number] for position in y.unbind(1)])
        agree(said, log_probs(model, expected), **FLOAT32)


def preset(kind: str, **options: Any) -> EncoderDecoder:
    """A small model of a published architecture."""
    chosen = TRANSLATE[kind].values
    sides = {side: {**chosen.get(side, {}), **options.pop(side, {})} for side in ("encoder", "decoder")}
    return large_weight_model(**{**chosen, "dropout": 0.0, "hidden_size": 8, **sides, **options}).double()


def sutskever_states(model: Any, source: Tensor, tokens: Tensor) -> list[Array]:
    """Four LSTMs read the reversed source; four others start from their final states."""
    x, stopped = words(model.encoder.embedder, source.flip(0)), []
    for layer in model.encoder.stack.layers:
        x, last = lstm_equations(layer.mixer, x, (np.zeros(8), np.zeros(8)))
        stopped.append(last)
    (inner,) = model.decoder.stack.layers
    y = words(model.decoder.embedder, tokens)
    for layer, started in zip(inner.mixer.layers, stopped, strict=True):
        y, _ = lstm_equations(layer.mixer.inner, y, started)
    return list(y)


def cho_states(model: Any, source: Tensor, tokens: Tensor) -> list[Array]:
    """h(0) = tanh(V c), and c is concatenated to every input."""
    (layer,) = model.encoder.stack.layers
    _, c = gru_before_equations(layer.mixer, words(model.encoder.embedder, source), np.zeros(8))
    _, inner = model.decoder.stack.layers
    (decoder,) = inner.mixer.layers
    x = np.array([np.concatenate([read, c]) for read in words(model.decoder.embedder, tokens)])
    return list(gru_before_equations(decoder.mixer.inner, x, np.tanh(linear(decoder.mixer.start, c)))[0])


def bahdanau_states(model: Any, source: Tensor, tokens: Tensor) -> list[Array]:
    """e(t, s) = v . tanh(U h(t-1) + W m(s)); the context enters the step from h(t-1) to h(t)."""
    memory, summary = words(model.encoder.embedder, source), np.zeros(8)
    for layer in model.encoder.stack.layers:
        ahead, first = gru_before_equations(layer.mixer.forward_mixer, memory, np.zeros(4))
        back, second = gru_before_equations(layer.mixer.backward_mixer, memory[::-1], np.zeros(4))
        memory, summary = np.concatenate([ahead, back[::-1]], axis=1), np.concatenate([first, second])
    feed = model.decoder.stack.layers[0].mixer
    look, parts, results = feed.attention.attention, [layer.mixer for layer in feed.inner.layers], []
    states = [np.tanh(linear(part.start, summary)) for part in parts]
    for read in words(model.decoder.embedder, tokens):
        q = linear(look.to_q, states[-1])  # the top layer is the query, also before the first step
        scores = np.array([array(look.attend.weight) @ np.tanh(q + linear(look.to_k, m)) for m in memory])
        h = np.concatenate([read, softmax(scores) @ memory])
        for height, part in enumerate(parts):
            h = states[height] = gru_before_equations(part.inner, h[None], states[height])[1]
        results.append(h)
    return results


def luong_states(model: Any, source: Tensor, tokens: Tensor) -> list[Array]:
    """h~(t) = tanh(W [c(t); h(t)]) with the score h . W m; input feeding into the next step."""
    memory, states = words(model.encoder.embedder, source), []
    for layer in model.encoder.stack.layers:
        memory, last = lstm_equations(layer.mixer, memory, (np.zeros(8), np.zeros(8)))
        states.append(last)
    feed, fed, results = model.decoder.stack.layers[0].mixer, np.zeros(8), []
    read_out = feed.attention.output
    for read in words(model.decoder.embedder, tokens):
        h = np.concatenate([read, fed])
        for height, layer in enumerate(feed.inner.layers):
            (h,), states[height] = lstm_equations(layer.mixer.inner, h[None], states[height])
        scores = np.array([h @ linear(read_out.attention.to_k, m) for m in memory])
        fed = np.tanh(linear(read_out.join, np.concatenate([softmax(scores) @ memory, h])))
        results.append(fed)
    return results


PAPERS = {"sutskever": sutskever_states, "cho": cho_states, "bahdanau": bahdanau_states, "luong": luong_states}


@pytest.mark.parametrize("kind", PAPERS)
def test_published_models_match_the_equations_of_their_papers(kind):
    agrees(preset(kind), PAPERS[kind])


def test_attention_before_the_step_queries_with_the_top_layer():
    agrees(preset("bahdanau", num_layers=2), bahdanau_states)


@pytest.mark.parametrize("score", ATTENTION_SCORES)
def test_attention_after_the_step_matches_its_equation(score):
    """Without input feeding: the decoder runs over the whole target, then each state attends."""

    def scored(look: SourceAttention, h: Array, m: Array) -> float:
        match score:
            case "dot":
                return float(h @ m)
            case "scaled-dot":
                return float(h @ m) / 8**0.5
            case "multiplicative":
                return float(h @ linear(look.to_k, m))
        return float(array(look.attend.weight) @ np.tanh(linear(look.to_q, h) + linear(look.to_k, m)))

    def states(model: Any, source: Tensor, tokens: Tensor) -> list[Array]:
        zeros = (np.zeros(8), np.zeros(8))
        (layer,) = model.encoder.stack.layers
        memory, last = lstm_equations(layer.mixer, words(model.encoder.embedder, source), zeros)
        inner, read_out = model.decoder.stack.layers
        (decoder,) = inner.mixer.layers
        hidden, _ = lstm_equations(decoder.mixer.inner, words(model.decoder.embedder, tokens), last)
        look, results = read_out.mixer.attention, []
        for h in hidden:
            weights = softmax(np.array([scored(look, h, m) for m in memory]))
            results.append(np.tanh(linear(read_out.mixer.join, np.concatenate([weights @ memory, h]))))
        return results

    agrees(large_weight_model(layer_type="lstm", attention=score, encoder={"bidirectional": False}).double(), states)


@pytest.mark.parametrize("chunk_elements", [1, 100, 1 << 22])
def test_chunked_additive_scores_equal_those_of_all_queries_at_once(monkeypatch, chunk_elements):
    part, x = seeded(lambda: SourceAttention(6, score="additive", memory_size=5)), random(2, 7, 6)
    seen = part.init_state(random_memory(4, 2, hidden_size=5))
    expected = part(x, seen)
    monkeypatch.setattr(cross, "MAX_ELEMENTS", chunk_elements)
    torch.testing.assert_close(part(x, seen), expected, atol=0, rtol=1e-12)


# ---- losses


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
def test_label_smoothing_equals_a_dense_target_distribution(smoothing):
    model, (source, keep), tokens = preset("luong"), sources(6, 4), targets(2, 5)
    state = model.encode(source, keep)
    log = model.head.head(model(tokens[:, :-1], state)[0])
    dense = torch.full((2, 4, VOCAB_SIZE), smoothing / VOCAB_SIZE).scatter_add(
        2, tokens[:, 1:, None], torch.full((2, 4, 1), 1.0 - smoothing)
    )
    expected = -(dense * log).sum(-1)
    nats, _ = model.loss(tokens[:, :-1], tokens[:, 1:], state, smoothing)
    torch.testing.assert_close(nats, expected, **FLOAT32)
    # padding is excluded from sum and count
    target_keep = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    task = Seq2SeqObjective(valid=None, tokenizer=None, device=torch.device("cpu"), smoothing=smoothing)  # type: ignore[arg-type]
    loss = task.loss(model, PairBatch(source, keep, tokens, target_keep), None)
    torch.testing.assert_close(loss.total, expected[0].sum() + expected[1, :2].sum(), **FLOAT32)
    assert (loss.count.item(), loss.carry) == (6, None)
    assert task.validate(model) is None


def copying_part() -> PointerGeneratorOutput:
    torch.manual_seed(0)
    return enlarge_weights(PointerGeneratorOutput(LMHead(6, 8), 6, memory_size=5)).double()  # type: ignore[return-value]


SOURCE = torch.tensor([[3, 4, 4, 2], [5, 2, 0, 0]])  # 4 occurs twice, and its weights add up


def mixture(part: PointerGeneratorOutput, x: Array, memory: Any) -> Array:
    """(B, T, D) -> probabilities (B, T, V), entry by entry."""
    actual = np.zeros((2, x.shape[1], 8))
    for b, length in enumerate((4, 2)):
        for t, position in enumerate(x[b]):
            gate = sigmoid(linear(part.gate, position))[0]
            actual[b, t] = gate * softmax(array(part.head.weight) @ position + array(part.head.bias))
            keys = [linear(part.to_k, m) for m in array(memory.values[b, :length])]
            shares = softmax(np.array([position @ key for key in keys]) / 6**0.5)
            for s, share in enumerate(shares):
                actual[b, t, SOURCE[b, s]] += (1 - gate) * share
    return actual


def test_copy_mechanism_equals_the_explicit_mixture():
    part, memory, x = copying_part(), random_memory(4, 2, hidden_size=5), random(2, 3, 6)
    expected, seen = mixture(part, array(x), memory), part.init_state(memory, SOURCE)
    for index in range(3):
        agree(part(x[:, index], seen), np.log(expected[:, index]), **FLOAT32)
    targets = torch.tensor([[4, 3, 7], [5, 0, 2]])  # 7 and 0 are generated only
    nats = part.loss(x, targets, seen)
    agree(nats, -np.log(np.take_along_axis(expected, targets.numpy()[..., None], axis=2)[..., 0]), **FLOAT32)


def test_gradient_of_the_copy_mechanism_equals_that_of_the_explicit_mixture():
    part, memory, x = copying_part(), random_memory(4, 2, hidden_size=5), random(2, 3, 6).requires_grad_()
    expected = torch.tensor([[4, 3, 7], [5, 0, 2]])
    part.loss(x, expected, part.init_state(memory, SOURCE)).sum().backward()
    actual, x.grad = x.grad, None
    gate = part.gate(x).sigmoid()
    scores = (x @ part.to_k(memory.values).transpose(1, 2) / 6**0.5).masked_fill(~memory.token_mask[:, None], -torch.inf)
    vocabulary = (x @ part.head.weight.T + part.head.bias).softmax(-1)
    copied = torch.zeros_like(vocabulary).scatter_add(2, SOURCE[:, None].expand(-1, 3, -1), scores.softmax(-1))
    (gate * vocabulary + (1 - gate) * copied).gather(2, expected[..., None]).log().sum().neg().backward()
    torch.testing.assert_close(actual, x.grad, atol=1e-5, rtol=1e-4)


# ---- how models begin


def test_shared_and_tied_embeddings_are_the_same_parameter():
    model = large_weight_model(layer_type="gru", share_embeddings=True, tie_embeddings=True, attention="dot")
    assert model.encoder.embedder.embedding is model.decoder.embedder.embedding
    assert model.head.head.weight is model.decoder.embedder.embedding.weight
    apart = large_weight_model(layer_type="gru", attention="dot")
    assert apart.encoder.embedder.embedding is not apart.decoder.embedder.embedding
    assert apart.head.head.weight is not apart.decoder.embedder.embedding.weight


def test_encoder_equals_the_stack_of_its_config():
    table = seq2seq_config(layer_type="gru", num_layers=3, skip_connection="residual", norm="rmsnorm").encoder
    torch.manual_seed(0)
    names = {name: weight.shape for name, weight in stack(table, context_length=16).named_parameters()}
    model = large_weight_model(layer_type="gru", num_layers=3, skip_connection="residual", norm="rmsnorm")
    assert {name: weight.shape for name, weight in model.encoder.stack.named_parameters()} == names
