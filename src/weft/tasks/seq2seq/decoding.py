"""Evaluation of seq2seq runs on files of pairs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.config import parse_config
from weft.data.dataset import Dataset
from weft.data.table_rows import file_format
from weft.decode.prediction import Prediction
from weft.metrics.bleu_tokenizers import check_tokenizer, detect_tokenizer
from weft.metrics.lm import EvaluationSetup, language_scores
from weft.metrics.seq2seq import seq2seq_items, seq2seq_scores, seq2seq_setup
from weft.runs.eval_data import as_paths, own_split
from weft.tasks.encoder_decoder.predict import refuse
from weft.tasks.encoder_decoder.predictor import EncoderDecoderPredictor
from weft.tasks.seq2seq.compare import item_predictions
from weft.tasks.seq2seq.data import PairDataConfig, check_pairs_complete
from weft.tasks.seq2seq.data import pairs as pairs_of
from weft.tasks.seq2seq.data import references as references_of
from weft.tasks.seq2seq.files import Record
from weft.tasks.seq2seq.predict import Seq2SeqEvaluation
from weft.tasks.spec import Evaluation, Files, ProgressCallback, scores_by_name

if TYPE_CHECKING:
    from weft.runs.run import Run


class Seq2SeqPredictor(EncoderDecoderPredictor):
    """One run or an ensemble of runs with the same target tokenizer, optionally with a language model (shallow fusion)."""

    def __init__(self, run: Run[str, Prediction]) -> None:
        super().__init__(run, lambda member: member.vocabulary)

    def evaluate(self, data: Files | None, options: Seq2SeqEvaluation, progress: ProgressCallback | None) -> Evaluation:
        """Scores of the outputs for files of pairs, and the exact loss, which shallow fusion does not have."""
        if options.tokenize is not None:
            check_tokenizer(options.tokenize)
        files = self._pairs(data)
        pairs = list(pairs_of(files))
        lines, targets = [line for line, _ in pairs], [target for _, target in pairs]
        # before the search, which takes long, and with the location in the file
        refuse(self.invalid_inputs(lines, truncate=options.truncate), lambda number: files.location(number, "source"))
        if self.lm is None:
            refuse(self.invalid_targets(targets), lambda number: files.location(number, "target"))
        references = list(references_of(files))
        tokenize = options.tokenize or detect_tokenizer(references, spaced=self.tokenizer.target.type == "whitespace")
        outputs = self.predict(lines, options, [""] * len(lines), range(1, 1 + len(lines)), progress)
        items = seq2seq_items([output[0].text for output in outputs], references, tokenize=tokenize)
        search_signature = "/".join([options.describe(), *self.ensemble_signature()])
        scores = seq2seq_scores(items, seq2seq_setup(references, search=search_signature, tokenize=tokenize))
        if self.lm is not None:  # the sum of log-probabilities ranks outputs, but is not a probability
            return Evaluation(
                scores_by_name(scores), items, partial(item_predictions, self.run, pairs, items), "lines/s", len(pairs)
            )
        losses = self.losses(pairs, truncate=options.truncate)
        all_items = replace(items, statistics={**items.statistics, **losses.statistics})
        scores += language_scores(losses, EvaluationSetup("source", "line", self.tokenizer.target.hash))
        return Evaluation(
            scores_by_name(scores), all_items, partial(item_predictions, self.run, pairs, all_items), "lines/s", len(pairs)
        )

    def _pairs(self, data: Files | None) -> Dataset[Record]:
        """The pairs of `data`, read with the options of the run, or else of the run's test data."""
        config: PairDataConfig = self.config.data
        if data is not None:
            check_pairs_complete(config, paths := as_paths(data))
            options: dict[str, Any] = {
                "train": list(map(str, paths)),
                "encoding": config.encoding,
                "source_column": config.source_column,
                "target_column": config.target_column,
            }
            if len(paths) == 1 or file_format(paths[0]) != "text":  # parallel text files have no delimiter and no sheet
                options |= {"delimiter": config.delimiter, "sheet": config.sheet}
            return parse_config(PairDataConfig, options, prefix="data").sources(Path())["train"]
        dataset: Dataset[Record] = own_split(self.directory, self.config)[1]
        return dataset
