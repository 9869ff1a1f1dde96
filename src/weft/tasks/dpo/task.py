"""Direct preference optimization (DPO): a language model learns to prefer chosen responses to rejected ones."""

from __future__ import annotations

from dataclasses import replace

from weft.metrics.preferences import PREFERENCES, PREFERENCES_VALIDATION
from weft.tasks.dpo.config import PairDataConfig
from weft.tasks.dpo.data import columns, limit_lengths
from weft.tasks.dpo.predict import COMPARE, evaluate
from weft.tasks.dpo.presets import PRESETS
from weft.tasks.responses.decoding import DECODE, find_explain
from weft.tasks.responses.predict import Responder, unknown_tokens
from weft.tasks.responses.samples import PROMPT_SAMPLES
from weft.tasks.responses.tokenizer import SubwordTokenizerConfig
from weft.tasks.responses.weights import WEIGHTS
from weft.tasks.spec import Task
from weft.tasks.table_data import table_data

DPO: Task[str, None] = Task(
    name="dpo",
    model_noun="preference-tuned language model",
    description="responds to prompts",
    loss_unit="token",
    progress_unit="pairs",
    output_noun="responses",
    command="chat",
    example_input="",
    data=replace(table_data(PairDataConfig, SubwordTokenizerConfig), columns=columns, limit_lengths=limit_lengths),
    presets=PRESETS,
    weights=WEIGHTS,
    samples=PROMPT_SAMPLES,
    eval_suites=(PREFERENCES,),
    validation_suites=(PREFERENCES_VALIDATION,),
    ranking_metrics=("accuracy",),
    compare=COMPARE,
    predictor=Responder,
    evaluate=evaluate,
    unknown_tokens=unknown_tokens,
    decode=DECODE,
    explain=find_explain,
)
TASK = DPO  # the name that the registry imports
