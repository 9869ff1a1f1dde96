"""`weft evaluate`: metrics of a trained run on whole data sets."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.cache_options import CacheOptions
from weft.cli.engine_options import EngineOptions
from weft.cli.ensemble_options import SearchOptions, describe_mixture
from weft.cli.options import Context, Data, Processes
from weft.cli.output import finite, format_percent, note, warn, write, write_json, write_styled, write_table
from weft.errors import UsageError
from weft.metrics.labels import label_of
from weft.metrics.score_table import TITLES, default_scores, score_rows
from weft.text.table_layout import columns

if TYPE_CHECKING:
    from weft.config import Config
    from weft.metrics.items import Score
    from weft.parallel.group import Group
    from weft.runs.run import AnyRun
    from weft.tasks.spec import Evaluation

SPLITS = {"test": "test data", "valid": "validation data"}


def as_json(score: Score) -> dict[str, Any]:
    """The JSON of a score: JSON has no infinity, so an infinite value is null and `infinite` is true."""
    numbers = {"name": score.name, "value": finite(score.value), "low": finite(score.low), "high": finite(score.high)}
    infinite = {"infinite": True} if math.isinf(score.value) else {}
    return {**numbers, **infinite, "signature": score.signature}


def describe_split(name: str, dataset: Any) -> str:
    """'test data: last 5% of train.txt'."""
    from weft.data.dataset import Dataset
    from weft.data.source import display_name

    working_dir = Path.cwd()
    paths = [path.relative_to(working_dir) if path.is_relative_to(working_dir) else path for path in dataset.paths]
    files, fraction = display_name(tuple(paths)), dataset.fraction
    if fraction == 1.0:
        return f"{SPLITS[name]}: {files}"
    if isinstance(dataset, Dataset) and dataset.summary.strata() is not None:
        return f"{SPLITS[name]}: {format_percent(fraction)} of {files}, stratified"
    return f"{SPLITS[name]}: {'last ' if dataset.high == 1.0 else ''}{format_percent(fraction)} of {files}"


def signature_fields(signature: str) -> dict[str, str]:
    """'a:1|b:2' as a mapping."""
    return {name: value for name, _, value in (part.partition(":") for part in signature.split("|"))}


def describe_context(signature: str) -> str:
    """'context: stride 256; CI: bootstrap over blocks of 1,000 tokens'."""
    fields = signature_fields(signature)
    kind, _, size = fields.get("unit", "").partition("/")
    items = f"{kind}s of {int(size):,} tokens" if size.isdigit() else f"{kind}s"
    return f"context: {fields.get('context', '').replace(':', ' ')}; CI: bootstrap over {items}"


def _bleu_tokenizers() -> list[str]:
    from weft.metrics.bleu_tokenizers import TOKENIZERS

    return list(TOKENIZERS)


@dataclass(kw_only=True)
class Evaluate(CacheOptions, EngineOptions, SearchOptions):
    """Compute metrics on the test data, with 95% confidence intervals.

    Without test data, the validation data is used. Language models are scored by the exact probability of the text, seq2seq
    models by their outputs and by the exact probability of the targets.
    """

    all: Annotated[bool, typer.Option("--all", help="Print all metrics.")] = False
    signature: Annotated[bool, typer.Option("--signature", help="Print the metric signatures.")] = False
    context: Context = None
    tokenize: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=_bleu_tokenizers,
            help="seq2seq: tokenizer of BLEU: 13a, zh, ja-mecab, ko-mecab, char, intl, none or flores200."
            "  [default: chosen by the references]",
        ),
    ] = None
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Fail on labels that are not in the training data instead of counting them as errors."),
    ] = False
    processes: Processes = None
    data: Data = None

    def num_processes(self) -> int:
        return self.processes or 1

    def advice(self) -> str:
        return "run the command again"

    def run(self) -> int:
        from weft.cli.group import joined
        from weft.training.device import uses_gpu

        with joined("cuda" if uses_gpu(self.device) else "cpu", self.advice()) as group:
            return self._evaluate(group)

    def _load_shared(self, group: Group) -> AnyRun:
        """The run, evaluated by the processes of a group."""
        from weft.cli.group import check_same_inputs
        from weft.runs.shared_evaluation import share_evaluation

        if group.size > 1 and self.cache_options() is not False:
            raise UsageError("processes", "a cache follows the text in its order", "leave out one of them")
        if group.size > 1 and self.engine != "torch":
            raise UsageError("processes", "cannot be combined with `engine`", "use --threads")
        self.quiet = self.quiet or not group.leads
        run = self.load()
        check_same_inputs(group, run.device_name, self.run_dir, self._files(run))
        share_evaluation(run, group)
        return run

    def _evaluate(self, group: Group) -> int:
        from weft.cli.display import Display
        from weft.cli.task_options import Flag, options_of

        run = self._load_shared(group)
        if run.decoder is not None and run.generates:
            raise UsageError("engine", "scores of language models are computed by weft itself", "remove it")
        flags = {
            "beam_size": Flag(self.beam_size),
            "length_penalty": Flag(self.length_penalty),
            "patience": Flag(self.patience),
            "context": Flag(self.context),
            "tokenize": Flag(self.tokenize),
            "truncate": Flag(self.truncate, False),
            "strict": Flag(self.strict, False),
        }
        options = options_of(run.spec.evaluate_options, run.config.task, flags)
        with Display(quiet=self.quiet) as display:

            def progress(phase: str, done: int, total: int) -> None:
                count = f"{done:,} of {total:,} {run.spec.progress_unit}" if phase == "evaluating" else ""
                display.show(phase, done / max(1, total), count)

            display.show("reading", 0.0)  # some tasks report no progress while they read
            evaluation = run.evaluate(self.data, options, progress=progress)
        group.end()
        if not group.leads:
            return 0
        if evaluation.unseen_labels:
            warn(self._unseen(run.spec.loss_unit, run.spec.output_noun, evaluation.unseen_labels), quiet=self.quiet)
        for text in evaluation.notes:
            note(text, quiet=self.quiet)
        if self.json:
            self._write_json(run, evaluation)
        else:
            self._write(run, evaluation, options)
        return 0

    def _files(self, run: AnyRun) -> list[Path]:
        """The files that are evaluated."""
        datasets = run.config.datasets
        dataset = next((datasets[name] for name in SPLITS if name in datasets), None)
        return list(self.data or (() if dataset is None else dataset.paths))

    def _write_json(self, run: AnyRun, evaluation: Evaluation) -> None:
        files = list(map(str, self._files(run)))
        unseen = {} if evaluation.unseen_labels is None else {"unseen": evaluation.unseen_labels}
        scores = [as_json(score) for score in evaluation]
        write_json({"scores": scores, **unseen, "run": str(self.run_dir), **_mixture_json(run), "data": files})

    def _write(self, run: AnyRun, evaluation: Evaluation, options: Config) -> None:
        scores = list(evaluation) if self.all else default_scores(list(evaluation))
        write(f"{self._describe_data(run, evaluation, options)}\n\n")
        write_table(columns([TITLES, *score_rows(scores)]))
        if "context" in type(options).model_fields and scores:
            lines = [describe_context(scores[0].signature), *describe_mixture(run)]
            write_styled([("", ""), *((line, "") for line in lines)])
        if self.signature:
            groups: dict[str, list[str]] = {}
            for score in scores:
                groups.setdefault(score.signature, []).append(label_of(score.name).text)
            write("\n" + "".join(f"{', '.join(names)}: {signature}\n" for signature, names in groups.items()))
        write(evaluation.report)

    def _describe_data(self, run: AnyRun, evaluation: Evaluation, options: Config) -> str:
        """'test data: last 10% of sounds.tsv (90 pairs), beam size 5, length penalty 1'."""
        datasets = run.config.datasets
        name = next((name for name in SPLITS if name in datasets), None)
        if self.data or name is None:
            files = f"data: {', '.join(map(str, self.data or ()))}"
        else:
            files = describe_split(name, datasets[name])
        searches = "beam_size" in type(options).model_fields and run.spec.decode is not None
        return ", ".join(
            [f"{files} ({evaluation.units:,} {run.spec.progress_unit})", *(_describe_search(run, options) if searches else [])]
        )

    def _unseen(self, item: str, says: str, unseen: Mapping[str, int]) -> str:
        from weft.data.summary import listed

        count, counts = sum(unseen.values()), Counter(unseen)
        examples = "1 example has" if count == 1 else f"{count:,} examples have"
        return f"{examples} {says} that are not in the training data and count as errors: {listed(counts)}"


def _mixture_json(run: AnyRun) -> dict[str, Any]:
    """The runs of a mixture with their weights, and the options of caches."""
    weights = run.weights or [1 / len(run.members)] * len(run.members)
    caches = [{} if member.cache is None else {"cache": member.cache._asdict()} for member in run.members]
    if len(run.members) == 1:
        return caches[0]
    members = zip(run.members, weights, caches, strict=True)
    return {"ensemble": [{"run": str(member.path), "weight": weight, **cache} for member, weight, cache in members]}


def _describe_search(run: AnyRun, options: Config) -> list[str]:
    """The decoding options of an evaluation, with the task's defaults."""
    decode = run.spec.decode
    if decode is None:
        return []
    defaults = {"beam_size": float(decode.beam_size), "length_penalty": decode.length_penalty}
    chosen = {name: value for name, value in options.model_dump(include=set(defaults)).items() if value is not None}
    return [f"{name.replace('_', ' ')} {value:g}" for name, value in {**defaults, **chosen}.items()]
