"""The [train] table."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from weft.config import BUDGETS as BUDGETS
from weft.config import Choice, Config, invalid
from weft.training.schedules import SCHEDULES

OPTIMIZERS = ("adamw", "muon", "sgd")
MAX_RATE = 1e38  # maximum learning rate and weight decay: float32 has no larger numbers
OPTIMIZER_OPTIONS = {"muon_lr": ("muon",), "momentum": ("muon", "sgd"), "adam_beta2": ("adamw", "muon")}

DISTILL_DEFAULTS = {"distill_weight": 0.9, "distill_temperature": 1.0}


class TrainConfig(Config):
    """How long to train, and how."""

    max_steps: int | None = Field(None, ge=1)
    """Budget in optimizer steps. Set one of the four budgets."""
    max_tokens: int | None = Field(None, ge=1)
    """Budget in training tokens."""
    max_epochs: float | None = Field(None, gt=0)
    """Budget in passes over the training data."""
    max_minutes: float | None = Field(None, gt=0)
    """Budget in minutes, with validations. Not exactly reproducible."""
    batch_tokens: int = Field(4096, ge=1)
    """Tokens per batch."""
    micro_batches: int = Field(1, ge=1, le=65536)
    """Split each batch into this many parts to save memory. The gradient stays the same."""
    optimizer: Annotated[str, Choice(OPTIMIZERS, "optimizer")] = "adamw"
    """Optimizer. muon updates the weight matrices, AdamW everything else."""
    lr: float = Field(1e-3, gt=0)
    """Peak learning rate."""
    muon_lr: float | None = Field(None, gt=0)
    """muon only: peak learning rate of the weight matrices."""
    momentum: float | None = Field(None, ge=0, lt=1)
    """muon and sgd only: momentum."""
    adam_beta2: float | None = Field(None, ge=0, lt=1)
    """Second-moment decay of AdamW."""
    weight_decay: float = Field(0.1, ge=0)
    """Weight decay. Biases and norms are excluded."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Label smoothing."""
    lr_schedule: Annotated[str, Choice(SCHEDULES, "schedule")] = "cosine"
    """Learning-rate schedule."""
    warmup_ratio: float = Field(0.02, ge=0, lt=1)
    """Fraction of the budget used for linear warmup."""
    max_grad_norm: float = Field(1.0, ge=0)
    """Clip the gradient norm to this value; 0 for no clipping."""
    ema_decay: float = Field(0.0, ge=0, lt=1)
    """Decay of an exponential moving average of the weights, which is validated and saved; 0 for none."""
    num_validations: int = Field(10, ge=1)
    """Number of validations in the run. Each also saves a checkpoint."""
    num_samples: int = Field(0, ge=0, le=100)
    """Outputs to sample at each validation: texts per prompt, or lines of the validation data."""
    sample_prompts: list[str] = Field(default_factory=list)
    """Language models only: prompts for the samples. Default: the start of a text."""
    sample_max_new_tokens: int = Field(100, ge=1, le=10_000)
    """Language models only: maximum number of tokens per sample."""
    monitor: str | None = None
    """Validation metric that selects the best weights. Default: the first metric of the task."""
    keep: Literal["best", "last"] = "best"
    """Which weights to save: the best on the validation data, or the last."""
    patience: int = Field(0, ge=0)
    """Stop after this many validations without improvement; 0 to disable."""
    device: Annotated[str, Choice(("auto", "cpu", "cuda"), "device")] = "auto"
    """auto uses a GPU if there is one."""
    precision: Annotated[str, Choice(("auto", "float32", "bfloat16"), "precision")] = "auto"
    """auto uses bfloat16 on a GPU that supports it, else float32."""
    compile: bool | Literal["auto"] = "auto"
    """Use torch.compile. auto: on a GPU, torch.compile or CUDA graphs, if they help."""
    parallel: Literal["auto", "ddp", "fsdp"] = "auto"
    """With several processes: ddp has all weights in each, fsdp divides them. auto: fsdp for large models."""
    activation_checkpointing: bool = False
    """Save memory: compute the activations of each layer again in the backward pass."""
    init_from: str | None = None
    """Run directory to initialize the weights from."""
    init_embeddings: str | None = None
    """Word vectors to initialize the embeddings from: a run of task word-vectors, or a file."""
    init_strict: bool = True
    """Raise an error if a weight has another shape. If false, skip it."""
    distill_from: list[str] | None = Field(None, min_length=1)
    """Run directories of teachers: the model also learns from the mean of their probabilities (knowledge distillation)."""
    distill_weight: float | None = Field(None, ge=0, le=1)
    """Weight of the teachers in the loss, by default 0.9; the labels have the rest."""
    distill_temperature: float | None = Field(None, gt=0, le=100)
    """Temperature of the distributions of the teachers and the model in the loss, by default 1."""
    r_drop: float = Field(0.0, ge=0, le=1000)
    """Weight of R-Drop: predictions with two dropout masks should agree. A step takes up to twice as long. 0: off."""
    lr_multipliers: dict[str, float] = Field(default_factory=dict)
    """Learning-rate factors by parameter-name prefix; 0 freezes."""
    layerwise_lr_decay: float | None = Field(None, gt=0, le=1)
    """Multiply the learning rate by this factor for each layer from the top down."""
    gradual_unfreezing: float | None = Field(None, ge=0, lt=1)
    """Unfreeze the layers from the top down over this fraction of the budget."""
    tensorboard: bool = False
    """Also write a TensorBoard log."""

    @model_validator(mode="after")
    def check_training(self) -> Self:
        budgets = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(budgets) > 1:
            raise invalid("", f"{budgets[0]} and {budgets[1]} are both set", "set only one")
        for name in ("lr", "muon_lr", "weight_decay"):
            if (value := getattr(self, name) or 0.0) > MAX_RATE:
                raise invalid(name, f"must be at most {MAX_RATE:g}, got {value:g}")
        for name, factor in self.lr_multipliers.items():
            if not 0 <= factor < float("inf"):
                raise invalid(f"lr_multipliers.{name}", f"must be at least 0, got {factor:g}")
            if factor * max(self.lr, self.muon_lr or 0.0) > MAX_RATE:
                raise invalid(f"lr_multipliers.{name}", f"{factor:g} times the learning rate exceeds {MAX_RATE:g}")
        if self.keep == "last" and self.patience:
            raise invalid("keep", "'last' is not possible with patience", "remove one of them")
        if self.sample_prompts and not self.num_samples:
            raise invalid("sample_prompts", "not used with num_samples = 0", "set num_samples")
        if not self.init_strict and self.init_from is None:
            raise invalid("init_strict", "not used without init_from", "set init_from or remove init_strict")
        if self.r_drop and self.distill_from is not None:
            raise invalid("r_drop", "not possible with distill_from", "remove one of them")
        for name in DISTILL_DEFAULTS:
            if getattr(self, name) is not None and self.distill_from is None:
                raise invalid(name, "not used without distill_from", f"set distill_from or remove {name}")
        for name, optimizers in OPTIMIZER_OPTIONS.items():
            if getattr(self, name) is not None and self.optimizer not in optimizers:
                raise invalid(name, f"not used with optimizer {self.optimizer!r}", "remove it")
        return self

    def with_defaults(self) -> Self:
        """The same table with a value for every option that applies."""
        values: dict[str, Any] = {}
        if not any(getattr(self, name) is not None for name in BUDGETS):
            values["max_steps"] = 2000
        if self.optimizer == "muon":
            values |= {"muon_lr": self.muon_lr or 0.02, "momentum": 0.95 if self.momentum is None else self.momentum}
        if self.optimizer == "sgd":
            values["momentum"] = 0.9 if self.momentum is None else self.momentum
        else:
            values["adam_beta2"] = 0.99 if self.adam_beta2 is None else self.adam_beta2
        if self.distill_from is not None:
            values |= {name: value for name, value in DISTILL_DEFAULTS.items() if getattr(self, name) is None}
        return self.model_copy(update=values)
