"""The predictor and the evaluation options of seq2seq runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.decode.predict_options import PredictionConfig
from weft.decode.prediction import Prediction
from weft.tasks.spec import Evaluation, Files, Progress, phase

if TYPE_CHECKING:
    from weft.runs.run import Run
    from weft.tasks.seq2seq.decoding import Seq2SeqPredictor


class Seq2SeqEvaluation(PredictionConfig):
    """How to search for outputs, and how BLEU tokenizes them."""

    tokenize: str | None = None
    """Tokenizer of BLEU. Default: the one for the script of the references."""


def predictor(run: Run[str, Prediction]) -> Seq2SeqPredictor:
    from weft.tasks.seq2seq.decoding import Seq2SeqPredictor

    return Seq2SeqPredictor(run)


def evaluate(
    run: Run[str, Prediction], data: Files | None, options: Seq2SeqEvaluation, progress: Progress | None
) -> Evaluation:
    predictor: Seq2SeqPredictor = run.predictor
    return predictor.evaluate(data, options, phase(progress, "evaluating"))
