"""Objectives that prepare their batches: policy gradients on a toy task, checkpoint timing, and exact resuming."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from small_runs import SilentCallback
from test_loop import CORPUS, CPU, WINDOW, Notebook, small_loop, small_model
from torch import Tensor, nn

from weft.data.batch import FULL, crop_batch
from weft.data.batching import Batch, Windows
from weft.decode.engine import Engine, Request
from weft.decode.logits_processors import random_noise
from weft.errors import TrainingInterrupted
from weft.models.lm import LanguageModel
from weft.tasks.lm.objective import LanguageModelObjective
from weft.training import loop_checkpoint as saving
from weft.training import memory
from weft.training.background_save import BackgroundSaver
from weft.training.config import TrainConfig
from weft.training.loop import Loop
from weft.training.loss_module import LossModule
from weft.training.neural import NeuralTrainer
from weft.training.objective import Loss, ProgressCallback
from weft.training.optimizers import build_optimizers

LENGTH, WORDS, EACH = 2, 9, 8  # new tokens, vocabulary size, samples per prompt


class Rollouts(NamedTuple):
    tokens: Tensor  # (B, 1 + LENGTH), prompt and continuation
    log_probs: Tensor  # (B, LENGTH), at sampling time
    advantage: Tensor  # (B,)


def written(model: Any, prompts: list[int], *, seed: int | None) -> tuple[Tensor, Tensor]:
    """Sample from the model: tokens (B, LENGTH) and their log-probabilities."""
    noise = [None if seed is None else random_noise(seed, row, 0) for row in range(len(prompts))]
    engine = Engine(model)
    engine.admit([Request([prompt], LENGTH, noise=noise[row]) for row, prompt in enumerate(prompts)])
    steps = [engine.step() for _ in range(LENGTH)]
    tokens = torch.tensor([[event.token for event in events] for events in steps]).T
    return tokens, torch.tensor([[event.log_prob for event in events] for events in steps]).T


def rewards(prompts: list[int], tokens: Tensor) -> Tensor:
    """Fraction of generated tokens that repeat the prompt, (B,)."""
    return (tokens == torch.tensor(prompts)[:, None]).float().mean(1)


class Policy:
    """Samples continuations of prompts and learns from their rewards: REINFORCE, or PPO with `clip`."""

    unit, augment = "token", None

    def __init__(self, *, inner: int = 1, clip: float | None = None) -> None:
        self.inner_steps, self.clip = inner, clip
        self.prepared: list[int] = []  # seeds
        self.seen: list[Rollouts] = []

    def prepare(self, model: nn.Module, batch: Batch, *, seed: int) -> Rollouts:
        assert not model.training and not torch.is_grad_enabled()
        self.prepared.append(seed)
        prompts = batch.tokens[:, 0].repeat_interleave(EACH).tolist()
        tokens, log_probs = written(model, prompts, seed=seed)
        gained = rewards(prompts, tokens).view(-1, EACH)
        advantage = ((gained - gained.mean(1, keepdim=True)) / (gained.std(1, keepdim=True) + 0.1)).flatten()
        return Rollouts(torch.cat([torch.tensor(prompts)[:, None], tokens], 1), log_probs, advantage)

    def loss(self, model: nn.Module, batch: Rollouts, carry: Any) -> Loss:
        self.seen.append(batch)
        nats, _ = model.loss(batch.tokens[:, :-1], batch.tokens[:, 1:])  # type: ignore[operator]
        advantage, gain = batch.advantage[:, None], -nats * batch.advantage[:, None]
        if self.clip is not None:
            ratio = (-nats - batch.log_probs).exp()
            gain = torch.minimum(ratio * advantage, ratio.clamp(1 - self.clip, 1 + self.clip) * advantage)
        return Loss(-gain.sum(), torch.tensor(nats.numel()), None)

    def validate(self, model: nn.Module, progress: ProgressCallback | None = None) -> None:
        return None


class Kept(Notebook):
    """A journal that writes checkpoints."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = root

    def save(self, loop: Loop) -> None:
        super().save(loop)
        loop.train_state.metrics = 0  # no log file next to it
        saver = BackgroundSaver(self.root)
        saver.save(loop, before=lambda: None, after=lambda: None)
        saver.finish()
        saver.close()


def policy_loop(policy: Any, *, dropout: float = 0.0, **train: Any) -> Loop:
    model = small_model("gru", embedding_dropout=dropout)
    table = TrainConfig(
        **{"lr": 0.03, "warmup_ratio": 0.0, "lr_schedule": "constant", "optimizer": "adamw", **train}
    ).with_defaults()
    order = Windows(CORPUS, context_length=WINDOW, stride=WINDOW, rows=8, seed=0)
    return Loop(
        LossModule(policy, model),
        build_optimizers(model, model.muon_parameters(), table),
        order,
        config=table,
        seed=0,
        device_config=CPU,
    )


def weights(loop: Loop) -> dict[str, Tensor]:
    return {name: weight.clone() for name, weight in loop.loss_module.model.state_dict().items()}


