"""Contracts of encoders with a head: classifiers with every mixer and pooling, taggers with every mixer, head and character
encoder."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toy_models import enlarge_weights

from weft.config import parse_config
from weft.data.batching import map_tensors
from weft.data.bucketing import ExampleBatchSampler
from weft.data.corpus import Corpus
from weft.data.tag_batching import Sentences, TagBatch
from weft.data.text_batching import LabeledTexts, TextBatch
from weft.errors import ConfigError
from weft.models.classifier import Classifier, LabelHead, classifier
from weft.models.encoder import EncoderInput
from weft.models.encoder_config import TAG_HEADS, CharEncoderConfig, ClassifierConfig, TaggerConfig
from weft.models.tagger import Tagger, TaggerInput, tagger
from weft.nn.crf import CRF
from weft.nn.mixers import MIXERS
from weft.nn.pooling import POOLINGS, BidirectionalLastPooling, FirstPooling, LastPooling
from weft.tasks.classification.objective import ClassificationObjective
from weft.tasks.tagging.objective import TaggingObjective
from weft.text.labels import LabelVocabulary
from weft.training.config import TrainConfig
from weft.training.device import pick_device
from weft.training.loop import DeviceConfig
from weft.training.loss_module import LossModule
from weft.training.memory import batch_bytes, check_batch

WORDS, LETTERS, LABELS, LONGEST, WIDTH = 30, 12, 4, 24, 8
CPU = pick_device("cpu")

every_mixer = pytest.mark.parametrize("mixer", MIXERS)
every_pool = pytest.mark.parametrize("pool", POOLINGS)


def make_classifier(*, several: bool = False, segments: bool = False, **options: Any) -> Classifier:
    torch.manual_seed(0)
    table = parse_config(
        ClassifierConfig, {"layer_type": "lstm", "num_layers": 2, "hidden_size": WIDTH, **options}, prefix="model"
    ).with_defaults()
    model = classifier(table, vocab_size=WORDS, num_labels=LABELS, max_positions=LONGEST, segments=segments, multilabel=several)
    enlarge_weights(model)
    return model.eval()


def texts(rows: int = 6, *, segments: bool = False, seed: int = 0) -> EncoderInput:
    """Random rows of 3 to LONGEST tokens; the first is the longest."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, LONGEST, (rows,), generator=random)
    lengths[0] = LONGEST
    tokens = torch.randint(3, WORDS, (rows, LONGEST), generator=random)
    keep = torch.arange(LONGEST) < lengths[:, None]
    tokens[:, 0] = 1
    second = (torch.arange(LONGEST) >= lengths[:, None] // 2).long() if segments else None
    return EncoderInput(tokens * keep, keep, None if second is None else second * keep)


def alone(batch: Any, at: int, size: int) -> Any:
    """One row without its padding."""
    return map_tensors(batch, lambda part: part[at : at + 1, :size])


# ---- classifiers


@every_pool
@every_mixer
def test_a_batch_of_texts_equals_single_texts(mixer, pool):
    model, batch = make_classifier(layer_type=mixer, pooling=pool, segments=True), texts(32, segments=True)
    with torch.no_grad():
        together = model(batch)
        apart = torch.cat([model(alone(batch, at, int(size))) for at, size in enumerate(batch.token_mask.sum(1))])
    assert together.shape == (32, LABELS)
    assert together.dtype == torch.float32
    torch.testing.assert_close(together, apart, atol=1e-4, rtol=1e-4)
    assert together.std(0).min() > 1e-3  # texts do matter


@every_pool
@every_mixer
def test_padding_and_other_rows_change_nothing(mixer, pool):
    model, batch = make_classifier(layer_type=mixer, pooling=pool), texts()
    other = torch.where(batch.token_mask, batch.tokens, 7)
    other[0] = 5
    with torch.no_grad():
        torch.testing.assert_close(model(batch._replace(tokens=other))[1:], model(batch)[1:], atol=1e-6, rtol=1e-6)


@every_pool
@every_mixer
def test_every_parameter_of_a_classifier_gets_a_gradient(mixer, pool):
    model, batch = (
        make_classifier(layer_type=mixer, pooling=pool, segments=True, embedding_norm=True),
        texts(segments=True),
    )
    model.head.loss(model(batch), torch.arange(6)[:, None] % LABELS).sum().backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None and weight.grad.isfinite().all(), name
        # the first token has nothing before it: what the way ahead remembers ends there
        past = pool == "first" and name.startswith("encoder.stack.layers.1.mixer.forward_mixer")
        assert weight.grad.abs().max() > 0 or past, name


@pytest.mark.parametrize("several", [False, True])
@every_mixer
def test_a_training_step_under_bfloat16(mixer, several):
    model = make_classifier(layer_type=mixer, pooling="attention", several=several, segments=True).train()
    text = texts(segments=True)
    labels = torch.ones(6, LABELS, dtype=torch.long) if several else torch.zeros(6, 1, dtype=torch.long)
    task = ClassificationObjective(valid=None, device=CPU, weights=torch.ones(LABELS), smoothing=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        loss = task.loss(model, TextBatch(text.tokens, text.token_mask, text.segments, labels), None)
    loss.total.backward()
    assert (loss.total.dtype, loss.count.item(), loss.carry) == (torch.float32, 6, None)
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


@every_mixer
def test_segments_distinguish_the_texts_of_a_pair(mixer):
    model, batch = make_classifier(layer_type=mixer, segments=True), texts(segments=True)
    with torch.no_grad():
        assert not torch.allclose(model(batch), model(batch._replace(segments=torch.zeros_like(batch.tokens))), atol=1e-3)
        # a text alone is a first text
        torch.testing.assert_close(
            model(batch._replace(segments=None)), model(batch._replace(segments=torch.zeros_like(batch.tokens)))
        )


@pytest.mark.parametrize("mixer", ["lstm", "attention", "conv"])
def test_last_pooling_of_a_unidirectional_stack_is_the_last_token(mixer):
    model, batch = make_classifier(layer_type=mixer, pooling="last", bidirectional=False), texts()
    with torch.no_grad():
        y, keep = model.encoder(batch)
        wanted = y[torch.arange(6), keep.sum(1) - 1]
        torch.testing.assert_close(model.embed(batch), wanted)
        torch.testing.assert_close(model(batch), model.head(wanted))


def test_last_pooling_of_a_bidirectional_stack_takes_the_end_of_each_direction():
    kinds = [type(make_classifier(layer_type=mixer, pooling="last").pooling) for mixer in ("lstm", "conv", "attention")]
    assert kinds == [BidirectionalLastPooling, LastPooling, LastPooling]  # a window has no direction
    y, keep = torch.randn(2, 5, 6), torch.arange(5) < torch.tensor([[5], [3]])
    wanted = torch.cat([y[[0, 1], [4, 2], :3], y[:, 0, 3:]], dim=1)
    assert torch.equal(BidirectionalLastPooling()(y, keep), wanted)
    assert torch.equal(BidirectionalLastPooling()(y)[0], wanted[0])
    y[1, 3:] = float("nan")
    assert torch.equal(BidirectionalLastPooling()(y, keep), wanted)
    assert BidirectionalLastPooling()(y, torch.zeros_like(keep)).eq(0).all()
    model, batch = make_classifier(layer_type="lstm", num_layers=1, pooling="last"), texts()
    read = [map_tensors(batch, lambda part, at=at: torch.where(torch.arange(LONGEST) == at, 3, part)) for at in (1, 2)]
    with torch.no_grad():  # all tokens matter, the first and the second too
        assert all(not torch.allclose(model(batch), model(batch._replace(tokens=other.tokens))) for other in read)


def test_first_pooling_of_a_unidirectional_stack_is_refused():
    with pytest.raises(ConfigError) as caught:
        make_classifier(pooling="first", bidirectional=False)
    assert str(caught.value) == "model.pooling: 'first' requires bidirectional = true; use 'last'"
    assert isinstance(make_classifier(pooling="first").pooling, FirstPooling)


def test_an_embedding_of_another_size_is_normalized_and_projected_to_hidden_size():
    model = make_classifier(embedding_dim=6, embedding_norm=True, skip_connection="residual", norm="rmsnorm")
    assert model.encoder.embedder.embedding.weight.shape == (WORDS, 6)
    assert isinstance(model.encoder.stack.input_proj, nn.RMSNorm) and model.encoder.stack.input_proj.normalized_shape == (6,)
    assert isinstance(make_classifier(embedding_norm=True).encoder.stack.input_proj, nn.LayerNorm)
    assert isinstance(make_classifier().encoder.stack.input_proj, nn.Identity)
    assert model(texts()).shape == (6, LABELS)


@every_mixer
def test_matrix_parameters_are_those_inside_the_stack(mixer):
    for model in (
        make_classifier(layer_type=mixer, position_encoding="learned"),
        make_tagger(layer_type=mixer, position_encoding="learned"),
    ):
        weights = dict(model.named_parameters())
        found = model.muon_parameters()
        assert found and all(weights[name].dim() == 2 and name.startswith("encoder.stack.layers.") for name in found)
        inside = [name for name in weights if name.startswith("encoder.stack.layers.") and weights[name].dim() == 2]
        assert found == set(inside)
        assert model.max_positions == LONGEST
    assert make_classifier(layer_type=mixer).max_positions is None


# ---- heads


def test_the_loss_is_cross_entropy_with_weights_and_smoothing():
    head, scores, labels = (
        LabelHead(WIDTH, LABELS, multilabel=False),
        torch.randn(5, LABELS),
        torch.tensor([[0], [3], [1], [1], [2]]),
    )
    weights = torch.tensor([0.5, 2.0, 1.0, 0.25])
    for smoothing, given in product((0.0, 0.2), (None, weights)):
        wanted = nn.CrossEntropyLoss(given, reduction="none", label_smoothing=smoothing)(scores, labels[:, 0])
        torch.testing.assert_close(head.loss(scores, labels, weights=given, label_smoothing=smoothing), wanted)
    by_hand = -scores.log_softmax(1)[torch.arange(5), labels[:, 0]] * weights[labels[:, 0]]
    torch.testing.assert_close(head.loss(scores, labels, weights=weights), by_hand)


def test_the_multilabel_loss_is_the_sum_over_labels():
    head, scores = LabelHead(WIDTH, LABELS, multilabel=True), torch.randn(3, LABELS)
    labels, weights = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]]), torch.tensor([0.5, 2.0, 1.0, 0.25])
    each = -torch.where(labels == 1, scores.sigmoid(), 1 - scores.sigmoid()).log()
    torch.testing.assert_close(head.loss(scores, labels), each.sum(1))
    torch.testing.assert_close(head.loss(scores, labels, weights=weights), (each * weights).sum(1))
    # smoothed, a label is there with 0.9 and 0.1
    other = -torch.where(labels == 0, scores.sigmoid(), 1 - scores.sigmoid()).log()
    torch.testing.assert_close(head.loss(scores, labels, label_smoothing=0.2), (0.9 * each + 0.1 * other).sum(1))


