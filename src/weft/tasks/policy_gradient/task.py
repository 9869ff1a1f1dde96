"""Policy gradients: a language model learns from rewards of its own responses."""

from __future__ import annotations

from dataclasses import replace

from weft.metrics.feedback import FEEDBACK, FEEDBACK_VALIDATION
from weft.tasks.policy_gradient.config import PromptDataConfig
from weft.tasks.policy_gradient.data import columns, limit_lengths
from weft.tasks.policy_gradient.predict import COMPARE, evaluate
from weft.tasks.policy_gradient.presets import PRESETS
from weft.tasks.responses.decoding import DECODE, find_explain
from weft.tasks.responses.predict import Responder, unknown_tokens
from weft.tasks.responses.samples import PROMPT_SAMPLES
from weft.tasks.responses.tokenizer import SubwordTokenizerConfig
from weft.tasks.responses.weights import WEIGHTS
from weft.tasks.spec import Task
from weft.tasks.table_data import table_data

POLICY_GRADIENT: Task[str, None] = Task(
    name="policy-gradient",
    model_noun="policy",
    description="responds to prompts",
    loss_unit="token",
    progress_unit="prompts",
    output_noun="responses",
    command="generate",
    example_input='"A prompt"',
    data=replace(table_data(PromptDataConfig, SubwordTokenizerConfig), columns=columns, limit_lengths=limit_lengths),
    presets=PRESETS,
    weights=WEIGHTS,
    samples=PROMPT_SAMPLES,
    eval_suites=(FEEDBACK,),
    validation_suites=(FEEDBACK_VALIDATION,),
    ranking_metrics=("reward", "judge", "repetition"),
    compare=COMPARE,
    predictor=Responder,
    evaluate=evaluate,
    shares_evaluation=False,  # responses are sampled one after another
    unknown_tokens=unknown_tokens,
    decode=DECODE,
    explain=find_explain,
)
TASK = POLICY_GRADIENT  # the name that the registry imports
