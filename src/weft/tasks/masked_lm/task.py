"""The masked language modeling task: predict masked tokens from their context on both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.data.config import TextDataConfig
from weft.data.input_files import open_text
from weft.metrics.masked_lm import MASKED, PSEUDO
from weft.tasks.data_spec import Data
from weft.tasks.masked_lm.compare import COMPARE
from weft.tasks.masked_lm.lines import MaskLines
from weft.tasks.masked_lm.predict import MaskedLMOptions, MaskedLMPredictor, MaskPredictions, embed, evaluate, predict
from weft.tasks.masked_lm.presets import PRESETS
from weft.tasks.masked_lm.recipe import recipes
from weft.tasks.masked_lm.weights import WEIGHTS
from weft.tasks.plain_text import check, columns, in_memory, lines, texts
from weft.tasks.spec import Task
from weft.tasks.vocabulary import TokenizerOnly
from weft.text.tokenizers import TokenizerConfig

if TYPE_CHECKING:
    from weft.tasks.spec import Explain


def find_explain() -> Explain:
    from weft.tasks.masked_lm.explain import EXPLAIN

    return EXPLAIN


DATA = Data(
    data_config=TextDataConfig,
    tokenizer_config=TokenizerConfig,
    vocabulary=TokenizerOnly(texts),
    columns=columns,
    check=check,
    open_input=open_text,
    input_output_pairs=lines,
    in_memory=in_memory,
)
MASKED_LM: Task[str, MaskPredictions] = Task(
    name="masked-lm",
    model_noun="masked language model",
    example_input='"A text with a [MASK]"',
    output_header="line\tmask\tprobability\ttoken",
    description="predicts masked tokens",
    loss_unit="token",
    progress_unit="tokens",
    output_noun="tokens",
    data=DATA,
    presets=PRESETS,
    recipes=recipes,
    weights=WEIGHTS,
    eval_suites=(PSEUDO,),
    validation_suites=(MASKED,),
    ranking_metrics=("pseudo_loss",),
    compare=COMPARE,
    predictor=MaskedLMPredictor,
    evaluate=evaluate,
    predict=predict,
    predict_options=MaskedLMOptions,
    line_format=MaskLines,
    embed=embed,
    explain=find_explain,
)
TASK = MASKED_LM
