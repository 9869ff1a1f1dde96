"""README.md of an exported directory: a model card in Markdown, with the YAML head that Hugging Face reads.

Numbers come from the run: its configuration, the files that training read, its best validation score, and the scores of
`weft evaluate --json` if they are given. Paths of the machine are reduced to names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from weft import __version__, files
from weft.data.provenance import read_fingerprints
from weft.errors import UsageError
from weft.interop import model_card_usage
from weft.interop.export_record import RECORD, ExportOptions
from weft.metrics.items import Score
from weft.metrics.labels import format_score, label_of
from weft.metrics.score_table import TITLES, default_scores, score_rows
from weft.resources import format_bytes
from weft.runs.run import AnyRun
from weft.runs.status import read_run_status

CARD = "README.md"
UNKNOWN = "unknown"
LIBRARIES = {"hf": "transformers"}  # names in the head that differ from those of formats


class Scores(NamedTuple):
    """Scores, and the names of the files that they were computed on."""

    scores: list[Score]
    data: list[str]


def read_scores(path: Path) -> Scores:
    """The scores that `weft evaluate --json` has written to a file."""
    content = files.read_json(path)
    entries = content.get("scores") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not all(
        isinstance(entry, dict) and entry.keys() >= set(Score._fields) for entry in entries
    ):
        raise UsageError("scores", f"{path} has no scores", "write it with weft evaluate RUN --json")
    scores = [Score(*(entry[field] for field in Score._fields)) for entry in entries]
    return Scores(scores, [Path(name).name for name in content.get("data") or []])


# ---- parts


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A Markdown table with a head."""
    head, *body = rows
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from ("| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in body)


def _head(run: AnyRun, name: str, options: ExportOptions, scores: Scores) -> Iterator[str]:
    """The YAML head. Values are JSON, which is YAML."""
    tag = model_card_usage.pipeline_tag(run, name)
    values: dict[str, Any] = {
        "library_name": LIBRARIES.get(name, name),
        "license": options.license or UNKNOWN,
        "tags": ["weft", run.task, run.arch],
        **({} if tag is None else {"pipeline_tag": tag}),
    }
    if scores.scores:
        dataset = ", ".join(scores.data) or "test data"
        metrics = [
            {"type": score.name, "name": label_of(score.name).text, "value": score.value}
            for score in default_scores(scores.scores)
        ]
        result = {"task": {"type": tag or run.task}, "dataset": {"name": dataset, "type": "file"}, "metrics": metrics}
        values["model-index"] = [{"name": run.path.resolve().name, "results": [result]}]
    yield "---"
    yield from (f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
    yield "---"


def _model(run: AnyRun, name: str, quantization: str | None) -> Iterator[str]:
    tokenizers = [f"{tokenizer.type}, {tokenizer.vocab_size:,} tokens" for tokenizer in run.vocabulary.by_name().values()]
    labels = ", ".join(f"`{label}`" for label in run.labels[:20]) + (", ..." if len(run.labels) > 20 else "")
    rows = [
        ["", ""],
        ["task", f"{run.task}: {run.spec.description}"],
        ["architecture", run.arch],
        ["size", f"{run.num_parameters:,} {run.config.preset.unit}"],
        ["weights", "float32" if quantization is None else quantization],
        ["tokenizer", "; ".join(tokenizers)],
        *([["labels", labels]] if labels else []),
        ["format", name],
    ]
    yield from _table(rows)


def _data(run: AnyRun) -> Iterator[str]:
    """The files that training read, by name, size and checksum."""
    rows = [["split", "file", "size", "SHA-256"]]
    for split in ("train", "valid", "test"):
        for entry in {
            json.dumps(entry, sort_keys=True): entry for entry in read_fingerprints(run.directory.data, split)
        }.values():
            size = format_bytes(entry["bytes"]) if isinstance(entry.get("bytes"), int) else "-"
            rows.append([split, f"`{Path(str(entry.get('file', '-'))).name}`", size, f"`{str(entry.get('sha256', '-'))[:16]}`"])
    if len(rows) == 1:
        yield "The run does not say which data the model was trained on."
    else:
        yield from _table(rows)


def _results(run: AnyRun, scores: Scores) -> Iterator[str]:
    if scores.scores:
        shown = default_scores(scores.scores)
        yield f"On {', '.join(f'`{name}`' for name in scores.data) or 'the test data'}, with 95% confidence intervals:"
        yield ""
        yield from _table([["metric", *TITLES[1:]], *score_rows(shown)])
        yield ""
        yield from (f"    {signature}" for signature in dict.fromkeys(score.signature for score in shown))
        return
    best = read_run_status(run.path).best
    if best is None:
        yield "The model was not evaluated."
        return
    label = label_of(best[0].name)
    yield f"Best {label.text} on the validation data, which selected the weights: {format_score(best[1], label.style)}. "
    yield "There are no scores on test data: `weft export --scores` adds those of `weft evaluate --json`."


def without_paths(value: Any) -> Any:
    """The values of a run file with names instead of absolute paths."""
    if isinstance(value, Mapping):
        return {key: without_paths(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [without_paths(entry) for entry in value]
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value


def _settings(run: AnyRun) -> Iterator[str]:
    yield "```toml"
    yield tomli_w.dumps(without_paths(run.config.to_dict())).rstrip("\n")
    yield "```"


def _limitations(run: AnyRun, notes: Sequence[str]) -> Iterator[str]:
    max_positions = run.model.max_positions if run.network is not None else None
    context_length = run.config.to_dict()["data"].get("context_length")
    yield "- The model has learned from its training data only, with the errors and biases of that data."
    yield "- It was not tested for harmful outputs, nor on other data than that of the results above."
    if max_positions is not None:
        yield f"- Inputs have at most {max_positions:,} tokens."
    elif context_length is not None:
        yield f"- The model was trained with contexts of {context_length:,} tokens: keep input and output within that."
    yield from (f"- {note[:1].upper()}{note[1:]}." for note in notes)


# ---- the card


def card(run: AnyRun, name: str, directory: Path, options: ExportOptions, notes: Sequence[str]) -> str:
    """The text of README.md."""
    scores = Scores([], []) if options.scores is None else read_scores(options.scores)
    record = files.read_json(directory / RECORD) if (directory / RECORD).is_file() else {}
    check = record.get("check")
    difference = "" if check is None else f" Its outputs differ from those of the run by at most {check['max_difference']:.2g}."
    license_text = "The license is unknown: ask the author." if options.license is None else f"License: {options.license}."
    sections: dict[str, Iterator[str]] = {
        "Model": _model(run, name, options.quantization),
        "Use": iter(model_card_usage.usage(run, name, str(record.get("call", "")))),
        "Training data": _data(run),
        "Results": _results(run, scores),
        "Limitations": _limitations(run, notes),
        "License": iter([license_text]),
        "Settings": _settings(run),
    }
    intro = f"Trained with weft and exported by weft {__version__}.{difference}"
    lines = [*_head(run, name, options, scores), "", f"# {run.path.resolve().name}", "", intro]
    for title, content in sections.items():
        lines += ["", f"## {title}", "", *content]
    return "\n".join(lines) + "\n"


def write_card(run: AnyRun, name: str, directory: Path, options: ExportOptions, notes: Sequence[str]) -> None:
    """Write README.md, and add its checksum to export.json."""
    path = directory / CARD
    files.write_text(path, card(run, name, directory, options, notes))
    if (directory / RECORD).is_file():
        record = files.read_json(directory / RECORD)
        record["files"] |= {CARD: {"size": path.stat().st_size, "sha256": files.sha256(path)}}
        files.write_json(directory / RECORD, record)
