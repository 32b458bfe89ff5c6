"""up, down, status, and what is refused at start."""
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import time
import unittest

import fabric
from fabric import Fabric, alive, pool_yaml, wait_until


def fast(method):
    method.fast = True
    return method


def long(method):
    method.long = True
    return method


BAD_POOL = """
apiVersion: kvfabric.io/v1alpha1
kind: KVCachePool
metadata:
  name: bad
spec:
  tiers:
    - name: dram
      type: DRAMM
      capacityPerNode: lots
      highWatermarkPercent: 300
  sharding:
    slots: 1000
    replicas: 9
  typo: true
"""


class Lifecycle(unittest.TestCase):
    @fast
    def test_up_use_down_and_nothing_is_left(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(), 3, "--zones", "3")
            pids = [f.pid()] + [f.pid(f"node-{i}") for i in range(3)]
            self.assertTrue(all(alive(pid) for pid in pids))
            self.assertEqual(stat.S_IMODE(os.stat(f.dir / "tokens").st_mode), 0o600)
            f.must("put", "greeting", "--node", "node-0", stdin=b"hello")
            self.assertEqual(f.must("get", "greeting", "--node", "node-0"), "hello")
            # Another node's agent finds it through the directory.
            wait_until(lambda: f.kvctl("get", "greeting", "--node", "node-1").stdout == b"hello",
                       5, "node-1 finds what node-0 has")
            self.assertEqual(f.kvctl("exists", "greeting", "farewell").returncode, fabric.NOT_FOUND)
            f.must("rm", "greeting", "--node", "node-0")
            self.assertEqual(f.kvctl("get", "greeting", "--node", "node-0").returncode,
                             fabric.NOT_FOUND)
            status = f.status()
            self.assertEqual(status["operator"], "running")
            self.assertTrue(status["pools"][0]["ready"])
            owned = [n["pools"]["default/main"]["firstOwnerSlots"] for n in status["nodes"]]
            self.assertEqual(sum(owned), 16384)
            self.assertLessEqual(max(owned) - min(owned), 1)
            self.assertIn("16384 slots", f.must("slots"))
            f.must("rebalance", "status")
            self.check_metrics_are_documented(f)
            f.must("down")
            self.assertFalse(any(alive(pid) for pid in pids))
            self.assertEqual(f.kvctl("status").returncode, fabric.NOT_RUNNING)
            f.must("down", "--purge")
            self.assertFalse(f.dir.exists())

    def check_metrics_are_documented(self, f: Fabric) -> None:
        documented = (fabric.ROOT / "docs" / "metrics.md").read_text()
        for process in ("node-0", ""):
            names = [line.split()[2] for line in f.metrics(process) if line.startswith("# TYPE")]
            self.assertGreater(len(names), 5)
            self.assertEqual([n for n in names if f"`{n}`" not in documented], [])

    @fast
    def test_bad_pool_names_every_fault_and_starts_nothing(self) -> None:
        with Fabric() as f:
            file = f.work / "bad.yaml"
            file.write_text(BAD_POOL, encoding="utf-8")
            done = f.kvctl("up", "-f", str(file), "--agents", "3")
            self.assertEqual(done.returncode, fabric.INVALID, done.stderr)
            text = done.stderr.decode()
            for wanted in ("spec.tiers[0].type", "DRAMM", "spec.tiers[0].capacityPerNode", "lots",
                           "spec.tiers[0].highWatermarkPercent", "300", "spec.sharding.slots",
                           "1000", "spec.sharding.replicas", "spec.typo"):
                self.assertIn(wanted, text)
            self.assertFalse(f.dir.exists(), "nothing may be started or written")

    def test_second_pool_gets_its_own_share_of_memory(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(), 2)
            first = json.loads((f.dir / "kvctl.json").read_text())["arenaBytes"]
            second = f.work / "second.yaml"
            second.write_text(pool_yaml(name="other"), encoding="utf-8")
            done = f.kvctl("up", "-f", str(second))
            self.assertNotEqual(done.returncode, 0, "the running agents have room for one")
            self.assertIn("run kvctl down, then this again", done.stderr.decode())
            f.must("down")
            f.must("up", "-f", str(second))
            both = json.loads((f.dir / "kvctl.json").read_text())["arenaBytes"]
            self.assertGreaterEqual(both, first + (64 << 20))
            status = f.must("status")
            for pool in ("default/main", "default/other"):
                rows = [line for line in status.splitlines() if pool in line and "slots" in line]
                self.assertEqual(len(rows), 2, f"a line a node and pool:\n{status}")

    def test_what_up_cannot_change_is_said(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(), 2)
            said = f.kvctl("up", "--zones", "2", "--agents", "1").stderr.decode()
            self.assertIn("--zones 2: ignored", said)
            self.assertIn("--agents 1: there are 2 nodes", said)

    def test_ctrl_c_of_up_leaves_nothing_running(self) -> None:
        with Fabric() as f:
            file = f.work / "pool.yaml"
            file.write_text(pool_yaml(), encoding="utf-8")
            for signals in (1, 2):
                up = subprocess.Popen([str(fabric.BIN / "kvctl"), "up", "-f", str(file), "--agents",
                                       "3", "--dir", str(f.dir)], stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE)
                # All are started, the pool is not ready yet.
                started = f.dir / "agents" / "node-2" / "pid"
                wait_until(started.exists, 30, "the last agent is started")
                pids = [f.pid()] + [f.pid(f"node-{i}") for i in range(3)]
                for _ in range(signals):
                    up.send_signal(signal.SIGINT)
                    time.sleep(0.1)  # two keystrokes of a person
                _, said = up.communicate(timeout=60)
                self.assertEqual(up.returncode, 130, said)
                self.assertFalse(any(alive(pid) for pid in pids), said)
            f.must("up")

    @fast
    def test_what_is_not_built_is_refused_by_name(self) -> None:
        with Fabric() as f:
            file = f.work / "nvme.yaml"
            file.write_text(pool_yaml().replace(
                "  sharding:", "    - name: nvme\n      type: NVMe\n      capacityPerNode: 1Gi\n"
                "  sharding:"), encoding="utf-8")
            done = f.kvctl("up", "-f", str(file), "--agents", "1")
            self.assertEqual(done.returncode, fabric.INVALID)
            self.assertIn("spec.tiers[1]", done.stderr.decode())

    @fast
    def test_directory_that_cannot_be_used_is_refused(self) -> None:
        with Fabric() as f:
            f.dir.write_text("a file")
            done = f.kvctl("up", "-f", str(fabric.ROOT / "examples" / "pool.yaml"))
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(str(f.dir), done.stderr.decode())
            f.dir.unlink()

    def test_too_little_memory_is_refused_with_the_figures(self) -> None:
        with Fabric() as f:
            file = f.work / "huge.yaml"
            file.write_text(pool_yaml(capacity="100Ti"), encoding="utf-8")
            done = f.kvctl("up", "-f", str(file), "--agents", "1")
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("memory", done.stderr.decode().lower())
            self.assertFalse((f.dir / "operator.pid").exists(), "all that was started is ended")

    def test_port_in_use_is_refused_with_the_reason(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(), 1)
            f.must("down")
            port = json.loads((f.dir / "kvctl.json").read_text())["nodes"][0]["grpc"]
            with socket.socket() as taken:
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                taken.bind(("127.0.0.1", port))
                taken.listen()
                done = subprocess.run([str(fabric.BIN / "kvfabric-agent"), "--config",
                                       str(f.dir / "agents" / "node-0" / "agent.yaml")],
                                      capture_output=True, timeout=60, check=False)
                self.assertEqual(done.returncode, 2)
                self.assertIn(str(port), (done.stderr + done.stdout).decode())
                # kvctl takes another one and says so.
                again = f.kvctl("up")
                self.assertEqual(again.returncode, 0, again.stderr)
                self.assertIn(f"port {port} is in use", again.stderr.decode())
            self.assertTrue(f.pool()["ready"])

    def test_second_agent_of_one_identity_is_refused(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(), 2)
            config = f.dir / "agents" / "node-0" / "agent.yaml"
            second = config.with_name("second.yaml")
            lines = [line for line in config.read_text().splitlines()
                     if not line.startswith(("socketPath", "  grpc", "  bulk", "  http"))]
            text = "\n".join(lines).replace(
                "listen:", "listen:\n  grpc: 127.0.0.1:0\n  bulk: 127.0.0.1:0\n"
                "  http: 127.0.0.1:0")
            second.write_text(text + f"\nsocketPath: {f.work}/second.sock\n", encoding="utf-8")
            done = subprocess.run([str(fabric.BIN / "kvfabric-agent"), "--config", str(second)],
                                  capture_output=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertTrue(alive(f.pid("node-0")), "the first one is left alone")
            self.assertTrue(f.pool()["ready"])

    def test_ports_and_identity_are_kept_over_restarts(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(), 2)
            before = {n["name"]: (n["grpc"], n["bulk"], n["http"]) for n in f.status()["nodes"]}
            uid = (f.dir / "agents" / "node-0" / "state" / "agent").read_text().split()[0]
            f.must("down")
            f.must("up")
            after = {n["name"]: (n["grpc"], n["bulk"], n["http"]) for n in f.status()["nodes"]}
            self.assertEqual(before, after)
            self.assertEqual(
                uid, (f.dir / "agents" / "node-0" / "state" / "agent").read_text().split()[0])

    def test_restart_of_everything_in_any_order(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(grace="60s"), 3)
            trace = f.trace(200)
            f.replay(trace)
            nodes = [f"node-{i}" for i in range(3)]
            for order in (["node-1", "", "node-0", "node-2"], ["node-2", "node-1", "node-0", ""]):
                for victim in order:
                    f.signal(signal.SIGKILL, victim)
                epoch = self.last_epoch(f)
                for node in order:
                    if node:
                        f.kvctl("node", "add", node)  # the operator may be down: then not published
                f.must("up")
                self.assertTrue(f.pool()["ready"])
                self.assertGreaterEqual(f.pool()["epoch"], epoch)
                owned = {n["name"]: n["pools"]["default/main"]["firstOwnerSlots"]
                         for n in f.status()["nodes"]}
                self.assertEqual(sum(owned.values()), 16384)
                self.assertEqual(set(owned), set(nodes))
                report = f.replay(trace)
                self.assertEqual(report["wrong_bytes"], 0)
                self.assertEqual(report["puts_failed"], 0)
                self.assertGreater(report["hit_percent"], 20)

    def test_operator_whose_store_was_lost_takes_over_living_agents(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(), 2)
            f.kill_operator()
            f.must("up")  # term 2
            pids = [f.pid(f"node-{i}") for i in range(2)]
            f.kill_operator()
            shutil.rmtree(f.dir / "api")
            f.must("up", "-f", str(f.work / "pool.yaml"))
            self.assertEqual(pids, [f.pid(f"node-{i}") for i in range(2)], "the agents lived on")
            self.assertEqual(f.pool()["term"], 1)
            f.must("put", "x", "--node", "node-0", stdin=b"new pool")
            wait_until(lambda: f.kvctl("get", "x", "--node", "node-1").stdout == b"new pool", 5,
                       "node-1 finds what node-0 has")

    def test_moves_that_are_proposed_wait_for_a_person(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml() + "    mode: Propose\n", 2)
            nothing = f.kvctl("rebalance", "approve")
            self.assertEqual(nothing.returncode, fabric.NOT_FOUND, nothing.stderr)
            f.must("node", "add")
            proposal = self.proposal(f)
            self.assertEqual(proposal["reason"], "node node-2 joins")
            self.assertGreater(proposal["slots"], 16384 / 3 - 5)
            self.assertEqual(self.slots_of(f, "node-2"), 0)
            self.assertIn(proposal["id"], f.must("rebalance", "status"))
            other = f.kvctl("rebalance", "approve", "000000-000000")
            self.assertEqual(other.returncode, fabric.NOT_FOUND, other.stderr)
            f.must("rebalance", "approve", proposal["id"])
            wait_until(lambda: self.slots_of(f, "node-2") > 16384 / 3 - 10, 60,
                       "node-2 has its share")

    @staticmethod
    def proposal(f: Fabric) -> dict:
        def shown() -> dict | None:
            return json.loads(f.must("rebalance", "status", "-o", "json"))[0]["proposal"]
        wait_until(lambda: shown() is not None, 30, "the moves are shown")
        return shown()

    @staticmethod
    def slots_of(f: Fabric, node: str) -> int:
        for entry in f.status()["nodes"]:
            if entry["name"] == node:
                return entry["pools"].get("default/main", {}).get("firstOwnerSlots", 0)
        return 0

    @staticmethod
    def last_epoch(f: Fabric) -> int:
        done = f.kvctl("status", "-o", "json")
        return json.loads(done.stdout)["pools"][0]["epoch"]

    def test_operator_restart_moves_nothing_and_idle_writes_nothing(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(), 3)
            before = f.must("slots", "-o", "json")
            f.kill_operator()
            done = f.kvctl("status")
            self.assertEqual(done.returncode, fabric.NOT_RUNNING)
            self.assertIn("default/main", done.stdout.decode())
            f.must("up")
            after = f.must("slots", "-o", "json")
            self.assertEqual(json.loads(before)["ranges"], json.loads(after)["ranges"])
            # Ten renewals, more than one lease duration, of doing nothing: only the Lease is written.
            before = self.written(f, lease=False)
            renewals = {self.written(f, lease=True)}

            def renewed_ten_times() -> bool:
                renewals.add(self.written(f, lease=True))
                return len(renewals) > 10

            wait_until(renewed_ten_times, 30, "ten renewals of the Lease")
            self.assertEqual(before, self.written(f, lease=False))

    @staticmethod
    def written(f: Fabric, lease: bool) -> tuple:
        """When each object, or each Lease, was last written."""
        return tuple(sorted((str(p), p.stat().st_mtime_ns) for p in (f.dir / "api").rglob("*.yaml")
                            if ("leases" in p.parts) == lease))
