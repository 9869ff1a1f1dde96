"""CRF and linear heads against enumeration of all tag sequences."""

from __future__ import annotations

import math
import time
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from weft.nn.crf import CRF, LinearTagHead

DIM = 5
HEADS = {"linear": LinearTagHead, "crf": CRF}
BIO = torch.tensor(  # O, B, I and the edges of a sentence: I follows B and I only
    [[1, 1, 0, 1], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 1]], dtype=torch.bool
)
ALTERNATING = torch.tensor([[0, 1, 0], [1, 0, 1], [1, 0, 1]], dtype=torch.bool)  # 0 first, 1 last: even lengths only


def shaken(head: torch.nn.Module) -> torch.nn.Module:
    """Weights of size 1 in double precision, so that moves matter."""
    generator = torch.Generator().manual_seed(1)
    head.double()
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.double))
    return head


def ragged(lengths: list[int], *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """y (B, T, D) and keep (B, T)."""
    width = max(lengths)
    y = torch.randn(len(lengths), width, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    return y, torch.arange(width) < torch.tensor(lengths)[:, None]


def every_sequence(head: CRF, y: Tensor) -> dict[tuple[int, ...], float]:
    """The score of each allowed sequence of tags of one sentence (T, D), term by term."""
    scores, labels = head.emissions(y).tolist(), len(head.start)
    moves, start, end = head.transitions.tolist(), head.start.tolist(), head.end.tolist()
    found = {}
    for tags in product(range(labels), repeat=len(y)):
        edges = [(labels, tags[0]), *pairwise(tags), (tags[-1], labels)]
        if head.allowed_transitions is not None and not all(bool(head.allowed_transitions[a, b]) for a, b in edges):
            continue
        moved = sum(moves[a][b] for a, b in edges[1:-1])
        found[tags] = start[tags[0]] + moved + end[tags[-1]] + sum(scores[t][tag] for t, tag in enumerate(tags))
    return found


def log_sum(values) -> float:
    return math.log(sum(math.exp(value) for value in values))


CASES = {
    "one tag": (1, None, [3, 1]),
    "two tags": (2, None, [4, 2, 1, 3]),
    "three tags": (3, None, [4, 1, 3, 2]),
    "BIO": (3, BIO, [4, 1, 2, 3]),
    "alternating": (2, ALTERNATING, [4, 2]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_crf_equals_enumeration(case):
    labels, allowed, lengths = CASES[case]
    head = shaken(CRF(DIM, labels, allowed_transitions=allowed))
    y, keep = ragged(lengths)
    decoded, marginals = head.decode(y, keep), head.marginals(y, keep)
    for row, length in enumerate(lengths):
        scores = every_sequence(head, y[row, :length])
        partition = log_sum(scores.values())
        for tags, score in scores.items():
            wanted = torch.full((1, keep.size(1)), -1)
            wanted[0, :length] = torch.tensor(tags)
            nats = head.loss(y[row : row + 1], wanted, keep[row : row + 1])
            assert nats.item() == pytest.approx(partition - score, abs=1e-9)
        assert tuple(decoded[row, :length].tolist()) == max(scores, key=scores.get)
        for at, tag in product(range(length), range(labels)):
            ways = [math.exp(score - partition) for tags, score in scores.items() if tags[at] == tag]
            assert marginals[row, at, tag].item() == pytest.approx(sum(ways), abs=1e-9)
    assert not decoded[~keep].any() and not marginals[~keep].any()


def test_the_probabilities_of_all_allowed_sequences_add_up_to_one():
    head = shaken(CRF(DIM, 3, allowed_transitions=BIO))
    y, _ = ragged([4])
    tags = torch.tensor(list(every_sequence(head, y[0])))
    assert 0 < len(tags) < 3**4
    nats = head.loss(y.expand(len(tags), -1, -1), tags)
    assert nats.neg().exp().sum().item() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(
    "head", [LinearTagHead(DIM, 3), CRF(DIM, 3), CRF(DIM, 3, allowed_transitions=BIO)], ids=["linear", "crf", "BIO"]
)
def test_gradients_equal_numerical_ones(head):
    head = shaken(head)
    y, keep = ragged([3, 1, 2])
    tags = torch.tensor([[1, 2, 0], [0, 0, 0], [1, 1, 0]])

    def loss(y: Tensor, *weights: Tensor) -> Tensor:
        named = dict(zip([name for name, _ in head.named_parameters()], weights, strict=True))
        return torch.func.functional_call(Loss(head), {f"head.{n}": w for n, w in named.items()}, (y, tags, keep))

    assert torch.autograd.gradcheck(loss, (y.requires_grad_(), *head.parameters()))


class Loss(torch.nn.Module):
    """A head's loss as a forward, which is what functional_call calls."""

    def __init__(self, head: torch.nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, y: Tensor, tags: Tensor, token_mask: Tensor) -> Tensor:
        return self.head.loss(y, tags, token_mask)


def test_the_gradient_of_the_scores_is_marginals_minus_gold_tags():
    head = shaken(CRF(DIM, 3, allowed_transitions=BIO))
    y, keep = ragged([4, 2])
    tags = torch.tensor([[1, 2, 0, 1], [0, 1, 0, 0]])
    scores = head.emissions(y).detach().requires_grad_()
    head.emissions = torch.nn.Identity()
    head.loss(scores, tags, keep).sum().backward()
    gold = torch.nn.functional.one_hot(tags, 3) * keep[..., None]
    torch.testing.assert_close(scores.grad, head.marginals(scores, keep).detach() - gold, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", HEADS)
def test_padding_changes_nothing_and_rows_are_independent(name):
    head = shaken(HEADS[name](DIM, 3))
    lengths = [5, 2, 1, 4]
    y, keep = ragged(lengths)
    tags = torch.randint(3, keep.shape, generator=torch.Generator().manual_seed(2))
    wild = y.masked_fill(~keep[..., None], 1e6)
    for row, length in enumerate(lengths):
        alone = y[row : row + 1, :length]
        nats = head.loss(wild, tags.masked_fill(~keep, -1), keep)
        torch.testing.assert_close(nats[row : row + 1], head.loss(alone, tags[row : row + 1, :length]))
        torch.testing.assert_close(head.marginals(wild, keep)[row, :length], head.marginals(alone)[0])
        assert head.decode(wild, keep)[row, :length].tolist() == head.decode(alone)[0].tolist()
    assert not head.decode(wild, keep)[~keep].any() and not head.marginals(wild, keep)[~keep].any()


@pytest.mark.parametrize("name", HEADS)
def test_an_empty_sentence_has_zero_loss(name):
    head = shaken(HEADS[name](DIM, 3))
    y, keep = ragged([2, 0])
    nats = head.loss(y, torch.zeros_like(keep, dtype=torch.long), keep)
    nats.sum().backward()
    assert nats[1].item() == 0 and nats[0].item() > 0
    assert all(weight.grad.isfinite().all() for weight in head.parameters())


def test_an_untrained_crf_equals_the_linear_head():
    linear, chain = LinearTagHead(DIM, 4).double(), CRF(DIM, 4).double()
    chain.emissions.load_state_dict(linear.emissions.state_dict())
    y, keep = ragged([4, 2, 3])
    tags = torch.randint(4, keep.shape, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(chain.loss(y, tags, keep), linear.loss(y, tags, keep))
    torch.testing.assert_close(chain.marginals(y, keep), linear.marginals(y, keep))
    assert torch.equal(chain.decode(y, keep), linear.decode(y, keep))


def test_a_constant_added_to_all_scores_changes_nothing():
    """A constant added to a position's scores, or to all moves from the start, is normalised away."""
    head = shaken(CRF(DIM, 3))
    y, keep = ragged([4, 3])
    tags = torch.randint(3, keep.shape, generator=torch.Generator().manual_seed(2))
    before, best = head.loss(y, tags, keep), head.decode(y, keep)
    with torch.no_grad():
        head.emissions.bias.add_(3.0)
        head.start.sub_(2.0)
        head.transitions.add_(5.0)
    torch.testing.assert_close(head.loss(y, tags, keep), before)
    assert torch.equal(head.decode(y, keep), best)


def test_long_sentences_neither_overflow_nor_underflow():
    head = CRF(DIM, 6)
    with torch.no_grad():
        head.emissions.weight.normal_(std=30.0, generator=torch.Generator().manual_seed(0))
    y = torch.randn(2, 400, DIM, generator=torch.Generator().manual_seed(0))
    tags = head.decode(y)
    nats = head.loss(y, tags)
    nats.sum().backward()
    assert ((nats >= -0.5) & (nats < 400)).all()  # the best sequence of sums near 30,000, in single precision
    assert all(weight.grad.isfinite().all() for weight in head.parameters())
    torch.testing.assert_close(head.marginals(y).sum(-1), torch.ones(2, 400))


def test_a_forbidden_transition_is_never_decoded_and_has_a_high_loss():
    head = shaken(CRF(DIM, 3, allowed_transitions=BIO)).float()
    with torch.no_grad():
        head.transitions[0, 2] = head.start[2] = 50.0  # what was learned does not matter: it is forbidden
    y = torch.randn(64, 7, DIM, generator=torch.Generator().manual_seed(0))
    tags = head.decode(y)
    edge = torch.full((64, 1), 3)
    path = torch.cat([edge, tags, edge], 1)
    assert BIO[path[:, :-1], path[:, 1:]].all()
    loss = head.loss(y[:1, :2], torch.tensor([[0, 2]]))
    assert 9_000 < loss.item() < 11_000
    loss.sum().backward()
    assert all(weight.grad.isfinite().all() for weight in head.parameters())
    assert head.transitions.grad[0, 2] == 0


@pytest.mark.parametrize("name", HEADS)
def test_losses_under_autocast_are_float32(name):
    head = HEADS[name](DIM, 3)
    y, keep = ragged([4, 2])
    tags = torch.zeros_like(keep, dtype=torch.long)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, marginals = head.loss(y.float(), tags, keep), head.marginals(y.float(), keep)
    assert loss.dtype == marginals.dtype == torch.float32
    torch.testing.assert_close(loss, head.loss(y.float(), tags, keep), rtol=0.02, atol=0.02)


def test_everything_works_in_inference_mode():
    head = CRF(DIM, 3, allowed_transitions=BIO)
    y, keep = ragged([4, 2])
    with torch.inference_mode():
        assert head.decode(y.float(), keep).shape == (2, 4)
        torch.testing.assert_close(head.marginals(y.float(), keep).sum(-1), keep.float())


def test_allowed_transitions_are_not_parameters_and_match_the_labels():
    assert sorted(CRF(DIM, 3, allowed_transitions=BIO).state_dict()) == [
        "emissions.bias",
        "emissions.weight",
        "end",
        "start",
        "transitions",
    ]
    with pytest.raises(ValueError) as caught:
        CRF(DIM, 4, allowed_transitions=BIO)
    assert str(caught.value) == "CRF: allowed_transitions must be 5x5, got (4, 4)"


def test_a_crf_learns_tags_that_depend_on_their_neighbors():
    """Tags that alternate over words that say nothing: only moves can tell."""
    torch.manual_seed(0)
    y, tags = torch.zeros(8, 6, DIM), torch.arange(6).remainder(2).expand(8, -1)
    found = {}
    for name, build in HEADS.items():
        head = build(DIM, 2)
        optimizer = torch.optim.Adam(head.parameters(), lr=0.3)
        for _ in range(60):
            optimizer.zero_grad()
            loss = head.loss(y, tags).mean()
            loss.backward()
            optimizer.step()
        found[name] = loss.item(), (head.decode(y) == tags).all().item()
    assert found["crf"][0] < 0.05 and found["crf"][1]
    assert found["linear"][0] == pytest.approx(6 * math.log(2), rel=0.01) and not found["linear"][1]


def test_training_with_a_crf_is_at_most_half_slower():
    """Under a small tagger: two layers of a two-way LSTM, 32 sentences of 25 words, 20 tags."""
    torch.manual_seed(0)
    rnn = torch.nn.LSTM(256, 128, 2, batch_first=True, bidirectional=True)
    x, tags = torch.randn(32, 25, 256), torch.randint(20, (32, 25))
    keep = torch.arange(25) < torch.randint(8, 26, (32, 1))
    heads, seconds = {name: build(256, 20) for name, build in HEADS.items()}, {name: [] for name in HEADS}
    for name in list(HEADS) * 8:  # in turns, so that a busy machine is busy for both
        began = time.process_time()
        heads[name].loss(rnn(x)[0], tags, keep).sum().backward()
        seconds[name].append(time.process_time() - began)
    assert min(seconds["crf"]) < 1.5 * min(seconds["linear"])