def test_temperature_divides_logits_and_is_not_a_parameter():
    scores = torch.tensor([[2.0, 0.0, -1.0, 4.0]])
    one, several = (LabelHead(WIDTH, LABELS, multilabel=kind) for kind in (False, True))
    for head in (one, several):
        assert head.temperature.item() == 1.0
        head.temperature.fill_(2.0)
        assert "temperature" in head.state_dict() and "temperature" not in dict(head.named_parameters())
    torch.testing.assert_close(one.log_probs(scores), (scores / 2).log_softmax(1))
    torch.testing.assert_close(several.log_probs(scores), F.logsigmoid(scores / 2))
    assert torch.equal(
        one.loss(scores, torch.tensor([[3]])), LabelHead(WIDTH, LABELS, multilabel=False).loss(scores, torch.tensor([[3]]))
    )


# ---- taggers


def make_tagger(*, spelling: dict[str, Any] | None = None, allowed: Tensor | None = None, **options: Any) -> Tagger:
    torch.manual_seed(0)
    given = {"layer_type": "lstm", "num_layers": 1, "hidden_size": WIDTH, **options} | (
        {} if spelling is None else {"spelling": spelling}
    )
    table = parse_config(TaggerConfig, given, prefix="model").with_defaults()
    sizes = {"vocab_size": WORDS, "char_vocab_size": LETTERS, "num_tags": LABELS, "max_positions": LONGEST}
    model = tagger(table, **sizes, allowed_transitions=allowed)
    enlarge_weights(model)
    return model.eval()


