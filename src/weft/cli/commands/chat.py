"""`weft chat`: talk to a model that responds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.options import DECODING, Device, ModelCommand, RunDirectory, Temperature, TopK, TopP
from weft.cli.output import note, print_message, styled, write, write_json
from weft.errors import DataError, UsageError

if TYPE_CHECKING:
    from weft.cli.input_lines import Line
    from weft.decode.options import GenerationConfig
    from weft.runs.run import AnyRun

HELP = "/reset starts a new conversation, /quit or Ctrl-D ends; Ctrl-C stops a response"


def _typed_lines() -> Iterator[str]:
    """Lines that are typed in a terminal, with its editing keys."""
    import readline  # noqa: F401  # `input` uses it

    while True:
        try:
            yield input(styled("> ", "bold", sys.stdout))
        except EOFError:
            write("\n")
            return


@dataclass(kw_only=True)
class Chat(ModelCommand):
    """Talk to an instruction-tuned model.

    Reads one message per line from the terminal or from standard input, and prints the responses as they are generated. The
    conversation so far is part of each prompt, in the template that the model was trained with; if it is too long, its first
    turns are left out. /reset starts a new conversation, /quit ends.
    """

    run_dir: RunDirectory
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System message at the beginning of each conversation.")
    ] = None
    max_new_tokens: Annotated[
        int, typer.Option(rich_help_panel=DECODING, metavar="N", help="Maximum number of tokens of a response.")
    ] = 200
    temperature: Temperature = None
    top_k: TopK = None
    top_p: TopP = None
    seed: Annotated[int, typer.Option(rich_help_panel=DECODING, metavar="N", help="Sampling seed.")] = 0
    device: Device = "auto"

    def run(self) -> int:
        from weft.decode.options import GenerationConfig
        from weft.runs.load import load

        options = GenerationConfig(
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
        )
        run = load(self.run_dir, device=self.device)
        if run.spec.decode is None or run.spec.decode.chat is None:
            raise UsageError(self.run_dir, f"models of task {run.config.task!r} do not talk", f"use weft {run.spec.command}")
        is_terminal = sys.stdin.isatty()
        if is_terminal:
            note(HELP, quiet=self.quiet)
        return self._talk(run, options, is_terminal=is_terminal)

    def _talk(self, run: AnyRun, options: GenerationConfig, *, is_terminal: bool) -> int:
        """Respond to each line; returns the exit code."""
        from weft.cli.input_lines import any_lines

        lines: Iterator[Line] = _typed_lines() if is_terminal else any_lines(None, "utf-8")
        start = [] if self.system is None else [("system", self.system)]
        messages, code, left_out = list(start), 0, 0
        for line in lines:
            if isinstance(line, DataError):
                print_message("warning", str(line))
                code = DataError.exit_code
            elif line.strip() == "/quit":
                break
            elif line.strip() == "/reset":
                messages, left_out = list(start), 0
            elif line.strip():
                prompt = [*messages, ("user", line)]
                try:
                    # other random numbers for each response of a conversation
                    turn = options.model_copy(update={"seed": self.seed + len(messages)})
                    left_out = self._note_left_out(run, prompt, turn, left_out)
                    messages = [*prompt, ("assistant", self._respond(run, prompt, turn))]
                except (DataError, UsageError) as error:  # such as a message that is too long: the conversation goes on
                    print_message("warning", str(error))
                    code = DataError.exit_code
        return code

    def _note_left_out(self, run: AnyRun, messages: list[tuple[str, str]], options: GenerationConfig, before: int) -> int:
        """Say once per conversation that its first messages do not fit any more; returns how many do not."""
        decode = run.spec.decode
        if decode is None or decode.frame_chat is None:
            return 0
        _, frame = decode.frame_chat(run, messages, options)
        if frame.left_out and not before:
            note(
                f"The conversation is longer than data.max_length = {run.config.data.max_length}: from now on, its first"
                " messages are left out. /reset starts a new one.",
                quiet=self.quiet,
            )
        return frame.left_out

    def _respond(self, run: AnyRun, messages: list[tuple[str, str]], options: GenerationConfig) -> str:
        """Print a response as it grows, up to the end or Ctrl-C, and return it."""
        decode = run.spec.decode
        if decode is None or decode.chat is None:
            raise run.wrong_task()
        chunks = list[str]()
        try:
            for chunk in decode.chat(run, messages, options):
                chunks.append(chunk)
                if not self.json:
                    write(chunk)
                    sys.stdout.flush()
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
        text = "".join(chunks)
        if self.json:
            write_json({"prompt": messages[-1][1], "response": text}, indent=None)
        else:
            write("\n" if text.endswith("\n") else "\n\n" if sys.stdout.isatty() else "\n")
        sys.stdout.flush()
        return text
