"""Models that write a text for frames: CTC, attention and both, with every encoder, in one and two directions."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import SilentCallback
from speech_runs import RATE, make_recordings, say, speech_run_file
from torch import Tensor
from toy_models import enlarge_weights

from weft.config import parse_config
from weft.data.frame_batching import pad_frames
from weft.decode.beam import BeamOptions, beam_search
from weft.errors import ConfigError
from weft.explain.gradcheck import check_tensors, make_loss_function
from weft.models.frame_to_text import FrameToText
from weft.models.speech import recognizer
from weft.models.speech_config import SpeechConfig
from weft.nn import ctc
from weft.nn.state import compact, expand_to_beams, join, select, tree_leaves
from weft.runs.resolve import resolve
from weft.tasks.asr.presets import PRESETS
from weft.tasks.media_objective import MediaObjective
from weft.text.tokenizers import Tokenizer, TokenizerConfig, train_tokenizer

WEIGHTS = {"ctc": 1.0, "joint": 0.4, "attention": 0.0}
HOP = RATE // 100
TIGHT = {"atol": 2e-5, "rtol": 1e-4}


@cache
def tokenizer() -> Tokenizer:
    return train_tokenizer(TokenizerConfig.model_validate({"type": "char"}), ["abcd"])


def config_of(arch: str, options: dict[str, Any]) -> SpeechConfig:
    preset = PRESETS[arch]
    small = {
        "hidden_size": 8, "num_layers": 1, "num_mels": 8, "num_freq_masks": 0, "num_time_masks": 0, "dropout": 0.0,
        "speed_perturbation": [1.0], **options,
    }  # fmt: skip
    small["encoder"] = {"subsampling_channels": 2, "subsampling": 2, **options.get("encoder", {})}
    if "decoder" in options:
        small["decoder"] = options["decoder"]
    if arch in ("transformer", "conformer"):
        small |= {"num_heads": 2, "attention_dropout": 0.0}
        small["decoder"] = {"num_layers": 1}
    if arch == "conformer":
        small["encoder"]["conv_kernel"] = 3
    values = preset.merge(preset.values, small)
    return parse_config(SpeechConfig, values, prefix="model").with_defaults()


@cache
def model_of(arch: str, outputs: str, bidirectional: bool) -> FrameToText:
    torch.manual_seed(0)
    options = {"ctc_weight": WEIGHTS[outputs], "encoder": {"bidirectional": bidirectional}}
    model = recognizer(config_of(arch, options), tokenizer(), max_positions=200, rate=RATE, hop=HOP)
    return enlarge_weights(model).eval()  # type: ignore[return-value]


def recording(text: str) -> np.ndarray:
    samples = np.rint(say(text) * 32767).astype(np.int16)
    return samples[: len(samples) // HOP * HOP].reshape(-1, HOP)


RECORDINGS = [recording("ab"), recording("dcab"), recording("b")]
every = pytest.mark.parametrize(
    "model",
    [
        pytest.param((arch, outputs, both), id=f"{arch}-{outputs}-{'two' if both else 'one'}")
        for arch in PRESETS
        for number, outputs in enumerate(WEIGHTS)
        for both in ((False, True) if arch in ("lstm", "conformer") else (bool(number % 2),))
    ],
)


def ids(text: str) -> list[int]:
    tokens = tokenizer()
    return [tokens.bos_id, *tokens.encode(text).tolist(), tokens.eos_id]


@every
def test_padding_and_other_rows_change_nothing(model):
    built = model_of(*model)
    source, mask = pad_frames(RECORDINGS)
    memory = built.encoder(source, mask)
    for row, frames in enumerate(RECORDINGS):
        alone = built.encoder(*pad_frames([frames]))
        length = int(memory.token_mask[row].sum())
        assert length == alone.values.size(1) == -(-len(frames) // 2)
        torch.testing.assert_close(memory.values[row, :length], alone.values[0], **TIGHT)
        torch.testing.assert_close(memory.summary[row], alone.summary[0], **TIGHT)


@every
def test_scores_are_the_sums_of_steps(model):
    """Of one row at a time, step by step, and of a batch at once with padded texts."""
    built, texts = model_of(*model), ["ab", "abba", "d"]
    rows = [torch.tensor(ids(text)) for text in texts]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    token_mask = torch.arange(tokens.size(1)) < torch.tensor([len(row) for row in rows])[:, None]
    together = built.score(tokens, token_mask, built.encode(*pad_frames(RECORDINGS)))
    for row, (frames, targets) in enumerate(zip(RECORDINGS, rows, strict=True)):
        state = built.encode(*pad_frames([frames]))
        scores, state = built.start(targets[None, :1], None, state)
        for position, token in enumerate(targets[1:]):
            torch.testing.assert_close(together[row, position], scores[0, token], **TIGHT)
            scores, state = built.step(token[None], state)
        assert together[row, len(targets) - 1 :].abs().sum() == 0


@every
def test_a_prompt_is_read_as_its_tokens_one_after_another(model):
    """Prompts of several lengths, padded: a forced beginning of the output."""
    built, prompts = model_of(*model), [[1], [1, 3, 3], [1, 4]]
    tokens = torch.tensor([prompt + [0] * (3 - len(prompt)) for prompt in prompts])
    token_mask = torch.arange(3) < torch.tensor([len(prompt) for prompt in prompts])[:, None]
    assert tokenizer().bos_id == 1
    scores, _ = built.start(tokens, token_mask, built.encode(*pad_frames(RECORDINGS)))
    for row, prompt in enumerate(prompts):
        alone, state = built.start(torch.tensor([prompt[:1]]), None, built.encode(*pad_frames([RECORDINGS[row]])))
        for token in prompt[1:]:
            alone, state = built.step(torch.tensor([token]), state)
        torch.testing.assert_close(scores[row], alone[0], **TIGHT)


@every
def test_states_can_be_joined_selected_and_compacted(model):
    """A row goes on as if it were alone: after a join with a row of another length and age, and after the longest has left."""
    built = model_of(*model)

    def alone(row: int, past: list[int]) -> tuple[Tensor, Any]:
        scores, state = built.start(torch.tensor([[1]]), None, built.encode(*pad_frames([RECORDINGS[row]])))
        for token in past:
            scores, state = built.step(torch.tensor([token]), state)
        return scores, state

    pasts = [[3], [3, 4], []]
    state = join(join(alone(0, pasts[0])[1], alone(1, pasts[1])[1]), alone(2, pasts[2])[1])
    kept = compact(select(state, torch.tensor([2, 0])))
    for _ in range(2):
        scores, kept = built.step(torch.tensor([3, 3]), kept)
        pasts[0].append(3)
        pasts[2].append(3)
        torch.testing.assert_close(scores, torch.cat([alone(2, pasts[2])[0], alone(0, pasts[0])[0]]), **TIGHT)
    beams = expand_to_beams(kept, torch.tensor([0, 0, 1, 1]), None)
    scores, beams = built.step(torch.tensor([4, 5, 4, 5]), beams)
    expected = [alone(row, [*pasts[row], token])[0] for row, token in ((2, 4), (2, 5), (0, 4), (0, 5))]
    torch.testing.assert_close(scores, torch.cat(expected), **TIGHT)


@pytest.mark.parametrize("arch", ["lstm", "conformer"])
def test_a_joined_state_can_read_prompts_of_different_lengths_after_padding_is_removed(arch):
    built = model_of(arch, "ctc", True)
    state = compact(select(built.encode(*pad_frames(RECORDINGS)), torch.tensor([0, 2])))
    tokens, token_mask = torch.tensor([[1, 3], [1, 0]]), torch.tensor([[True, True], [True, False]])
    scores, state = built.start(tokens, token_mask, state)
    after, _ = built.step(torch.tensor([4, 4]), state)
    for row, (number, past) in enumerate(((0, [1, 3]), (2, [1]))):
        alone, own = built.start(torch.tensor([past]), None, built.encode(*pad_frames([RECORDINGS[number]])))
        torch.testing.assert_close(scores[row], alone[0], **TIGHT)
        torch.testing.assert_close(after[row], built.step(torch.tensor([4]), own)[0][0], **TIGHT)


@pytest.mark.parametrize("arch", ["gru", "conformer"])
def test_the_score_of_both_outputs_is_their_weighted_sum(arch):
    built = model_of(arch, "joint", True)
    memory = built.encoder(*pad_frames(RECORDINGS[:1]))
    tokens = torch.tensor([ids("ab")])
    total = built.score(tokens, None, built.start_state(memory)).sum()
    nll = ctc.ctc_nll(
        built.frame_log_probs(memory), memory.token_mask, tokens[:, 1:-1], torch.tensor([2]), blank=tokenizer().eos_id
    )
    attention = built.attention_loss(memory, tokens).sum()
    torch.testing.assert_close(total, (-0.6 * attention - 0.4 * nll).squeeze(), **TIGHT)


@pytest.mark.parametrize("outputs", WEIGHTS)
def test_a_beam_search_equals_the_search_of_each_row_alone(outputs):
    built = model_of("lstm", outputs, True)
    options = BeamOptions(beam_size=3, max_new_tokens=8, eos_id=tokenizer().eos_id, length_penalty=0.0, n_best=2)
    prompt = torch.full((3, 1), tokenizer().bos_id)
    with torch.no_grad():
        together = beam_search(built, prompt, options=options, state=built.encode(*pad_frames(RECORDINGS)))
        for found, frames in zip(together, RECORDINGS, strict=True):
            (alone,) = beam_search(built, prompt[:1], options=options, state=built.encode(*pad_frames([frames])))
            assert [item.tokens for item in found] == [item.tokens for item in alone]
            tokens = torch.tensor([[tokenizer().bos_id, *found[0].tokens]])
            scores = built.score(tokens, None, built.encode(*pad_frames([frames])))
            assert found[0].log_prob == pytest.approx(float(scores.sum()), abs=1e-4)


@pytest.mark.parametrize("arch, outputs", [("lstm", "ctc"), ("gru", "joint"), ("conformer", "joint"), ("transformer", "ctc")])
def test_gradients_equal_numerical_ones(tmp_path, arch, outputs):
    options: dict[str, Any] = {"arch": arch, "ctc_weight": WEIGHTS[outputs], "hidden_size": 4, "attention": "scaled-dot"}
    if arch in ("transformer", "conformer"):
        options |= {"num_heads": 2, "attention_dropout": 0.0, "activation": "gelu"}  # relu has kinks
    values = speech_run_file(make_recordings(tmp_path, 3), **{f"model__{name}": value for name, value in options.items()})
    (tmp_path / "work").mkdir()
    function = make_loss_function(resolve(values, base=tmp_path), tmp_path / "work", SilentCallback())
    errors = {item.name: item.error for item in check_tensors(function, entries=2)}
    assert "ctc_head.weight" in errors and ("head.weight" in errors) == (outputs == "joint")
    assert {name: error for name, error in errors.items() if error > 1e-5} == {}


def test_a_row_that_is_too_short_for_its_text_adds_nothing():
    built = model_of("lstm", "ctc", True)
    built.zero_grad()
    objective = MediaObjective(
        valid=None, tokenizer=tokenizer(), device=torch.device("cpu"), smoothing=0.0, score=lambda *_: {}, monitors=()
    )
    source, mask = pad_frames([RECORDINGS[2][:8], RECORDINGS[1]])
    tokens = torch.tensor([ids("abcdabcd"), ids("abcdabcd")])
    batch: Any = type(
        "Batch", (), {"source": source, "source_mask": mask, "tokens": tokens, "token_mask": torch.ones_like(tokens).bool()}
    )
    both = objective.loss(built, batch, None)
    losses = objective._losses(built, built.encoder(source, mask), batch, 0.0).detach()
    assert losses.isfinite().tolist() == [False, True]
    assert both.total.item() == pytest.approx(float(losses[1]))
    both.total.backward()
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in built.parameters())
    with torch.no_grad():
        next(built.parameters()).fill_(torch.nan)
    assert objective.loss(built, batch, None).total.isnan()  # a loss of 0 would be the best one


def test_memory_per_row_counts_the_growth_of_the_state():
    for outputs in WEIGHTS:
        built = model_of("lstm", outputs, True)
        state = built.encode(*pad_frames(RECORDINGS[:1]))
        few, many = built.bytes_per_row(2, state), built.bytes_per_row(50, state)
        assert 0 < few <= many
        assert all(leaf.size(0) == 1 for leaf in tree_leaves(state))


@pytest.mark.parametrize(
    "options, where",
    [
        ({"copy_mechanism": True}, "copy_mechanism"),
        ({"share_embeddings": True}, "share_embeddings"),
        ({"encoder": {"reverse_source": True, "bidirectional": False}}, "reverse_source"),
        ({"ctc_weight": 1.5}, "ctc_weight"),
        ({"speed_perturbation": []}, "speed_perturbation"),
        ({"speed_perturbation": [0.1]}, "speed_perturbation"),
        ({"encoder": {"subsampling": 3}}, "subsampling"),
        ({"normalization": "both"}, "normalization"),
        ({"decoder": {"conv_kernel": 3}}, "conv_kernel"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, where):
    with pytest.raises(ConfigError) as caught:
        config_of("lstm", options)
    assert where in caught.value.where


def test_the_default_normalization_depends_on_the_direction():
    assert config_of("lstm", {"encoder": {"bidirectional": False}}).normalization == "running"
    assert config_of("lstm", {"encoder": {"bidirectional": True}}).normalization == "utterance"
    assert config_of("lstm", {"encoder": {"bidirectional": False}}).can_stream
    assert not config_of("lstm", {"encoder": {"bidirectional": False}, "ctc_weight": 0.5}).can_stream
    assert not config_of("lstm", {"encoder": {"bidirectional": True}}).can_stream