def same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(("policy", "steps"), [(Policy(), 140), (Policy(inner=4, clip=0.2), 240)], ids=["reinforce", "ppo"])
def test_policy_gradient_reaches_the_full_reward(policy, steps):
    loop = policy_loop(policy, max_steps=steps)
    prompts = list(range(3, WORDS))
    with torch.no_grad():
        assert rewards(prompts, written(loop.loss_module.model, prompts, seed=None)[0]).mean() < 0.5
    loop.run(Notebook(), SilentCallback())
    with torch.no_grad():
        assert rewards(prompts, written(loop.loss_module.model.eval(), prompts, seed=None)[0]).tolist() == [1.0] * 6
        drawn = prompts * 50
        assert rewards(drawn, written(loop.loss_module.model, drawn, seed=1)[0]).mean() > 0.9
    assert len(policy.prepared) == len(set(policy.prepared)) == steps // policy.inner_steps


def test_a_prepared_batch_serves_all_inner_steps_and_advances_the_batch_order_once():
    policy = Policy(inner=3)
    loop = policy_loop(policy, max_epochs=2)  # 3 batches each
    requests: list[tuple[int, int]] = []
    batch_of = loop.batch_sampler.batch
    loop.batch_sampler.batch = lambda epoch, index: requests.append((epoch, index)) or batch_of(epoch, index)  # type: ignore
    loop.run(Notebook(), SilentCallback())
    assert (loop.train_state.step, loop.train_state.epoch, loop.train_state.batch_index) == (18, 2, 0)
    assert requests == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    for first in range(0, 18, 3):
        assert all(torch.equal(item.tokens, policy.seen[first].tokens) for item in policy.seen[first : first + 3])


@pytest.mark.parametrize(("stop", "saved"), [(4, 4), (5, 8), (7, 8), (8, 8)])
def test_a_stop_within_a_prepared_batch_takes_effect_after_its_last_step(tmp_path, stop, saved):
    full = policy_loop(Policy(inner=4, clip=0.2), dropout=0.3, max_steps=16)
    full.run(Notebook(), SilentCallback())
    first = policy_loop(Policy(inner=4, clip=0.2), dropout=0.3, max_steps=16)
    journal = Kept(tmp_path)
    with pytest.raises(TrainingInterrupted):
        first.run(journal, SilentCallback(stop_at=stop))
    assert journal.saved[-1] == first.train_state.step == saved
    torch.manual_seed(99)
    again = policy_loop(Policy(inner=4, clip=0.2), dropout=0.3, max_steps=16)
    saving.restore(again, tmp_path / "checkpoints" / f"{saved:06d}")
    again.run(Kept(tmp_path), SilentCallback())
    assert again.train_state.step == 16 and same(weights(full), weights(again))


def test_checkpoints_are_written_between_prepared_batches_and_at_the_end():
    loop, notebook = policy_loop(Policy(inner=4), max_steps=18, num_validations=6), Notebook()  # a validation every third step
    loop.run(notebook, SilentCallback())
    assert notebook.best == [3, 6, 9, 12, 15, 18]
    assert notebook.saved == [4, 8, 12, 16, 18] and loop.train_state.done


class Wasteful(LanguageModelObjective):
    """Prepares nothing, but draws from torch's global generator."""

    inner_steps = 1  # type: ignore[assignment]

    def prepare(self, model: nn.Module, batch: Batch, *, seed: int) -> Batch:  # type: ignore[override]
        torch.rand(seed % 7 + 1)
        return batch


def test_preparing_a_batch_does_not_change_dropout():
    plain = small_loop(small_model("lstm", embedding_dropout=0.4), max_steps=6)
    plain.run(Notebook(), SilentCallback())
    other = small_loop(small_model("lstm", embedding_dropout=0.4), max_steps=6)
    task: Any = other.loss_module.objective
    other.loss_module.objective = Wasteful(carry_state=False, valid=None, context=task.context, device=CPU.device)
    other.run(Notebook(), SilentCallback())
    assert same(weights(plain), weights(other))


class Named:
    """The parts of a job that the memory check needs."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def largest_batch(self, share: Fraction = FULL) -> Batch:
        return crop_batch(self.batch, share)


@pytest.mark.parametrize("training", [True, False])
def test_memory_check_uses_a_prepared_batch(training):
    policy, model = Policy(inner=2), small_model("gru").train(training)
    learner = LossModule(policy, model)
    order: Any = Named(Batch(torch.randint(3, 9, (8, WINDOW + 1)), None))
    actual = NeuralTrainer.__new__(NeuralTrainer)._largest_batch(learner, order, 0, CPU)(FULL)
    assert isinstance(actual, Rollouts) and actual.tokens.shape == (8 * EACH, 1 + LENGTH)
    assert model.training is training
    few = memory.check_batch(learner, partial(crop_batch, actual), TrainConfig(), CPU)
    more: Sequence[Tensor] = [torch.cat([part] * 4) for part in actual]
    assert memory.check_batch(learner, partial(crop_batch, Rollouts(*more)), TrainConfig(), CPU) > few


def test_tasks_without_preparation_get_the_sampled_batch():
    loop = small_loop(small_model(), max_steps=2)
    assert isinstance(loop.loss_module.model, LanguageModel) and loop.loss_module.steps_per_batch == 1 and loop.needs_batch()
    assert torch.equal(loop.next_batch()[0], loop.batch_sampler.batch(0, 0)[0])
    loop.run(Notebook(), SilentCallback())
    assert loop.batch is None