def make_sentences(count: int = 8, *, letters: bool = True, seed: int = 0) -> Sentences:
    """Sentences of 1 to 8 words of 1 to 3 tokens; none has more than LONGEST tokens."""
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 8, count)
    sizes[0] = 7

    def corpus(name: str, size: int, most: int) -> Corpus:
        words = [[*random.integers(3, size, random.integers(1, most)).tolist(), 2] for _ in range(sizes.sum())]
        starts = np.concatenate([[0], np.cumsum([len(word) for word in words])])
        return Corpus(name, np.array([token for word in words for token in word]), starts, np.zeros((1, 4), np.int64), "")

    spelled = corpus("train.letters", LETTERS, 6) if letters else None
    edges = np.concatenate([[0], np.cumsum(sizes)])
    return Sentences(corpus("train.words", WORDS, 4), spelled, edges, random.integers(0, LABELS, sizes.sum()))


def read(batch: TagBatch) -> TaggerInput:
    return TaggerInput(*batch[:-1])


SPELLING: dict[str, dict[str, Any] | None] = {
    "words": None,
    "lstm-max": {"hidden_size": 6, "embedding_dim": 4},
    "lstm-last": {"hidden_size": 6, "embedding_dim": 4, "pooling": "last"},
    "window-mean": {"hidden_size": 6, "layer_type": "conv", "kernel_size": 3, "pooling": "mean"},
}
every_spelling = pytest.mark.parametrize("spelling", SPELLING)


