"""`weft serve`: runs over HTTP."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import ACCESS, SERVER, Device, ThreadedCommand
from weft.cli.output import print_message, write
from weft.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from weft.serve.languages import Pair
    from weft.serve.limits import Limits

EXTRA = "pip install 'weft[serve]'"
KEYS, SOCKET = "WEFT_API_KEYS", "WEFT_SERVE_SOCKET"  # environment: keys; the socket that a worker inherits
_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def named_runs(words: Sequence[str]) -> dict[str, Path]:
    """Run directories by name: NAME=RUN, or RUN, whose name is that of the directory."""
    runs = dict[str, Path]()
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or "/" in name or Path(word).is_dir():
            path = word
            name = Path(word).resolve().name
        if _NAME.fullmatch(name) is None:
            problem = f"{name!r} cannot be the name of a run"
            raise UsageError("run", problem, "use letters, digits, dots, dashes and underscores: NAME=RUN")
        if name in runs:
            raise UsageError("run", f"two runs have the name {name!r}", "give one another name: NAME=RUN")
        runs[name] = Path(path)
    return runs


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_extra() -> None:
    """Refuse to serve without the packages of the extra."""
    from importlib.util import find_spec

    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UsageError("serve", f"requires the package {' and '.join(missing)}", f"run {EXTRA}")


@dataclass(kw_only=True)
class Serve(ThreadedCommand):
    """Serve runs over HTTP: predictions, texts, scores, vectors, explanations, and a page.

    Requests that arrive at the same time are computed together. New weights in a run directory are loaded while the server
    runs. The log is JSON lines on standard error. SIGTERM or Ctrl-C lets running requests end. Without a key, only this machine
    is served.
    """

    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Run directories; NAME=RUN gives one a name.", show_default=False)
    ]
    host: Annotated[
        str, typer.Option(rich_help_panel=SERVER, metavar="ADDRESS", help="Address to listen on.", show_default=True)
    ] = "127.0.0.1"
    port: Annotated[
        int,
        typer.Option(rich_help_panel=SERVER, metavar="N", min=0, max=65535, help="Port; 0: a free one.", show_default=True),
    ] = 8080
    workers: Annotated[
        int,
        typer.Option(rich_help_panel=SERVER, metavar="N", min=1, max=256, help="Processes, each with its own models."),
    ] = 1
    limits: Annotated[
        Path | None, typer.Option(rich_help_panel=SERVER, metavar="FILE", help="TOML file with limits.", readable=False)
    ] = None
    limit: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=SERVER, metavar="KEY=VALUE", help="Set a limit, e.g. max_queue=128. Repeatable."),
    ] = None
    languages: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=SERVER,
            metavar="NAME=SOURCE,TARGET",
            help="Languages of a run for LibreTranslate's API, e.g. my-run=de,en. Repeatable.",
        ),
    ] = None
    key_file: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=ACCESS,
            metavar="FILE",
            readable=False,
            help=f"File with the keys of clients, one per line.  [default: the variable {KEYS}]",
        ),
    ] = None
    no_key: Annotated[bool, typer.Option("--no-key", rich_help_panel=ACCESS, help="Serve other machines without a key.")] = (
        False
    )
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel=ACCESS, metavar="URL", help="Pages of this origin may call the API. Repeatable."),
    ] = None
    log_texts: Annotated[
        bool, typer.Option("--log-texts", rich_help_panel=ACCESS, help="Log the bodies of requests as well.")
    ] = False
    engine: Annotated[
        str,
        typer.Option(
            rich_help_panel=SERVER,
            metavar="NAME",
            help="Program that searches for the outputs of encoder-decoders: torch or ctranslate2.",
            show_default=True,
        ),
    ] = "torch"
    quantization: Annotated[
        str | None,
        typer.Option(rich_help_panel=SERVER, metavar="TYPE", help="Precision of the weights of ctranslate2, such as int8."),
    ] = None
    device: Device = "auto"

    def run(self) -> int:
        check_extra()
        self._languages()
        limits, keys = self._limits(), self._keys()
        if not keys and not self.no_key and not is_loopback(self.host):
            problem = f"{self.host} is reachable from other machines, and there is no key"
            raise UsageError("host", problem, "use --key-file, or --no-key to serve everybody")
        inherited = os.environ.get(SOCKET)
        if inherited is not None:
            return self._serve(socket.socket(fileno=int(inherited)), limits, keys)
        from weft.serve.server import bind

        listener = bind(self.host, self.port)
        if self.workers > 1:
            from weft.cli.serve_workers import run_workers

            self._announce(listener)
            return run_workers(self._words(), listener, self.workers, SOCKET)
        return self._serve(listener, limits, keys)

    def _limits(self) -> Limits:
        from weft.config import override, parse_config, read_toml
        from weft.serve.limits import Limits

        values: dict[str, Any] = {} if self.limits is None else read_toml(self.limits)
        try:
            return parse_config(Limits, override(values, self.limit or [], where="limit"), prefix="")
        except ConfigError as error:
            raise UsageError("limits" if error.where == "run file" else error.where, error.problem, error.fix) from None

    def _languages(self) -> dict[str, Pair]:
        from weft.serve.languages import parse_languages

        return parse_languages(self.languages or [], list(named_runs(self.runs)))

    def _keys(self) -> list[str]:
        from weft.serve.keys import parse_keys, read_keys

        if self.key_file is not None:
            return read_keys(self.key_file)
        text = os.environ.get(KEYS, "")
        return parse_keys(text.replace(",", "\n"), KEYS) if text.strip() else []

    def _serve(self, listener: socket.socket, limits: Limits, keys: list[str]) -> int:
        from weft.cli.memory import keep_freed_memory
        from weft.serve import libretranslate, openai
        from weft.serve.access_log import Log
        from weft.serve.engine import Engine
        from weft.serve.http import create_app, create_services
        from weft.serve.languages import Languages
        from weft.serve.server import serve

        keep_freed_memory()
        log = Log(_write_line)
        engine = Engine(
            named_runs(self.runs),
            limits=limits,
            device=self.device,
            engine=self.engine,
            quantization=self.quantization,
            log=log.event,
        )
        services = create_services(
            engine,
            keys=keys,
            log=log.request,
            log_texts=self.log_texts,
            refuses_foreign_hosts=not (keys or self.no_key),
        )
        tables = [openai.ROUTES, libretranslate.routes(Languages(engine, self._languages()))]
        app = create_app(services, tables=tables, cors_origins=self.cors_origin or [])
        if SOCKET not in os.environ:
            self._announce(listener)
        serve(app, services, listener, log)
        if engine.is_busy:
            os._exit(0)  # PyTorch aborts the process if the interpreter ends while another thread is in it
        return 0

    def _announce(self, listener: socket.socket) -> None:
        """Print the address."""
        if self.quiet:
            return
        host = f"[{self.host}]" if ":" in self.host else self.host
        write(f"Serving {', '.join(named_runs(self.runs))} at http://{host}:{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        if self.host not in ("127.0.0.1", "::1", "localhost") and self.no_key:
            print_message("warning", "everybody who reaches this address can use the runs")

    def _words(self) -> list[str]:
        """The arguments of a worker."""
        words = ["serve", *self.runs, "--host", self.host, "--device", self.device, "--engine", self.engine, "--quiet"]
        words += [] if self.quantization is None else ["--quantization", self.quantization]
        words += [] if self.threads is None else ["--threads", str(self.threads)]
        words += [] if self.limits is None else ["--limits", str(self.limits)]
        words += [] if self.key_file is None else ["--key-file", str(self.key_file)]
        words += [word for limit in self.limit or [] for word in ("--limit", limit)]
        words += [word for pair in self.languages or [] for word in ("--languages", pair)]
        words += [word for origin in self.cors_origin or [] for word in ("--cors-origin", origin)]
        return words + ["--no-key"] * self.no_key + ["--log-texts"] * self.log_texts


def _write_line(line: str) -> None:
    try:
        sys.stderr.write(line)
        sys.stderr.flush()
    except (OSError, ValueError):  # the reader of the log is gone; requests are still answered
        pass
