"""`weft predict` of runs that give labels: to texts, or to words."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from weft.cli.label_output import label_json, label_line, tag_json, tag_line
from weft.cli.output import write, write_json
from weft.cli.together import no_text, tell, tell_cut, without
from weft.errors import DataError

if TYPE_CHECKING:
    from weft.cli.lines import Line


def _texts(line: str, columns: int) -> str | tuple[str, ...]:
    return line if columns == 1 else tuple(line.split("\t"))


def _faults(run: Any, lines: Sequence[str]) -> dict[int, str]:
    """Lines without the texts that the run reads, or with too long ones; an empty line is none, and has no label."""
    texts = {at: _texts(line, run.columns) for at, line in enumerate(lines) if line.strip()}
    wrong = "needs {} texts, separated by tabs, and has {}"
    unfit = {
        at: wrong.format(run.columns, len(found))
        for at, found in texts.items()
        if run.columns > 1 and len(found) != run.columns
    }
    whole = [at for at in texts if at not in unfit]
    return unfit | {whole[at]: why for at, why in run.faults([texts[at] for at in whole]).items()}


def predict_labels(run: Any, batches: Iterator[Sequence[Line]], *, json: bool, quiet: bool) -> int:
    """Print the label, or labels, of every line: how many lines had none, because they could not be read."""
    done, bad, several = 0, 0, run.settings.data.multi
    for batch in batches:
        broken = no_text(batch)
        read = without(batch, broken)
        faults = tell(broken, _faults(run, read), done)
        filled = [at for at, line in enumerate(read) if line.strip() and at not in faults]
        found = dict(zip(filled, run.predict([_texts(read[at], run.columns) for at in filled]), strict=True))
        tell_cut(run.cut if filled else 0, quiet=quiet)
        for at, line in enumerate(batch):
            if json:
                text = None if isinstance(line, DataError) else line
                error = {"error": faults[at]} if at in faults else {}
                said = label_json(text, found[at]) if at in found else {"text": text, "labels": [], "probabilities": {}}
                write_json({**said, **error}, indent=None)
            else:
                write((label_line(found[at], several=several) if at in found else "") + "\n")
        done, bad = done + len(batch), bad + len(faults)
        sys.stdout.flush()
    return bad


def predict_tags(run: Any, batches: Iterator[Sequence[Line]], *, json: bool, quiet: bool) -> int:
    """Print every line with tags: how many lines had none, because they could not be read."""
    done, bad = 0, 0
    for batch in batches:
        broken = no_text(batch)
        faults = tell(broken, run.faults(without(batch, broken)), done)
        for at, (line, found) in enumerate(zip(batch, run.predict(without(batch, faults)), strict=True)):
            text = None if isinstance(line, DataError) else line
            error = {"error": faults[at]} if at in faults else {}
            if json:
                write_json({**tag_json(text, found), **error}, indent=None)
            else:
                write(tag_line(found) + "\n")
        done, bad = done + len(batch), bad + len(faults)
        sys.stdout.flush()
    return bad