def tagger_of(mixer: str, spelling: str, head: str = "crf") -> Tagger:
    beside = SPELLING[spelling]
    # attention reads vectors of its own width
    embedding = {} if mixer == "attention" else {"embedding_dim": 5}
    return make_tagger(layer_type=mixer, head=head, char_encoder=beside, **embedding)


COMBINED = list(product(MIXERS, SPELLING))
every_tagger = pytest.mark.parametrize(("mixer", "spelling"), COMBINED, ids=map("-".join, COMBINED))


@every_tagger
def test_a_batch_of_sentences_equals_single_sentences(mixer, spelling):
    data, model = make_sentences(12, letters=SPELLING[spelling] is not None), tagger_of(mixer, spelling)
    batch = data.batch(np.arange(12))
    with torch.no_grad():
        y, nats, best = model(read(batch)), model.loss(read(batch), batch.tags), model.tag(read(batch))
        for at in range(12):
            one = data.batch(np.array([at]))
            words = one.word_mask.size(1)
            torch.testing.assert_close(y[at : at + 1, :words], model(read(one)), atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(nats[at : at + 1], model.loss(read(one), one.tags), atol=1e-4, rtol=1e-4)
            assert torch.equal(best[at : at + 1, :words], model.tag(read(one)))
            assert best[at, words:].eq(0).all()


@every_tagger
def test_padding_and_other_sentences_change_nothing(mixer, spelling):
    data, model = make_sentences(letters=SPELLING[spelling] is not None), tagger_of(mixer, spelling)
    batch = data.batch(np.arange(8))
    other = batch._replace(
        tokens=torch.where(batch.token_mask, batch.tokens, 7), tags=torch.where(batch.word_mask, batch.tags, 2)
    )
    other.tokens[0, 1:-1] = 5
    if batch.char_ids is not None and batch.char_mask is not None:
        real = batch.char_mask & batch.word_mask[..., None]
        other = other._replace(char_ids=torch.where(real, batch.char_ids, 4))
    with torch.no_grad():
        here, there = (model.loss(read(one), one.tags)[1:] for one in (batch, other))
    torch.testing.assert_close(here, there, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("head", TAG_HEADS)
@every_tagger
def test_every_parameter_of_a_tagger_gets_a_gradient_also_under_bfloat16(mixer, spelling, head):
    data, model = make_sentences(letters=SPELLING[spelling] is not None), tagger_of(mixer, spelling, head)
    batch = data.batch(np.arange(8))
    task = TaggingObjective(valid=None, gold=[], is_known=[], labels=LabelVocabulary(("a", "b", "c", "d")), device=CPU)
    for precision in (torch.float32, torch.bfloat16):
        model.zero_grad()
        with DeviceConfig(CPU, precision).autocast():
            loss = task.loss(model, batch, None)
        loss.total.backward()
        assert (loss.total.dtype, loss.count.item()) == (torch.float32, len(data.tags))
        for name, weight in model.named_parameters():
            assert weight.grad is not None and weight.grad.isfinite().all(), name
            assert weight.grad.abs().max() > 0, name
    assert task.validate(model) is None


def test_the_first_token_of_a_word_represents_it():
    data, model = make_sentences(letters=False), tagger_of("lstm", "words")
    batch = data.batch(np.array([0]))
    with torch.no_grad():
        y, _ = model.encoder(read(batch))
        found = model(read(batch))
    starts = data.words.line_starts()
    place = 1
    for word in range(7):
        torch.testing.assert_close(found[0, word], y[0, place])
        place += int(starts[word + 1] - starts[word]) - 1
    assert place == batch.tokens.size(1) - 1


def test_character_features_are_concatenated_to_the_first_token_only():
    data, model = make_sentences(), tagger_of("lstm", "lstm-max")
    batch = data.batch(np.array([0, 1]))
    assert batch.char_ids is not None and batch.char_mask is not None
    front: Any = model.encoder.embedder
    with torch.no_grad():
        x, keep = front(read(batch))
        spelled = front.char_encoder(batch.char_ids, batch.char_mask)
    assert torch.equal(keep, batch.token_mask)
    assert x.shape == (*batch.tokens.shape, 5 + 6)
    assert torch.equal(x[..., :5], front.embedding(batch.tokens))
    for row, place in product(range(2), range(x.size(1))):
        word = [at for at in range(batch.word_mask.size(1)) if batch.word_mask[row, at] and batch.first[row, at] == place]
        wanted = spelled[row, word[0]] if word else torch.zeros(6)
        torch.testing.assert_close(x[row, place, 5:], wanted)


def test_character_features_are_added_in_attention_stacks():
    data, model = make_sentences(), tagger_of("attention", "lstm-max")
    batch = data.batch(np.array([0]))
    assert batch.char_ids is not None and batch.char_mask is not None
    front: Any = model.encoder.embedder
    with torch.no_grad():
        x, _ = front(read(batch))
        inside = front.char_encoder
        vectors = inside.pooling(*inside.encoder(EncoderInput(batch.char_ids[0], batch.char_mask[0])))
        wanted = front.embedding(batch.tokens)[0]
        wanted[batch.first[0]] += inside.out_proj(vectors)
    torch.testing.assert_close(x[0], wanted)


def test_character_features_do_not_depend_on_the_batch():
    data, model = make_sentences(), tagger_of("lstm", "lstm-last")
    batch = data.batch(np.arange(4))
    assert batch.char_ids is not None and batch.char_mask is not None
    front: Any = model.encoder.embedder
    with torch.no_grad():
        together = front.char_encoder(batch.char_ids, batch.char_mask)
        for row, word in batch.word_mask.nonzero().tolist():
            size = int(batch.char_mask[row, word].sum())
            alone = front.char_encoder(
                *(part[row : row + 1, word : word + 1, :size] for part in (batch.char_ids, batch.char_mask))
            )
            torch.testing.assert_close(together[row, word], alone[0, 0])
    assert isinstance(front.char_encoder.pooling, BidirectionalLastPooling)


def test_forbidden_transitions_are_never_predicted():
    allowed = torch.ones(LABELS + 1, LABELS + 1, dtype=torch.bool)
    allowed[:, 2] = False
    model, batch = make_tagger(allowed=allowed), make_sentences(letters=False).batch(np.arange(8))
    with torch.no_grad():
        model.head.emissions.bias[2] = 100.0
        assert 2 not in model.tag(read(batch)).unique().tolist()
        assert 2 in make_tagger(head="linear", allowed=allowed).tag(read(batch)).unique().tolist()
    assert isinstance(model.head, CRF)


def test_the_character_encoder_refuses_learned_positions():
    with pytest.raises(ConfigError) as caught:
        parse_config(CharEncoderConfig, {"position_encoding": "learned"}, prefix="model.char_encoder")
    assert str(caught.value) == (
        "model.char_encoder.position_encoding: 'learned' limits the length of a word; use 'sinusoidal'"
    )


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("layer_type", "lstn", "unknown value 'lstn'; did you mean 'lstm'?"),
        ("num_layers", 0, "must be at least 1, got 0"),
        ("num_layers", 513, "must be at most 512, got 513"),
        ("hidden_size", 0, "must be at least 1, got 0"),
        ("embedding_dim", -1, "must be at least 1, got -1"),
    ],
)
def test_character_encoder_options_are_validated_like_encoder_options(option, value, message):
    for table, at in ((CharEncoderConfig, "model.char_encoder"), (TaggerConfig, "model")):
        with pytest.raises(ConfigError) as caught:
            parse_config(table, {option: value}, prefix=at)
        assert str(caught.value).startswith(f"{at}.{option}: {message}")


