"""Translation in a process of its own, with one thread, so that several versions of weft can take turns in one measurement.

`Translator` starts this file as a program: `_translator.py RUN '{"load": {...}, "predict": {...}}'`. It reads a JSON line
{"sources": [...], "one_by_one": true} per measurement and writes {"texts": [...], "seconds": CPU seconds}. The program uses
only what old versions of weft have as well.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Translator:
    """A process that translates by a run."""

    def __init__(
        self, run: Path, *, source_dir: Path | None = None, load: dict[str, Any] | None = None, **predict: Any
    ) -> None:
        """`source_dir` is the directory of another weft; `load` and `predict` are options of the functions with these names."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        if source_dir is not None:
            environment["PYTHONPATH"] = str(source_dir.resolve())
        command = [sys.executable, __file__, str(run), json.dumps({"load": load or {}, "predict": predict})]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def translate(self, sources: Sequence[str], *, one_by_one: bool = False) -> tuple[list[str], float]:
        """The translations and the CPU seconds, in one call or in one call per source."""
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None and stdout is not None and stderr is not None
        stdin.write(json.dumps({"sources": list(sources), "one_by_one": one_by_one}) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(self._process.args)}: {stderr.read()[-2000:]}")  # type: ignore[arg-type]
        answer = json.loads(line)
        return answer["texts"], answer["seconds"]

    def close(self) -> None:
        self._process.communicate()


def main() -> None:
    import weft
    from weft.cli.threads import set_threads

    set_threads(1)
    options = json.loads(sys.argv[2])
    run = weft.load(sys.argv[1], device="cpu", **options["load"])
    for line in sys.stdin:
        request = json.loads(line)
        sources = request["sources"]
        calls = [[source] for source in sources] if request["one_by_one"] else [sources]
        start = time.process_time()
        texts = [prediction.text for call in calls for prediction in run.predict(call, **options["predict"])]
        print(json.dumps({"texts": texts, "seconds": time.process_time() - start}), flush=True)


if __name__ == "__main__":
    main()
