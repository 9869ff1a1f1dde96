"""The seq2seq task: predict a target text from a source text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.decode.predict_options import DEFAULT_BEAM_SIZE, DEFAULT_LENGTH_PENALTY
from weft.decode.prediction import Prediction
from weft.metrics.lm import LOSSES
from weft.metrics.seq2seq import TRANSLATION, TRANSLATION_VALIDATION
from weft.tasks.data_spec import Data
from weft.tasks.seq2seq.compare import COMPARE
from weft.tasks.seq2seq.data import (
    PairDataConfig,
    PairVocabulary,
    check,
    check_pairs_complete,
    columns,
    fit,
    in_memory,
    open_pairs,
    pairs,
)
from weft.tasks.seq2seq.lines import OutputLines
from weft.tasks.seq2seq.predict import (
    Seq2SeqEvaluation,
    Seq2SeqOptions,
    evaluate,
    limit,
    predict,
    reader,
    score,
    source,
    unknown,
)
from weft.tasks.seq2seq.presets import PRESETS
from weft.tasks.seq2seq.samples import SAMPLES
from weft.tasks.seq2seq.weights import WEIGHTS
from weft.tasks.spec import Decode, Task
from weft.text.tokenizer_pair import TokenizerPairConfig

if TYPE_CHECKING:
    from weft.tasks.spec import Explain


def find_explain() -> Explain:
    from weft.tasks.seq2seq.explain import EXPLAIN

    return EXPLAIN


DATA = Data(
    table=PairDataConfig,
    tokenizer=TokenizerPairConfig,
    vocabulary=PairVocabulary(),
    columns=columns,
    check=check,
    open=open_pairs,
    lines=pairs,
    fit=fit,
    in_memory=in_memory,
    check_files=check_pairs_complete,
)
SEQ2SEQ: Task[str, Prediction] = Task(
    name="seq2seq",
    noun="seq2seq model",
    does="predicts targets from sources",
    item="token",
    counts="pairs",
    says="outputs",
    data=DATA,
    presets=PRESETS,
    weights=WEIGHTS,
    samples=SAMPLES,
    suites=((*TRANSLATION, *LOSSES),),
    validation=(TRANSLATION_VALIDATION,),
    decides=("chrf",),  # BLEU is undefined for lines of fewer than four tokens, and there are bins of such lines
    compare=COMPARE,
    reader=reader,
    evaluate=evaluate,
    predict=predict,
    predict_options=Seq2SeqOptions,
    lines=OutputLines,
    unknown=unknown,
    evaluate_options=Seq2SeqEvaluation,
    decode=Decode(
        score,
        prompt=lambda run, line: [run.vocabulary.target.bos_id],
        limit=limit,
        end=lambda run: run.vocabulary.target.eos_id,
        never=lambda run: [run.vocabulary.target.unk_id, run.vocabulary.target.bos_id],
        beam=DEFAULT_BEAM_SIZE,
        alpha=DEFAULT_LENGTH_PENALTY,
        source=source,
        pairs=True,
        target=lambda run: run.vocabulary.target,
    ),
    explain=find_explain,
    joins=True,
    sizes=lambda run: {"vocabulary": {"source": run.vocabulary.source.vocab_size, "target": run.vocabulary.target.vocab_size}},
)
TASK = SEQ2SEQ
