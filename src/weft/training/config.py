"""The [train] table of models that are trained by gradients."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from weft.config import BUDGETS as BUDGETS
from weft.config import Choice, Config
from weft.training.schedules import SCHEDULES

OPTIMIZERS = ("adamw", "muon", "sgd")
MAX_VALUES = 1e38  # of what weights are changed by: float32 holds no more


class TrainConfig(Config):
    """How long and how hard to train."""

    max_steps: int | None = Field(None, ge=1)  # the budget: one of these four
    max_tokens: int | None = Field(None, ge=1)
    max_epochs: float | None = Field(None, gt=0)
    max_minutes: float | None = Field(None, gt=0)  # does not resume bit for bit
    batch_tokens: int = Field(4096, ge=1)
    micro_batches: int = Field(1, ge=1, le=65536)  # parts that each batch is computed in, to save memory
    optimizer: Annotated[str, Choice(OPTIMIZERS)] = "adamw"
    lr: float = Field(1e-3, gt=0)
    muon_lr: float | None = Field(None, gt=0)  # muon only: the rate of the matrices inside the network
    momentum: float | None = Field(None, ge=0, lt=1)  # muon and sgd
    adam_beta2: float | None = Field(None, ge=0, lt=1)  # adamw, also beside muon
    weight_decay: float = Field(0.1, ge=0)
    label_smoothing: float = Field(0.0, ge=0, lt=1)  # the share of each target that all tokens have in common
    lr_schedule: Annotated[str, Choice(SCHEDULES)] = "cosine"
    warmup_ratio: float = Field(0.02, ge=0, lt=1)  # share of the budget
    max_grad_norm: float | Literal["none"] = 1.0  # the largest norm of a gradient
    ema_decay: float | Literal["none"] = "none"  # decay of an average of the weights, which is what validation and users see
    num_validations: int = Field(10, ge=1)  # how often in a run the validation data is read, and a checkpoint written
    num_samples: int = Field(0, ge=0, le=100)  # texts that are written at each validation, for each prompt; of pairs, lines
    sample_prompts: list[str] = Field(default_factory=list)  # language models only: what is continued; the start, unless given
    sample_max_new_tokens: int = Field(100, ge=1, le=10_000)  # language models only: tokens of each text, at most
    monitor: str | None = None  # the validation score that chooses the best weights; None: the task's first
    patience: int | Literal["none"] = "none"  # validations without a better score before training stops
    device: Annotated[str, Choice(("auto", "cpu", "cuda"))] = "auto"
    precision: Annotated[str, Choice(("auto", "float32", "bfloat16"))] = "auto"
    compile: bool | Literal["auto"] = "auto"
    init_from: str | None = None  # a run whose weights this one starts from
    init_loose: bool = False  # those of another shape are left where they are, instead of refused
    lr_multipliers: dict[str, float] = Field(default_factory=dict)  # by the start of a weight's name: times the rate; 0 freezes
    layerwise_lr_decay: float | None = Field(None, gt=0, le=1)  # each layer learns so much slower than the one above it
    gradual_unfreezing: float | None = Field(None, ge=0, lt=1)  # share of the budget until all layers learn, from the top down
    tensorboard: bool = False

    @model_validator(mode="after")
    def check_options(self) -> Self:
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are given; a run has one budget")
        for name in ("lr", "muon_lr", "weight_decay"):
            if (getattr(self, name) or 0.0) > MAX_VALUES:
                raise ValueError(f"{name}={getattr(self, name):g} must be {MAX_VALUES:g} or less")
        for name, factor in self.lr_multipliers.items():
            if not 0 <= factor < float("inf"):
                raise ValueError(f"rates: {name}={factor:g} must be 0 or more")
            if factor * max(self.lr, self.muon_lr or 0.0) > MAX_VALUES:
                raise ValueError(f"rates: {name}={factor:g} times the learning rate must be {MAX_VALUES:g} or less")
        if self.sample_prompts and not self.num_samples:
            raise ValueError("sample_prompts are continued `samples` times each, but samples=0; give samples")
        if self.init_loose and self.init_from is None:
            raise ValueError("init_loose=true is about init_from, which is not given")
        if self.muon_lr is not None and self.optimizer != "muon":
            raise ValueError(f"matrix_lr={self.muon_lr}, but optimizer={self.optimizer!r} has none")
        if self.momentum is not None and self.optimizer == "adamw":
            raise ValueError(f"momentum={self.momentum}, but optimizer='adamw' has none")
        if self.adam_beta2 is not None and self.optimizer == "sgd":
            raise ValueError(f"beta2={self.adam_beta2}, but optimizer='sgd' has none")
        if self.max_grad_norm != "none" and self.max_grad_norm <= 0:
            raise ValueError(f"clip={self.max_grad_norm} must be positive, or 'none'")
        if self.ema_decay != "none" and not 0 <= self.ema_decay < 1:
            raise ValueError(f"average={self.ema_decay} must be at least 0 and less than 1, or 'none'")
        if self.patience != "none" and self.patience < 1:
            raise ValueError(f"patience={self.patience} must be at least 1, or 'none'")
        return self

    def with_defaults(self) -> Self:
        """The same table with every option that applies written out."""
        values: dict[str, Any] = {}
        if not any(getattr(self, name) is not None for name in BUDGETS):
            values["max_steps"] = 2000
        if self.optimizer == "muon":
            values |= {"muon_lr": self.muon_lr or 0.02, "momentum": 0.95 if self.momentum is None else self.momentum}
        if self.optimizer == "sgd":
            values["momentum"] = 0.9 if self.momentum is None else self.momentum
        else:
            values["adam_beta2"] = 0.99 if self.adam_beta2 is None else self.adam_beta2
        return self.model_copy(update=values)
