"""A language server over stdin and stdout: where the name at a place is defined."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.parse import unquote, urlparse

Place = tuple[Path, int, int]  # file, line from 0, column from 0 in UTF-16 units
AT_ONCE = 32  # requests under way


class Server:
    """basedpyright-langserver for one tree."""

    def __init__(self, command: Sequence[str], root: Path, python: Path, extra_paths: Sequence[str]) -> None:
        self.root, self.python, self.extra_paths = root, python, list(extra_paths)
        self.process = subprocess.Popen(
            [*command, "--stdio"],
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={
                **os.environ,
                "NODE_OPTIONS": "--max-old-space-size=10000",
            },  # by default it forgets what it knows every so often
        )
        self._number = 0
        self._answers: Queue[dict[str, Any]] = Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self._start()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait()

    def _start(self) -> None:
        uri = self.root.as_uri()
        params = {
            "processId": None,
            "rootUri": uri,
            "workspaceFolders": [{"uri": uri, "name": self.root.name}],
            "capabilities": {"workspace": {"configuration": True, "workspaceFolders": True}},
        }
        number = self._ask("initialize", params)
        while self._answers.get().get("id") != number:
            pass
        self._send({"method": "initialized", "params": {}})

    def _configuration(self, section: str) -> dict[str, Any]:
        if section == "python":
            return {"pythonPath": str(self.python)}
        if section.endswith("analysis"):
            return {
                "diagnosticMode": "openFilesOnly",
                "typeCheckingMode": "off",
                "useLibraryCodeForTypes": False,  # inferring types of code without any takes minutes
                "extraPaths": self.extra_paths,
                "exclude": ["**/.venv", "**/node_modules", "**/__pycache__"],
            }
        return {}

    def _send(self, message: dict[str, Any]) -> None:
        raw = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(raw) + raw)
        self.process.stdin.flush()

    def _ask(self, method: str, params: dict[str, Any]) -> int:
        self._number += 1
        self._send({"id": self._number, "method": method, "params": params})
        return self._number

    def _listen(self) -> None:
        out = self.process.stdout
        assert out is not None
        while line := out.readline():
            size = 0
            while line.strip():
                if line.lower().startswith(b"content-length"):
                    size = int(line.split(b":")[1])
                line = out.readline()
            message = json.loads(out.read(size))
            if "method" not in message:
                self._answers.put(message)
            elif "id" in message:
                self._reply(message)
        self._answers.put({"id": -1})

    def _reply(self, message: dict[str, Any]) -> None:
        """Answer a question of the server itself."""
        result: Any = None
        if message["method"] == "workspace/configuration":
            result = [self._configuration(item.get("section", "")) for item in message["params"]["items"]]
        self._send({"id": message["id"], "result": result})

    def definitions(self, places: Sequence[Place], progress: Callable[[int, int], None]) -> Iterator[tuple[Place, list[Place]]]:
        """Each place with the places where its name is defined; none if the server does not know."""
        waiting: dict[int, Place] = {}
        rest = iter(places)
        done = 0
        while True:
            while len(waiting) < AT_ONCE and (place := next(rest, None)) is not None:
                path, line, column = place
                params = {"textDocument": {"uri": path.as_uri()}, "position": {"line": line, "character": column}}
                waiting[self._ask("textDocument/definition", params)] = place
            if not waiting:
                return
            answer = self._answers.get()
            if answer.get("id") == -1:
                raise SystemExit("the language server ended")
            if answer.get("id") in waiting:
                done += 1
                progress(done, len(places))
                yield waiting.pop(answer["id"]), _places(answer.get("result"))


def _places(result: Any) -> list[Place]:
    found = list[Place]()
    for one in result if isinstance(result, list) else [result] if result else []:
        span = one.get("targetSelectionRange") or one["range"]
        path = Path(unquote(urlparse(one.get("targetUri") or one["uri"]).path))
        found.append((path, span["start"]["line"], span["start"]["character"]))
    return found
