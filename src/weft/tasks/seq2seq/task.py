"""The seq2seq task: predict a target text from a source text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.decode.predict_options import DEFAULT_BEAM_SIZE, DEFAULT_LENGTH_PENALTY
from weft.decode.prediction import Prediction
from weft.metrics.lm import LOSSES
from weft.metrics.seq2seq import TRANSLATION, TRANSLATION_VALIDATION
from weft.tasks.data_spec import Data
from weft.tasks.encoder_decoder.lines import OutputLines
from weft.tasks.encoder_decoder.predict import (
    EncoderDecoderOptions,
    encode_source,
    max_new_tokens,
    predict,
    prepare_search,
    score,
    unknown_tokens,
)
from weft.tasks.seq2seq.compare import COMPARE
from weft.tasks.seq2seq.data import (
    PairDataConfig,
    PairVocabulary,
    check,
    check_pairs_complete,
    columns,
    in_memory,
    limit_lengths,
    open_pairs,
    pairs,
)
from weft.tasks.seq2seq.predict import Seq2SeqEvaluation, evaluate, predictor
from weft.tasks.seq2seq.presets import PRESETS
from weft.tasks.seq2seq.recipe import recipes
from weft.tasks.seq2seq.samples import SAMPLES
from weft.tasks.seq2seq.weights import WEIGHTS
from weft.tasks.spec import Decode, InputSpec, Task
from weft.text.tokenizer_pair import TokenizerPairConfig

if TYPE_CHECKING:
    from weft.tasks.spec import Explain


def find_explain() -> Explain:
    from weft.tasks.encoder_decoder.explain import EXPLAIN

    return EXPLAIN


DATA = Data(
    data_config=PairDataConfig,
    tokenizer_config=TokenizerPairConfig,
    vocabulary=PairVocabulary(),
    columns=columns,
    check=check,
    open_input=open_pairs,
    input_output_pairs=pairs,
    limit_lengths=limit_lengths,
    in_memory=in_memory,
    check_files=check_pairs_complete,
)
SEQ2SEQ: Task[str, Prediction] = Task(
    name="seq2seq",
    model_noun="seq2seq model",
    description="predicts targets from sources",
    loss_unit="token",
    progress_unit="pairs",
    output_noun="outputs",
    data=DATA,
    presets=PRESETS,
    weights=WEIGHTS,
    samples=SAMPLES,
    eval_suites=((*TRANSLATION, *LOSSES),),
    validation_suites=(TRANSLATION_VALIDATION,),
    ranking_metrics=("chrf",),  # BLEU is undefined for lines of fewer than four tokens, and there are bins of such lines
    compare=COMPARE,
    recipes=recipes,
    predictor=predictor,
    evaluate=evaluate,
    predict=predict,
    predict_options=EncoderDecoderOptions,
    inputs=lambda config: InputSpec(names=("source",)),
    line_format=OutputLines,
    unknown_tokens=unknown_tokens,
    evaluate_options=Seq2SeqEvaluation,
    decode=Decode(
        score,
        prompt_ids=lambda run, line: run.vocabulary.target.start_tokens.target,
        max_new_tokens=max_new_tokens,
        eos_id=lambda run: run.vocabulary.target.eos_id,
        suppressed_tokens=lambda run: [run.vocabulary.target.unk_id, run.vocabulary.target.bos_id],
        beam_size=DEFAULT_BEAM_SIZE,
        length_penalty=DEFAULT_LENGTH_PENALTY,
        encode_source=encode_source,
        prepare_search=prepare_search,
        scores_pairs=True,
        target_tokenizer=lambda run: run.vocabulary.target,
    ),
    explain=find_explain,
    supports_ensembles=True,
    supports_distillation=True,
    supports_r_drop=True,
    vocab_info=lambda run: {
        "vocabulary": {"source": run.vocabulary.source.vocab_size, "target": run.vocabulary.target.vocab_size}
    },
)
TASK = SEQ2SEQ  # the name that the registry imports
