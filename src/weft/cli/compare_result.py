"""What a comparison ends with: evidence, the table, comparison.json and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.cli.output import check_files, note, terminal_width, write, write_json

if TYPE_CHECKING:
    from weft.cli.display import Display
    from weft.comparison.results import RunResults
    from weft.report.comparison import ComparisonInfo

Groups = Mapping[str, Sequence["RunResults"]]


class OutputOptions(NamedTuple):
    """How results are given out."""

    csv: Path | None
    markdown: Path | None
    latex: Path | None
    json: bool
    quiet: bool

    def check(self, output_dir: Path) -> None:
        """Refuse at once what could only fail after hours of training; `out`, the comparison's folder, will be there."""
        from weft.errors import UsageError

        tables = {"--csv": self.csv, "--markdown": self.markdown, "--latex": self.latex}
        printed = [option for option, path in tables.items() if str(path) == "-"] + ["--json"] * self.json
        if len(printed) > 1:
            raise UsageError(" and ".join(printed), "standard output is for one of them", "give the others a file")
        check_files(tables, will_be=output_dir)


def _with_pairs(found: Mapping[str, Any], results: Groups, facts: ComparisonInfo, display: Display) -> dict[str, Any]:
    """The comparison with what its runs prefer of minimal pairs, as breakdowns and as the table of them."""
    from weft.cli.minimal_pairs_runner import MinimalPairsRunner
    from weft.cli.minimal_pairs_table import as_json, signature
    from weft.comparison.minimal_pairs import breakdowns

    prober, rows = MinimalPairsRunner(facts.pairs, display), [row["name"] for row in found["rows"]]
    items = prober.evaluate({str(run.run): run.run for row in rows for run in results[row]})
    groups = {row: [items[str(run.run)] for run in results[row]] for row in rows}
    told = prober.rows(groups)
    about = {"suite": list(map(str, facts.suites)), "signature": signature(len(facts.pairs))}
    return {
        **found,
        "breakdowns": [*found["breakdowns"], *breakdowns(told)],
        "probe": {**as_json(told, groups), **about},
    }


def written(results: Groups, facts: ComparisonInfo, output_dir: Path, display: Display) -> dict[str, Any]:
    """comparison.json and report.html in `out`; what the first of them holds."""
    from weft.report.comparison import write_comparison

    def extended(found: Mapping[str, Any]) -> dict[str, Any]:
        return _with_pairs(found, results, facts, display) if facts.pairs else dict(found)

    return write_comparison(results, facts, output_dir, display, extended)


def give_failures(facts: ComparisonInfo) -> None:
    """JSON of a comparison of which nothing is left to compare: what failed, in the shape of any other."""
    nothing = dict.fromkeys(("task", "data", "score", "test", "tested", "too_little", "context"))
    write_json({"title": facts.title, **nothing, "rows": [], "failures": [failure._asdict() for failure in facts.failures]})


def context_line(found: Mapping[str, Any]) -> str:
    """The line below a table that names the context policy of its scores, where they have one."""
    text = found["context"]["text"] if found.get("context") else ""
    return "".join(letter if letter.isprintable() else " " for letter in text) + "\n" * bool(text)


def give(results: Groups, found: Mapping[str, Any], facts: ComparisonInfo, wanted: OutputOptions) -> None:
    """Tables to files and to standard output."""
    from weft import files
    from weft.cli.minimal_pairs_table import as_table
    from weft.comparison import table, table_text

    rows = table.rows(results, facts.score)
    given = [(wanted.csv, table_text.csv), (wanted.markdown, table_text.markdown), (wanted.latex, table_text.latex)]
    to_stdout = wanted.json
    for path, writer in given:
        if path is None:
            continue
        if str(path) == "-":
            write(writer(rows))
            to_stdout = True
        else:
            files.write_text(path, writer(rows), named=True)
    if wanted.json:
        names = ("title", "task", "data", "score", "test", "tested", "too_little", "context", "rows", "failures", "probe")
        write_json({name: found[name] for name in names if name in found})
    elif not to_stdout:
        write(table_text.terminal(rows, terminal_width()) + context_line(found))
        for told in (found["too_little"], found["test"]):
            if told:
                note(told, quiet=wanted.quiet)
        if "probe" in found:
            write("\n" + as_table(found["probe"]))
