"""Training on emulated hosts: one torchrun per host, as a user starts it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w
from _hosts import Host, Network

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
PORT = 29500
START_SECONDS = 180.0  # until the first step, on a busy machine
ERROR = "weft: error: "


class Ending(NamedTuple):
    """How a host's torchrun ended."""

    exit_code: int | None  # None if it was still running
    seconds: float  # since the fault
    error: str  # the message of weft; empty if there is none

    @property
    def finished(self) -> bool:
        return self.exit_code == 0


def char_lm(data: Path, *, hidden_size: int = 64, num_layers: int = 2, **train: Any) -> dict[str, Any]:
    """The run file of a small character language model; `train` are options of [train]."""
    return {
        "task": "lm",
        "seed": 3,
        "recommend": False,
        "data": {"train": str(data), "valid": 0.1, "test": 0.1, "context_length": 16},
        "tokenizer": {"type": "char"},
        "model": {
            "arch": "gpt",
            "num_layers": num_layers,
            "hidden_size": hidden_size,
            "num_heads": 2,
            "dropout": 0.0,
            "tie_embeddings": False,
        },
        "train": {"device": "cpu", "lr": 1e-3, "batch_tokens": 512, **train},
    }


class Job:
    """A run that several hosts train together, in a directory that all of them see."""

    def __init__(self, network: Network, work_dir: Path, values: dict[str, Any], *, processes_per_host: int = 1) -> None:
        self.network, self.work_dir, self.processes_per_host = network, work_dir, processes_per_host
        work_dir.mkdir(parents=True, exist_ok=True)
        self.run_file, self.run_dir = work_dir / "run.toml", work_dir / "run"
        self.run_file.write_text(tomli_w.dumps(values))
        self.setup: dict[str, Sequence[str]] = {}  # shell commands by host
        self.run_files: dict[str, Path] = {}  # by host, if a host has another one
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.max_restarts = 0

    def log(self, host: Host) -> Path:
        return self.work_dir / f"{host.name}.log"

    def start(self, environment: Mapping[str, str] = ENVIRONMENT) -> None:
        """Start torchrun on every host."""
        for host in self.network.hosts:
            self.log(host).write_text("")
            words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(self.network.hosts))]
            words += ["--nproc-per-node", str(self.processes_per_host), *self._rendezvous(host)]
            run_file = self.run_files.get(host.name, self.run_file)
            words += ["-m", "weft", "train", str(run_file), "--output-dir", str(self.run_dir)]
            setup = self.setup.get(host.name, ())
            self.running[host.name] = host.start(words, environment, log=self.log(host), setup=setup)

    def _rendezvous(self, host: Host) -> list[str]:
        """Options of torchrun: fixed ranks, or with restarts, ranks that the hosts agree on."""
        first = self.network.hosts[0]
        if self.max_restarts == 0:
            return ["--node-rank", str(host.number), "--master-addr", first.address, "--master-port", str(PORT)]
        address = f"{first.name}:{PORT}"
        return [
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            address,
            "--rdzv-id",
            "1",
            "--max-restarts",
            str(self.max_restarts),
        ]

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl so far."""
        path = self.run_dir / "metrics.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def steps(self) -> int:
        """The number of steps in metrics.jsonl."""
        return max((line["step"] for line in self.metrics()), default=0)

    def checkpoints(self) -> list[Path]:
        return sorted((self.run_dir / "checkpoints").glob("[0-9]*"))

    def wait_for_checkpoint(self) -> None:
        """Wait until training has saved a checkpoint, and is in a step after it."""
        end = time.monotonic() + START_SECONDS
        while not self.checkpoints() or self.steps() <= int(self.checkpoints()[0].name):
            if time.monotonic() > end or any(process.poll() is not None for process in self.running.values()):
                logs = "\n".join(self.log(host).read_text()[-2000:] for host in self.network.hosts)
                raise RuntimeError(f"training did not reach its first checkpoint\n{logs}")
            time.sleep(0.05)

    def endings(self, limit: float) -> dict[str, Ending]:
        """Wait until torchrun has ended on all hosts, at most `limit` seconds. What still runs then is killed."""
        start, results = time.monotonic(), dict[str, Ending]()
        while len(results) < len(self.running) and time.monotonic() - start < limit:
            for name, process in self.running.items():
                if name not in results and process.poll() is not None:
                    results[name] = Ending(process.returncode, time.monotonic() - start, "")
            time.sleep(0.05)
        for host in self.network.hosts:
            host.kill()
            self.running[host.name].wait()
        found = {host.name: results.get(host.name, Ending(None, limit, "")) for host in self.network.hosts}
        return {host.name: found[host.name]._replace(error=self._error(host)) for host in self.network.hosts}

    def _error(self, host: Host) -> str:
        lines = self.log(host).read_text().split("\n")
        return next((line.removeprefix(ERROR) for line in lines if line.startswith(ERROR)), "")
