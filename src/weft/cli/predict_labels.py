"""`weft predict` of runs that give labels: to texts, or to words."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.cli.entries import Inputs, Parse, faults_in, tell_faults, written
from weft.cli.label_output import label_json, label_line, label_values, tag_json, tag_line
from weft.cli.output import write, write_json
from weft.cli.together import tell_cut

if TYPE_CHECKING:
    from weft.data.records import Entry

LABEL = ("prediction", "probability")  # what is added to records of files


def parse_texts(columns: int) -> Parse:
    """How a line is read: as one text, or as several with tabs between."""

    def parse(line: str) -> tuple[tuple[str, ...], str | None]:
        texts = (line,) if columns == 1 else tuple(line.split("\t"))
        if line.strip() and len(texts) != columns:
            return (), f"needs {columns} texts, separated by tabs, and has {len(texts)}"
        return texts, None

    return parse


def _faults(run: Any, entries: Sequence[Entry]) -> dict[int, str]:
    """Records that can't be used: those without the texts that the run reads, and too long ones; an empty one has no label."""
    faults = faults_in(entries)
    whole = [at for at, entry in enumerate(entries) if at not in faults and "".join(entry.texts).strip()]
    long = run.reader.faults([entries[at].texts for at in whole])
    return faults | {whole[at]: why for at, why in long.items()}


def predict_labels(run: Any, inputs: Inputs, *, json: bool, quiet: bool) -> int:
    """Print the label, or labels, of every record: how many had none, because they could not be read."""
    bad, several = 0, run.settings.data.multi
    for entries in inputs.batches():
        faults = _faults(run, entries)
        tell_faults(entries, faults)
        filled = [at for at, entry in enumerate(entries) if at not in faults and "".join(entry.texts).strip()]
        found = dict(zip(filled, run.predict([entries[at].texts for at in filled]), strict=True))
        tell_cut(sum(one.cut for one in found.values()), quiet=quiet)
        for at, entry in enumerate(entries):
            if json:
                error = {"error": faults[at]} if at in faults else {}
                empty: dict[str, Any] = {"text": entry.text, "labels": [], "probabilities": {}}
                write_json({**(label_json(entry.text, found[at]) if at in found else empty), **error}, indent=None)
            elif inputs.form.plain:
                write((label_line(found[at], several=several) if at in found else "") + "\n")
            else:
                write(written(inputs, entry, label_values(found.get(at), several=several), faults.get(at)))
        bad += len(faults)
        sys.stdout.flush()
    return bad


def predict_tags(run: Any, inputs: Inputs, *, json: bool, quiet: bool) -> int:
    """Print every record with tags: how many had none, because they could not be read."""
    bad = 0
    for entries in inputs.batches():
        faults = faults_in(entries)
        read = [() if at in faults else entry.texts for at, entry in enumerate(entries)]
        faults |= run.reader.faults(read)
        tell_faults(entries, faults)
        tagged = run.predict([() if at in faults else words for at, words in enumerate(read)])
        for at, (entry, found) in enumerate(zip(entries, tagged, strict=True)):
            if json:
                error = {"error": faults[at]} if at in faults else {}
                write_json({**tag_json(entry.text, found), **error}, indent=None)
            elif inputs.form.plain:
                write(tag_line(found) + "\n")
            else:
                write(written(inputs, entry, {"prediction": found.tags}, faults.get(at)))
        bad += len(faults)
        sys.stdout.flush()
    return bad
