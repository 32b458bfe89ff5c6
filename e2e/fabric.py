"""Fabric: one local fabric in a temporary directory, driven through kvctl as a person would.

Ends what it started: `kvctl down` by pid and start time, whatever the test did before.
"""
from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(os.environ.get("KVF_BIN", ROOT / "build" / "release" / "bin"))
TIME_SCALE = float(os.environ.get("KVF_TIME_SCALE", "1"))

# Exit codes of kvctl (docs/quickstart.md).
FAILED, USAGE, INVALID, NOT_FOUND, NOT_RUNNING, TIMED_OUT = 1, 2, 3, 4, 5, 6

POOL = """
apiVersion: kvfabric.io/v1alpha1
kind: KVCachePool
metadata:
  name: {name}
  namespace: default
spec:
  tiers:
    - name: dram
      type: DRAM
      capacityPerNode: {capacity}
      evictionPolicy: LRU
  sharding:
    replicas: {replicas}
  rebalance:
    nodeLossGracePeriod: {grace}
    joinWarmup: 1s
    joinRampPercent: 50
{extra}"""


def pool_yaml(name: str = "main", capacity: str = "64Mi", replicas: int = 1, grace: str = "5s",
              tenants: tuple[str, ...] = ()) -> str:
    extra = ""
    if tenants:
        extra = "  tenancy:\n    tenants:\n" + "".join(
            f"      - name: {t}\n        namespaces: [{t}]\n" for t in tenants)
    return POOL.format(name=name, capacity=capacity, replicas=replicas, grace=grace, extra=extra)


def write_trace(path: Path, requests: int, conversations: int = 20, blocks: int = 8,
                every_ms: int = 50) -> None:
    """Conversations that take turns; each turn's prompt is the last one's and two blocks more."""
    lines = []
    for number in range(requests):
        conversation, turn = number % conversations, number // conversations
        length = blocks + 2 * (turn % 4)
        base = 1 + conversation * 10_000 + (turn // 4) * 100
        ids = [0] + [base + i for i in range(length - 1)]
        lines.append(json.dumps({"timestamp": number * every_ms, "input_length": 512 * length,
                                 "output_length": 10, "hash_ids": ids}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


class Fabric:
    def __init__(self) -> None:
        self._temp = tempfile.TemporaryDirectory(prefix="kvf-e2e-")
        self.work = Path(self._temp.name)
        self.dir = self.work / "fabric"

    def __enter__(self) -> "Fabric":
        return self

    def __exit__(self, *_: object) -> None:
        self.kvctl("down")
        self._temp.cleanup()

    def kvctl(self, *arguments: str, stdin: bytes | None = None,
              timeout: float = 180) -> subprocess.CompletedProcess:
        command = [str(BIN / "kvctl"), *arguments, "--dir", str(self.dir)]
        return subprocess.run(command, input=stdin, capture_output=True, timeout=timeout,
                              check=False)

    def must(self, *arguments: str, stdin: bytes | None = None, timeout: float = 180) -> str:
        done = self.kvctl(*arguments, stdin=stdin, timeout=timeout)
        if done.returncode != 0:
            raise AssertionError(f"kvctl {' '.join(arguments)}: exit {done.returncode}\n"
                                 f"{done.stdout.decode()}{done.stderr.decode()}{self.logs()}")
        return done.stdout.decode()

    def up(self, yaml: str, agents: int = 3, *more: str) -> str:
        file = self.work / "pool.yaml"
        file.write_text(yaml, encoding="utf-8")
        return self.must("up", "-f", str(file), "--agents", str(agents), *more)

    def start_replay(self, trace: Path | str, *options: str) -> "Replay":
        return Replay(self, [str(trace), "-o", "json", *options])

    def replay(self, trace: Path | str, *options: str, timeout: float = 300) -> dict:
        return self.start_replay(trace, *options).result(timeout)

    def trace(self, requests: int = 400, **options: int) -> Path:
        path = self.work / "trace.jsonl"
        write_trace(path, requests, **options)
        return path

    # Processes.
    def pid(self, node: str = "") -> int:
        file = self.dir / "agents" / node / "pid" if node else self.dir / "operator.pid"
        return int(file.read_text().split()[0])

    def signal(self, number: int, node: str = "") -> None:
        os.kill(self.pid(node), number)

    def kill_operator(self) -> None:
        self.signal(signal.SIGKILL)
        wait_until(lambda: not alive(self.pid()), 10, "operator gone")

    def status(self) -> dict:
        return json.loads(self.must("status", "-o", "json"))

    def pool(self) -> dict:
        return self.status()["pools"][0]

    def metrics(self, node: str = "") -> list[str]:
        """The lines of one agent's /metrics, or of the operator's."""
        address = json.loads((self.dir / "operator.json").read_text())["http"]
        if node:
            config = json.loads((self.dir / "kvctl.json").read_text())
            address = next(f"127.0.0.1:{n['http']}" for n in config["nodes"] if n["name"] == node)
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            return answer.read().decode().splitlines()

    def metric(self, node: str, series: str) -> float:
        """The sum of all series of that name, or of that name and those labels."""
        return sum(float(line.rsplit(" ", 1)[1]) for line in self.metrics(node)
                   if line.startswith((series + " ", series + "{")))

    def logs(self) -> str:
        text = ""
        for log in sorted(self.dir.glob("*.log")) + sorted(self.dir.glob("agents/*/log")):
            lines = log.read_text(errors="replace").splitlines()[-15:]
            text += f"--- {log.relative_to(self.dir)}\n" + "\n".join(lines) + "\n"
        return text


class Replay:
    """A replay in the background."""

    def __init__(self, fabric: Fabric, arguments: list[str]) -> None:
        command = [str(BIN / "kvctl"), "replay", *arguments, "--dir", str(fabric.dir)]
        self._fabric = fabric
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def result(self, timeout: float = 300) -> dict:
        try:
            out, err = self._process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise AssertionError(f"replay hangs\n{self._fabric.logs()}") from None
        if self._process.returncode != 0:
            raise AssertionError(f"replay: exit {self._process.returncode}\n{out.decode()}"
                                 f"{err.decode()}{self._fabric.logs()}")
        return json.loads(out)

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def wait(self, timeout: float = 60) -> int:
        self._process.communicate(timeout=timeout)
        return self._process.returncode


def alive(pid: int) -> bool:
    """Whether the process can still hold anything: a killed one whose first thread is a zombie
    keeps its locks and ports until its last thread is gone."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state not in "ZX" or len(os.listdir(f"/proc/{pid}/task")) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition, seconds: float, what: str) -> float:
    """Polls; answers how long it took."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > seconds * TIME_SCALE:
            raise AssertionError(f"not within {seconds * TIME_SCALE} s: {what}")
        time.sleep(0.05)
    return time.monotonic() - start
