"""ClusterFabric: the real operator on a real API server, with agents as host processes.

Nodes and pods are objects whose status the test sets; behind each pod is a kvfabric-agent of this
machine. Used by one thread; ends what it started by pid.
"""
from __future__ import annotations

import json
import secrets
import signal
import subprocess
import urllib.request
from pathlib import Path

from fabric import BIN, ROOT, wait_until
from kubernetes.cluster import ControlPlane

SYSTEM = "kvfabric-system"
GROUP = "/apis/kvfabric.io/v1alpha1"
POOL = f"{GROUP}/namespaces/default/kvcachepools/main"
MAP = f"{GROUP}/namespaces/default/kvcacheshardmaps/main"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/kvfabric-operator"

AGENT = """nodeName: {node}
stateDir: {dir}/state
tokensFile: {tokens}
listen:
  grpc: 127.0.0.1:0
  bulk: 127.0.0.1:0
  http: 127.0.0.1:0
tls:
  bootstrapDir: {tls}
dram:
  arenaBytes: 128Mi
localMode: true
"""


def install_crds(plane: ControlPlane) -> None:
    """Until their names are taken."""
    crds = ROOT / "api" / "crd"
    plane.must("apply", "--server-side", "-f", str(crds / "kvcachepools.yaml"),
               "-f", str(crds / "kvcacheshardmaps.yaml"))
    plane.must("wait", "--for=condition=Established", "--timeout=30s",
               "crd/kvcachepools.kvfabric.io", "crd/kvcacheshardmaps.kvfabric.io")


class ClusterFabric:
    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self.api = plane.client()
        self.dir = plane.dir / "fabric"
        self.dir.mkdir()
        self.tokens = self.dir / "tokens"
        self.tokens.touch(mode=0o600)
        self.tokens.write_text(f"admin {secrets.token_hex(16)}\ndefault {secrets.token_hex(16)}\n",
                               encoding="ascii")
        self._processes: dict[str, subprocess.Popen] = {}

    def __enter__(self) -> "ClusterFabric":
        install_crds(self.plane)
        self.plane.must("create", "namespace", SYSTEM)
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._processes):
            self.kill(name)

    # Processes: "operator", and agents by their node's name.

    def start_operator(self) -> None:
        self._start("operator", [
            str(BIN / "kvfabric-operator"), "--kubeconfig", str(self.plane.admin_kubeconfig),
            "--tokens", str(self.tokens), "--tls-dir", str(self.dir / "tls"),
            "--metrics-listen", "127.0.0.1:0"])
        # The bundle that agents start with is the operator's to make.
        wait_until((self.dir / "tls" / "tls.crt").exists, 20, "the operator has made its CA")

    def add_agent(self, node: str, zone: str = "") -> None:
        """Starts the agent of a node, and says so to the API."""
        home = self.dir / node
        home.mkdir(exist_ok=True)
        config = home / "agent.yaml"
        config.write_text(AGENT.format(node=node, dir=home, tokens=self.tokens,
                                       tls=self.dir / "tls"), encoding="utf-8")
        self._start(node, [str(BIN / "kvfabric-agent"), "--config", str(config)])
        told = home / "state" / "agent.json"
        pid = self._processes[node].pid
        wait_until(lambda: told.exists() and json.loads(told.read_text())["pid"] == pid, 30,
                   f"{node} listens\n{self.logs()}")
        ports = json.loads(told.read_text())
        self._publish(node, zone, {name: int(ports[name].rsplit(":", 1)[1])
                                   for name in ("grpc", "bulk")})

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        process = self._processes.pop(name)
        process.send_signal(signal.SIGCONT)  # a stopped one takes no other signal
        process.send_signal(number)
        process.wait(timeout=60)

    def signal(self, name: str, number: int) -> None:
        self._processes[name].send_signal(number)

    def _start(self, name: str, command: list[str]) -> None:
        with (self.dir / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def logs(self) -> str:
        out = ""
        for log in sorted(self.dir.glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()[-12:]
            out += f"--- {log.name}\n" + "\n".join(lines) + "\n"
        return out

    # Objects.

    def _publish(self, node: str, zone: str, ports: dict[str, int]) -> None:
        labels = {"topology.kubernetes.io/zone": zone} if zone else {}
        self.api.post("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node",
                                        "metadata": {"name": node, "labels": labels}})
        pods = f"/api/v1/namespaces/{SYSTEM}/pods"
        # Ports of a pod cannot change: it is another pod.
        self.plane.must("delete", "pod", f"agent-{node}", "-n", SYSTEM, "--ignore-not-found",
                        "--grace-period=0", "--force")
        made = self.api.post(pods, {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": f"agent-{node}", "namespace": SYSTEM,
                         "labels": {"app.kubernetes.io/name": "kvfabric",
                                    "app.kubernetes.io/component": "agent"}},
            "spec": {"nodeName": node, "containers": [{
                "name": "agent", "image": "localhost/kvfabric-agent:dev",
                "ports": [{"name": name, "containerPort": port}
                          for name, port in ports.items()]}]}})
        assert made.ok, f"pod of {node}: {made.code} {made.message}"
        told = self.api.merge(f"{pods}/agent-{node}/status",
                              {"status": {"phase": "Running", "podIP": "127.0.0.1",
                                          "podIPs": [{"ip": "127.0.0.1"}]}})
        assert told.ok, f"status of the pod of {node}: {told.code} {told.message}"

    def apply_pool(self, replicas: int = 1, grace: str = "5s") -> None:
        reply = self.api.apply(POOL, {
            "apiVersion": "kvfabric.io/v1alpha1", "kind": "KVCachePool",
            "metadata": {"name": "main", "namespace": "default"},
            "spec": {"tiers": [{"name": "dram", "type": "DRAM", "capacityPerNode": "32Mi"}],
                     "sharding": {"replicas": replicas},
                     "rebalance": {"nodeLossGracePeriod": grace, "joinWarmup": "2s",
                                   "joinRampPercent": 50}}})
        assert reply.ok, f"pool: {reply.code} {reply.message}"

    def condition(self, kind: str) -> str:
        for condition in self.api.get(POOL).body.get("status", {}).get("conditions", []):
            if condition["type"] == kind:
                return condition["status"]
        return "absent"

    def wait_ready(self, seconds: float = 60) -> None:
        def settled() -> bool:
            return (self.condition("Ready") == "True" and
                    self.condition("ShardMapConverged") == "True" and
                    self.condition("Progressing") == "False")
        try:
            wait_until(settled, seconds, "the pool is ready")
        except AssertionError as error:
            pool = json.dumps(self.api.get(POOL).body.get("status", {}), indent=1)
            raise AssertionError(f"{error}\n{pool}\n{self.logs()}") from None

    def members(self) -> dict[str, str]:
        """State of each member of the stored map, by node."""
        reply = self.api.get(MAP)
        if not reply.ok:
            return {}
        return {m["nodeName"]: m["state"] for m in reply.body["spec"]["members"]}

    def epoch(self) -> int:
        return int(self.api.get(MAP).body["spec"]["epoch"])

    def version(self, path: str) -> str:
        return self.api.get(path).body["metadata"]["resourceVersion"]

    def operator_metric(self, series: str) -> float:
        """Of the running operator; its port is in its log."""
        text = (self.dir / "operator.log").read_text(errors="replace")
        port = text.rsplit("http_port=", 1)[1].split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines
                   if line.startswith((series + " ", series + "{")))
