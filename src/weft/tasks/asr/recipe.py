"""Recommended settings of speech recognition: a bidirectional LSTM with a CTC output that spells.

The numbers were found on AN4 (845 recordings, 40 minutes, validation speakers that training does not have), see
docs/experiments.md. With so little speech, an attention decoder alone does not learn to align.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.data.profile import DataProfile
from weft.tasks.recipe import MUON, Recipe, Tables, bpe_size, early_stopping, scaled_steps, training_flops

RECORDINGS = 845  # that the numbers were found on
MIN_BPE_RECORDINGS = 50_000  # about 100 hours; subwords are too rare in less speech
POSITIONS = 4  # frames per position of the encoder, unless set
SIZES = ("hidden_size", "num_layers", "encoder", "decoder")


def recipes(profile: DataProfile, tables: Tables) -> Sequence[Recipe]:
    """The ladder for recordings with transcripts."""
    arch = tables["model"].get("arch") or "lstm"
    tokenizer = {} if tables["tokenizer"] else _tokenizer(profile)
    reason = f"{profile.num_examples:,} recordings, transcripts of {profile.texts[0].mean_words:.0f} words"
    ladder = _attention(profile) if arch in ("transformer", "conformer") else _recurrent(profile)
    sets_size = any(name in tables["model"] for name in SIZES)
    return [
        step._replace(
            reason=reason,
            tokenizer=tokenizer,
            model={"arch": arch, **{name: value for name, value in step.model.items() if not (sets_size and name in SIZES)}},
        )
        for step in ladder
    ]


def _tokenizer(profile: DataProfile) -> dict[str, Any]:
    if profile.num_examples < MIN_BPE_RECORDINGS:
        return {"type": "char"}
    return {"type": "bpe", "vocab_size": min(bpe_size(profile.num_words), 5000)}


def _train(profile: DataProfile, steps: int) -> dict[str, Any]:
    return {
        "max_steps": scaled_steps(steps, profile.num_examples, RECORDINGS, (500, 200_000)), "batch_tokens": 16_384,
        "lr_schedule": "cosine", "warmup_ratio": 0.1, "ema_decay": 0.995, **early_stopping(profile, "wer"),
    }  # fmt: skip


def _flops(num_parameters: float, train: Mapping[str, Any], positions: int = POSITIONS) -> float:
    return training_flops(num_parameters, train["max_steps"] * train["batch_tokens"] / positions)


def _recurrent(profile: DataProfile) -> list[Recipe]:
    train = {**_train(profile, 3600), "lr": 1e-3, "adam_beta2": 0.98, "weight_decay": 0.01}
    # with four frames per position, letters that sound alike are confused more often; `conv_blocks` has fewer errors yet, but
    # on 835 recordings two of three seeds began to learn too late
    model = {"num_layers": 3, "hidden_size": 512, "dropout": 0.4, "encoder": {"subsampling": 2}}
    small = {**_train(profile, 2500), "lr": 2e-3, "adam_beta2": 0.98, "weight_decay": 0.01, "batch_tokens": 8192}
    return [
        Recipe("", model, train, flops=_flops(5.1e6, train, 2)),
        Recipe("", {"num_layers": 2, "hidden_size": 320, "dropout": 0.2}, small, flops=_flops(1.6e6, small)),
    ]


def _attention(profile: DataProfile) -> list[Recipe]:
    train = {**_train(profile, 3000), **MUON}
    model = {"num_layers": 6, "hidden_size": 256, "dropout": 0.3}
    small = {**train, "max_steps": train["max_steps"] // 2, "batch_tokens": 8192}
    return [
        Recipe("", model, train, flops=_flops(12e6, train)),
        Recipe("", {"num_layers": 4, "hidden_size": 144, "dropout": 0.2}, small, flops=_flops(2.5e6, small)),
    ]