# ---- memory


def learners() -> dict[str, tuple[LossModule, Any]]:
    lengths = np.random.default_rng(0).integers(1, 20, 40)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    corpus = Corpus("train.0", np.full(int(starts[-1]), 5), starts, np.zeros((1, 4), np.int64), "")
    labelled = LabeledTexts([corpus, corpus], np.zeros((40, 1), np.int64), np.zeros(40, np.int64), LONGEST)
    names = LabelVocabulary(("a", "b", "c", "d"))
    tagging = TaggingObjective(valid=None, gold=[], is_known=[], labels=names, device=CPU)
    return {
        "classifier": (
            LossModule(ClassificationObjective(valid=None, device=CPU), make_classifier(segments=True)),
            ExampleBatchSampler(labelled, batch_tokens=100, seed=0),
        ),
        "several labels": (
            LossModule(ClassificationObjective(valid=None, device=CPU, multilabel=True), make_classifier(segments=True, several=True)),
            ExampleBatchSampler(replace(labelled, labels=np.zeros((40, LABELS), np.int64)), batch_tokens=100, seed=0),
        ),
        "tagger": (
            LossModule(tagging, make_tagger(char_encoder={"hidden_size": 6})),
            ExampleBatchSampler(make_sentences(20), batch_tokens=60, seed=0),
        ),
        "words": (LossModule(tagging, make_tagger()), ExampleBatchSampler(make_sentences(20, letters=False), batch_tokens=60, seed=0)),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["classifier", "several labels", "tagger", "words"])
