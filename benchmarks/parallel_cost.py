"""Compare the time and the bytes of a training step with a prediction, and predict the efficiency of 64 GPUs.

Processes run on emulated hosts (see `parallel_network.py`) with several bandwidths and latencies. Before, this is measured: the
time to compute a step without exchanges, of as many processes side by side; and on one of the networks, the software time of a
message. The rest of the prediction is the model in `_step_cost.py`.

    python benchmarks/parallel_cost.py
    python benchmarks/parallel_cost.py --processes 2
    python benchmarks/parallel_cost.py --paper        # only the prediction for GPUs; needs no root
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from _common import verdict
from _gpu_cost import print_prediction
from _host_jobs import ENVIRONMENT, ROOT, char_lm
from _hosts import LinkConfig, emulated_hosts, missing_requirement
from _hosts import Network as HostNetwork
from _step_cost import STEPS, Exchange, Layout, Network

BAR = 0.2  # of the time of a step, relative
BYTES_BAR = 0.05  # of the bytes: the headers of packets are not in the model
WORKER = Path(__file__).with_name("_cost_worker.py")
LIMIT_SECONDS = 400.0  # of one measurement
STEPS_MEASURED = 8
MTU = 9000  # jumbo frames, as in a cluster
EXCHANGE_BYTES, REPEATS = 32, 30  # the exchange that is measured before
CALIBRATION = LinkConfig(delay_ms=2, megabits=50)
DATA = ROOT / "examples" / "data" / "names.txt"


class Case(NamedTuple):
    """A run and a network."""

    strategy: str
    optimizer: str
    link: LinkConfig
    hidden_size: int = 128
    batch_tokens: int = 512

    def values(self, **train: Any) -> dict[str, Any]:
        train = {"max_steps": STEPS_MEASURED + 3, "num_validations": 1, "batch_tokens": self.batch_tokens, **train}
        return char_lm(DATA, hidden_size=self.hidden_size, num_layers=4, optimizer=self.optimizer, **train)

    def __str__(self) -> str:
        return f"{self.strategy} {self.optimizer:<6} {self.batch_tokens:>5} tokens, {self.link}"


CASES = {
    2: [
        Case("ddp", "adamw", LinkConfig(2, 50)),
        Case("ddp", "adamw", LinkConfig(20, 20)),
        Case("ddp", "adamw", LinkConfig(50, 100)),
        Case("ddp", "adamw", LinkConfig(5, 50), batch_tokens=4096),
        Case("ddp", "muon", LinkConfig(5, 30)),
        Case("fsdp", "adamw", LinkConfig(5, 30)),
        Case("fsdp", "adamw", LinkConfig(20, 50)),
        Case("fsdp", "muon", LinkConfig(10, 30)),
    ],
    4: [
        Case("ddp", "adamw", LinkConfig(5, 50)),
        Case("ddp", "adamw", LinkConfig(40, 30)),
        Case("ddp", "muon", LinkConfig(10, 30)),
        Case("fsdp", "adamw", LinkConfig(10, 30)),
    ],
}


class Session:
    """Processes on emulated hosts that make measurements together."""

    def __init__(self, network: HostNetwork, work_dir: Path, jobs: Sequence[tuple[LinkConfig, dict[str, Any]]]) -> None:
        self.network, self.work_dir, self.jobs = network, work_dir, jobs
        (work_dir / "plan.json").write_text(json.dumps([job for _, job in jobs]))
        size, address = str(len(network.hosts)), network.hosts[0].address
        self.processes = []
        for host in network.hosts:
            words = [sys.executable, str(WORKER), str(work_dir / "plan.json"), str(host.number), size, address, host.device]
            self.processes.append(host.start(words, ENVIRONMENT, log=work_dir / f"{host.name}.log"))

    def measure(self, number: int) -> list[dict[str, Any]]:
        """The results of all processes for a measurement."""
        self.network.set_link(self.jobs[number][0])
        (self.work_dir / f"go-{number}").touch()
        paths = [self.work_dir / f"result-{number}-{host.number}.json" for host in self.network.hosts]
        end = time.monotonic() + LIMIT_SECONDS
        while not all(path.exists() for path in paths):
            if time.monotonic() > end or any(process.poll() for process in self.processes):
                logs = "\n".join((self.work_dir / f"{host.name}.log").read_text() for host in self.network.hosts)
                raise RuntimeError(f"{self.jobs[number]}: no result\n{logs}")
            time.sleep(0.05)
        return [json.loads(path.read_text()) for path in paths]


def measure(n: int, cases: Sequence[Case], work_dir: Path) -> bool:
    """Measure all cases with n processes; returns whether all are within the bars."""
    first = {"exchange": "all_reduce", "bytes": EXCHANGE_BYTES, "repeats": REPEATS}
    jobs: list[tuple[LinkConfig, dict[str, Any]]] = [(CALIBRATION, first)]
    for number, case in enumerate(cases):
        alone = case.values(batch_tokens=case.batch_tokens // n)
        jobs.append((case.link, {"alone": True, "values": alone, "out": str(work_dir / f"alone-{number}")}))
        together = case.values(parallel=case.strategy)
        jobs.append((case.link, {"alone": False, "values": together, "out": str(work_dir / f"run-{number}")}))
        jobs.append((case.link, {"alone": True, "values": alone, "out": str(work_dir / f"alone-again-{number}")}))
    met = True
    with emulated_hosts([f"host{number}" for number in range(n)], CALIBRATION, mtu=MTU) as network:
        session = Session(network, work_dir, jobs)
        constants = calibrate(session, n)
        print(f"{'':54} {'bytes sent':>23} {'seconds of a step':>29}")
        print(f"{'':54} {'counted':>11} {'model':>11} {'compute':>9} {'measured':>9} {'model':>9}")
        for number, case in enumerate(cases):
            before, shared, after = (session.measure(3 * number + index) for index in (1, 2, 3))
            compute = sum(max(typical(result["seconds"]) for result in results) for results in (before, after)) / 2
            met = compare(n, case, compute, shared, constants) and met
    return met


def calibrate(session: Session, n: int) -> Network:
    """The calibration network, with the software time of a message."""
    network = Network(CALIBRATION.delay_ms / 1e3, CALIBRATION.megabits * 1e6 / 8)
    seconds = max(typical(result["seconds"]) for result in session.measure(0))
    messages = round(network.delay_seconds(Exchange("all_reduce", EXCHANGE_BYTES), n) / network.latency)
    network = network._replace(hop_seconds=max(0.0, seconds / messages - network.latency))
    milliseconds = network.hop_seconds * 1e3
    print(f"\n{n} processes: {messages} messages in a small all-reduce, {milliseconds:.2f} ms of software each")
    return network


def typical(seconds: Sequence[float]) -> float:
    """The lower quartile: other work on the machine only makes steps longer."""
    return sorted(seconds)[len(seconds) // 4]


def compare(n: int, case: Case, compute: float, together: Sequence[dict[str, Any]], constants: Network) -> bool:
    """Print a row with prediction and measurement; returns whether it is within the bars."""
    layout = Layout(**together[0]["layout"])
    network = constants._replace(latency=case.link.delay_ms / 1e3, bytes_per_second=case.link.megabits * 1e6 / 8)
    step = STEPS[case.strategy](layout, n)
    seconds, predicted = typical(together[0]["seconds"]), step.seconds(network, n, compute)
    sent, expected = sum(result["sent"] for result in together) / n, step.sent_bytes(n)
    is_met = abs(predicted / seconds - 1) <= BAR and abs(expected / sent - 1) <= BYTES_BAR
    print(
        f"{case!s:<54} {sent:>11,.0f} {expected:>11,.0f} {compute:>9.3f} {seconds:>9.3f} {predicted:>9.3f} "
        f"{predicted / seconds - 1:>+6.0%}  {verdict(is_met)}",
        flush=True,
    )
    return is_met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, choices=list(CASES), help="measure with this number of processes only")
    parser.add_argument("--paper", action="store_true", help="print the prediction for GPUs only")
    args = parser.parse_args()
    met = True
    if not args.paper:
        if (reason := missing_requirement()) is not None:
            parser.exit(0, f"skipped: {reason}\n")
        for n in [args.processes] if args.processes else CASES:
            with tempfile.TemporaryDirectory() as name:
                met = measure(n, CASES[n], Path(name)) and met
        print(f"\nwithin {BAR:.0%} of the measured time, bytes within {BYTES_BAR:.0%}: {verdict(met)}\n")
    print_prediction()
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
