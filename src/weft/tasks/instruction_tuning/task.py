"""Instruction tuning: a language model learns to respond to instructions, and to end its responses."""

from __future__ import annotations

from weft.metrics.lm import LANGUAGE, LANGUAGE_VALIDATION
from weft.tasks.data_spec import Data
from weft.tasks.instruction_tuning.data import InstructionDataConfig
from weft.tasks.instruction_tuning.presets import PRESETS
from weft.tasks.responses.data import check, columns, in_memory, limit_lengths, lines, open_input, texts
from weft.tasks.responses.decoding import DECODE, find_explain
from weft.tasks.responses.predict import COMPARE, Responder, evaluate, unknown_tokens
from weft.tasks.responses.samples import SAMPLES
from weft.tasks.responses.tokenizer import SubwordTokenizerConfig
from weft.tasks.responses.weights import WEIGHTS
from weft.tasks.spec import Task
from weft.tasks.vocabulary import TokenizerOnly

INSTRUCTION_TUNING: Task[str, None] = Task(
    name="instruction-tuning",
    model_noun="instruction-tuned language model",
    description="responds to instructions",
    loss_unit="token",
    progress_unit="examples",
    output_noun="responses",
    command="chat",
    example_input="",
    data=Data(
        data_config=InstructionDataConfig,
        tokenizer_config=SubwordTokenizerConfig,
        vocabulary=TokenizerOnly(texts),
        columns=columns,
        check=check,
        open_input=open_input,
        input_output_pairs=lines,
        limit_lengths=limit_lengths,
        in_memory=in_memory,
    ),
    presets=PRESETS,
    weights=WEIGHTS,
    samples=SAMPLES,
    eval_suites=(LANGUAGE,),
    validation_suites=(LANGUAGE_VALIDATION,),
    ranking_metrics=("loss", "bits_per_char"),
    compare=COMPARE,
    predictor=Responder,
    evaluate=evaluate,
    unknown_tokens=unknown_tokens,
    decode=DECODE,
    explain=find_explain,
)
TASK = INSTRUCTION_TUNING  # the name that the registry imports
