"""`weft align`: a bilingual lexicon from word vectors of two languages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import FILES, ModelCommand
from weft.cli.output import check_files, status, write_json, write_table
from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.lexicon.align import Alignment
    from weft.lexicon.evaluation import LexiconScores
    from weft.vectors.word_vectors import WordVectors


def _methods() -> list[str]:
    return ["procrustes", "least-squares"]


def _retrievals() -> list[str]:
    return ["csls", "nearest"]


@dataclass(kw_only=True)
class Align(ModelCommand):
    """Map word vectors of one language to another, and translate words.

    Learns a rotation (Procrustes) from a dictionary, two words per line, or from words that are spelled alike. Refinement adds
    pairs of words that are each other's best translation. --test scores a dictionary: P@1, P@5, P@10, MRR and MAP with 95%
    confidence intervals. --output writes translations of all source words, --vectors the mapped source vectors.
    """

    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Vectors of the source language: run directory or file.")]
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Vectors of the target language.")]
    dictionary: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=FILES, metavar="FILE", help="Pairs of translations to learn from.  [default: words spelled alike]"
        ),
    ] = None
    test: Annotated[
        Path | None, typer.Option(rich_help_panel=FILES, metavar="FILE", help="Pairs of translations to score.")
    ] = None
    method: Annotated[str, typer.Option(metavar="NAME", autocompletion=_methods, help="procrustes or least-squares.")] = (
        "procrustes"
    )
    retrieval: Annotated[
        str,
        typer.Option(metavar="NAME", autocompletion=_retrievals, help="csls, or nearest: the highest cosine."),
    ] = "csls"
    refine: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Rounds of refinement.  [default: 1 with a dictionary, 5 without]"),
    ] = None
    num_translations: Annotated[int, typer.Option(metavar="N", min=1, help="Translations per word in the lexicon.")] = 5
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", rich_help_panel=FILES, metavar="FILE", help="Lexicon: word, translation, similarity."),
    ] = None
    vectors: Annotated[
        Path | None,
        typer.Option(rich_help_panel=FILES, metavar="FILE", help="Mapped source vectors, .txt, .bin or another format."),
    ] = None

    def run(self) -> int:
        from weft.cli.display import Display
        from weft.lexicon.align import AlignOptions, align, check_options
        from weft.lexicon.dictionary import covered_pairs, read_dictionary
        from weft.lexicon.evaluation import evaluate_lexicon
        from weft.runs.open_vectors import open_vectors

        options = AlignOptions(method=self.method, retrieval=self.retrieval, refine=self.refine)
        check_options(options)
        check_files({"output": self.output, "vectors": self.vectors})
        if self.test is None and self.output is None and self.vectors is None:
            raise UsageError("align", "nothing to do with the mapping", "use --test FILE, --output FILE or --vectors FILE")
        dictionary = None if self.dictionary is None else read_dictionary(self.dictionary)
        test = None if self.test is None else read_dictionary(self.test)
        with Display(quiet=self.quiet) as display:
            display.show("reading vectors", 0.0)
            source, target = open_vectors(self.source), open_vectors(self.target)
            pairs = None if dictionary is None else covered_pairs(dictionary, source, target)

            def progress(done: int, total: int) -> None:
                display.show("refining", done / total, f"{done} of {total} rounds")

            alignment = align(source, target, pairs, options, progress=progress)
            display.show("translating", 1.0)
            retrieval = alignment.retrieval(self.retrieval)
            signature = f"method:{self.method}|retrieval:{self.retrieval}|pairs:{alignment.pairs}"
            scores = None if test is None else evaluate_lexicon(test, source, target, retrieval, signature=signature)
            written = self._write(source, target, alignment)
        covered = None if pairs is None else {"covered": len(pairs.source), "total": pairs.total}
        self._print(scores, {"dictionary": covered, "pairs": alignment.pairs})
        for path in written:
            status(f"Saved {path}", quiet=self.quiet)
        return 0

    def _write(self, source: WordVectors, target: WordVectors, alignment: Alignment) -> list[Path]:
        """Write the lexicon and the mapped vectors."""
        from weft import files
        from weft.lexicon.evaluation import lexicon
        from weft.vectors.formats import write_vectors
        from weft.vectors.word_vectors import dense_vectors

        if self.vectors is not None:
            write_vectors(dense_vectors(source.words, alignment.source, str(self.vectors)), self.vectors)
        if self.output is not None:
            entries = lexicon(source, target, alignment.retrieval(self.retrieval), count=self.num_translations)
            lines = [f"{word}\t{other}\t{value:.4f}\n" for word, found in entries for other, value in found]
            files.write_text(self.output, "".join(lines), user_path=True)
        return [path for path in (self.vectors, self.output) if path is not None]

    def _print(self, scores: LexiconScores | None, about: dict[str, Any]) -> None:
        from weft.cli.commands.evaluate import as_json
        from weft.metrics.score_table import TITLES, score_rows
        from weft.text.table_layout import columns

        if self.json:
            found = {} if scores is None else {"scores": [as_json(score) for score in scores.scores]}
            write_json({**about, **found})
            return
        covered = about["dictionary"]
        learned = "words spelled alike" if covered is None else f"{covered['covered']:,} of {covered['total']:,} pairs covered"
        status(f"Dictionary: {learned}; learned from {about['pairs']:,} pairs", quiet=self.quiet)
        if scores is not None:
            status(f"Test: {scores.covered:,} of {scores.total:,} source words covered", quiet=self.quiet)
            write_table(columns([TITLES, *score_rows(scores.scores)]))
