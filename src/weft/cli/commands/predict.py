"""`weft predict`: one line in, one line out; a table in, a table out."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.engine_options import EngineOptions
from weft.cli.ensemble_options import SearchOptions
from weft.cli.options import DECODING, FILES, InputFiles, Processes, Temperature, TopK, TopP
from weft.cli.output import write, write_json
from weft.errors import UsageError
from weft.text.table_layout import on_one_line

if TYPE_CHECKING:
    from weft.cli.task_options import Flag
    from weft.parallel.group import Group
    from weft.runs.run import AnyRun

N_BEST_HEADER = "line\tscore\toutput"


@dataclass(kw_only=True)
class Predict(EngineOptions, SearchOptions):
    """Predict translations, labels, tags, answers or masked tokens, line by line.

    One line in, one line out; an empty line stays empty. Files are read as in training: of tables (.csv, .tsv, .jsonl) the text
    columns, and the same table is printed with the prediction added; CoNLL files with the tags. Masked language models print
    the most probable tokens for each [MASK]. A line that cannot be used gives an empty line, a warning, and exit code 3 at the
    end.
    """

    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", show_default=False, help="Input; without it, standard input is read.")
    ] = None
    n_best: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=DECODING,
            metavar="N",
            help="Print the N best outputs of each line.  [default: 1; for masked tokens 5]",
        ),
    ] = None
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=DECODING,
            metavar="N",
            help="Maximum number of tokens to generate.  [default: twice the source length plus 32]",
        ),
    ] = None
    min_new_tokens: Annotated[
        int,
        typer.Option(rich_help_panel=DECODING, metavar="N", help="Minimum number of tokens to generate.", show_default=True),
    ] = 0
    target_prefix: Annotated[
        str,
        typer.Option(
            rich_help_panel=DECODING, metavar="TEXT", show_default=False, help="Force outputs to start with this text."
        ),
    ] = ""
    ban_token: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=DECODING, metavar="TOKEN", help="Never generate this token. Repeatable."),
    ] = None
    num_samples: Annotated[
        int, typer.Option(rich_help_panel=DECODING, metavar="N", help="Sample N outputs instead of searching.")
    ] = 1
    temperature: Temperature = None
    top_k: TopK = None
    top_p: TopP = None
    seed: Annotated[int, typer.Option(rich_help_panel=DECODING, metavar="N", help="Sampling seed.")] = 0
    add_noise: Annotated[
        bool,
        typer.Option(
            "--add-noise",
            rich_help_panel=DECODING,
            help="Task denoising: corrupt each line as in training, and print the corrupted, target and restored text.",
        ),
    ] = False
    processes: Processes = None
    input: InputFiles = None
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            rich_help_panel=FILES,
            help="Recognize speech while it arrives on standard input: 16-bit PCM at the rate of the run, or WAV.",
        ),
    ] = False
    pause: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=FILES,
            metavar="SECONDS",
            help="With --stream: a pause this long ends an utterance, which is then a line; 0: none does.  [default: 2]",
        ),
    ] = None
    save_alignments: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=FILES,
            metavar="DIR",
            help="Write attention, or the times of words, as JSON and SVG to this directory.",
        ),
    ] = None
    layer: Annotated[
        int | None,
        typer.Option(rich_help_panel=FILES, metavar="N", help="Layer number, from 1, for --save-alignments.  [default: mean]"),
    ] = None
    head: Annotated[
        int | None,
        typer.Option(rich_help_panel=FILES, metavar="N", help="Head number, from 1, for --save-alignments.  [default: mean]"),
    ] = None

    def num_processes(self) -> int:
        return self.processes or 1

    def advice(self) -> str:
        return "the outputs so far are complete"

    def run(self) -> int:
        from weft.cli.group import joined
        from weft.cli.memory import keep_freed_memory
        from weft.training.device import uses_gpu

        keep_freed_memory()
        with joined("cuda" if uses_gpu(self.device) else "cpu", self.advice()) as group:
            self._check_shared(group)
            return self._predict(group)

    def _check_shared(self, group: Group) -> None:
        """Refuse inputs that several processes cannot divide."""
        if group.size == 1:
            return
        self.quiet = self.quiet or not group.leads
        if self.stream:
            raise UsageError("processes", "a stream is read in its order", "leave it out")
        if self.text is not None:
            raise UsageError("processes", "one text cannot be divided", "leave it out, or read lines with --input")
        if self.engine != "torch":
            raise UsageError("processes", "cannot be combined with `engine`", "use --threads")

    def _predict(self, group: Group) -> int:
        from weft.cli.group import check_same_inputs
        from weft.cli.predict_lines import predict_lines
        from weft.cli.task_options import options_of
        from weft.files import blocking_file

        if self.save_alignments is not None and (file := blocking_file(self.save_alignments)) is not None:
            raise UsageError("save_alignments", f"{file} is a file", "name a directory")
        run = self.load()
        if run.spec.command != "predict":
            raise run.wrong_task()
        check_same_inputs(group, run.device_name, self.run_dir, [])
        options = options_of(run.spec.predict_options, run.config.task, self._flags())
        if self.stream:
            return self._stream(run)
        if self.pause is not None:
            raise UsageError("pause", "requires --stream")
        header = run.spec.output_header
        if self.num_samples > 1 or (self.n_best or 1) > 1:
            header = header or N_BEST_HEADER
        return predict_lines(run, options, self, extra_dir=self.save_alignments, header=header, group=group)

    def _stream(self, run: AnyRun) -> int:
        """Print the output for standard input while it arrives."""
        from weft.cli.input_lines import stdin_bytes
        from weft.cli.task_options import Flag

        others = {"input": Flag(self.input), "text": Flag(self.text)}
        for option, flag in {**self._flags(), **others}.items():
            if flag.value != flag.default and (option, flag.value) != ("beam_size", 1):
                problem = f"cannot be combined with `{flag.name or option}`"
                raise UsageError("stream", problem, "a stream is standard input, decoded greedily")
        if sys.stdin.isatty():
            raise UsageError("stream", "standard input is a terminal", "pipe audio into the command")
        is_line_open = True  # a stream without text is an empty line
        for change in run.predict_stream(stdin_bytes(), **({} if self.pause is None else {"pause": self.pause})):
            if self.json:
                times = {"start": change.start, "end": change.end}
                line = {"utterance": change.utterance, "text": change.text, "final": change.is_final, **times}
                write_json(line, indent=None)
            else:
                write(on_one_line(change.new) + ("\n" if change.is_final else ""))
                is_line_open = not change.is_final
            sys.stdout.flush()
        write("" if self.json or not is_line_open else "\n")
        return 0

    def _flags(self) -> dict[str, Flag]:
        from weft.cli.task_options import Flag

        return {
            "beam_size": Flag(self.beam_size),
            "length_penalty": Flag(self.length_penalty),
            "patience": Flag(self.patience),
            **({} if self.n_best is None else {"n_best": Flag(self.n_best)}),
            "max_new_tokens": Flag(self.max_new_tokens),
            "min_new_tokens": Flag(self.min_new_tokens, 0),
            "target_prefix": Flag(self.target_prefix, ""),
            "banned_tokens": Flag(self.ban_token or [], [], "ban-token"),
            "num_samples": Flag(self.num_samples, 1),
            "temperature": Flag(self.temperature),
            "top_k": Flag(self.top_k),
            "top_p": Flag(self.top_p),
            "seed": Flag(self.seed, 0),
            "truncate": Flag(self.truncate, False),
            "add_noise": Flag(self.add_noise, False),
            "return_alignments": Flag(self.save_alignments is not None, False, "save-alignments"),
            "layer": Flag(self.layer),
            "head": Flag(self.head),
        }