def test_memory_is_measured_with_the_largest_batch_and_its_parts(name):
    learner, order = learners()[name]
    batch = order.largest_batch()
    place = DeviceConfig(CPU, torch.float32)
    assert check_batch(learner, order.largest_batch, TrainConfig(), place) > 0
    width = max(part.size(1) for part in batch if part is not None)
    for rows, length in product((1, len(batch.tokens)), (1, 2, width // 2, width)):
        corner = map_tensors(order.largest_batch(Fraction(length, width)), lambda part, rows=rows: part[:rows])
        assert batch_bytes(learner, corner, place) > 0


def test_words_without_tokens_do_not_break_the_memory_measurement():
    words = Corpus("train.words", np.array([2, 2, 2, 2, 2]), np.arange(6), np.zeros((1, 4), np.int64), "")
    data = Sentences(words, None, np.array([0, 5]), np.zeros(5, np.int64))
    task = TaggingObjective(valid=None, gold=[], is_known=[], labels=LabelVocabulary(("a",)), device=CPU)
    order = ExampleBatchSampler(data, batch_tokens=60, seed=0)
    assert order.largest_batch().first.size(1) > order.largest_batch().tokens.size(1)
    assert (
        check_batch(LossModule(task, make_tagger()), order.largest_batch, TrainConfig(), DeviceConfig(CPU, torch.float32)) > 0
    )
