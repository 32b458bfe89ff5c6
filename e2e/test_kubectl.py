"""kubectl on a local fabric does what it does on a cluster.

Takes kubectl from $KVF_KUBECTL, or the newest under $KVF_CACHE/kubernetes, where
e2e/bootstrap puts it; without one the tests are skipped.
"""
import json
import os
import subprocess
import unittest
from pathlib import Path

from fabric import Fabric, pool_yaml, wait_until

CACHE = Path(os.environ.get("KVF_CACHE") or Path.home() / ".cache" / "kvfabric")


CONFIG_MAP = """
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {a: "1"}
"""


def find_kubectl() -> str | None:
    if named := os.environ.get("KVF_KUBECTL"):
        return named
    found = sorted(CACHE.glob("kubernetes/*/kubectl"), key=lambda p: p.stat().st_mtime)
    return str(found[-1]) if found else None


class Kubectl(unittest.TestCase):
    def setUp(self) -> None:
        self.kubectl = find_kubectl() or ""
        if not self.kubectl:
            self.skipTest(f"no kubectl in $KVF_KUBECTL or under {CACHE / 'kubernetes'}")

    def command(self, f: Fabric, *arguments: str) -> list[str]:
        return [self.kubectl, "--kubeconfig", str(f.dir / "kubeconfig"),
                "--cache-dir", str(f.work / "kubectl-cache"), *arguments]

    def run_kubectl(self, f: Fabric, *arguments: str, stdin: str | None = None,
                    **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(self.command(f, *arguments), input=stdin, text=True,
                              capture_output=True, timeout=90, check=False,
                              env={**os.environ, **environment})

    def must(self, f: Fabric, *arguments: str, stdin: str | None = None,
             **environment: str) -> str:
        done = self.run_kubectl(f, *arguments, stdin=stdin, **environment)
        self.assertEqual(done.returncode, 0, f"kubectl {' '.join(arguments)}\n{done.stdout}"
                                             f"{done.stderr}{f.logs()}")
        return done.stdout

    def refused(self, f: Fabric, *arguments: str, stdin: str | None = None) -> str:
        done = self.run_kubectl(f, *arguments, stdin=stdin)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        return done.stderr

    def field(self, f: Fabric, kind: str, name: str, path: str) -> str:
        return self.must(f, "get", kind, name, "-o", f"jsonpath={{{path}}}")

    def test_reads(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(), 2)
            # Columns of the CRD.
            table = self.must(f, "get", "kvp")
            self.assertIn("READY", table)
            self.assertIn("main", table)
            self.assertIn("node/node-0", self.must(f, "get", "kvp,nodes"))
            self.assertEqual(self.must(f, "get", "nodes", "-o", "name").split(),
                             ["node/node-0", "node/node-1"])
            shown = self.must(f, "get", "kvp", "main", "-o", "yaml")
            self.assertIn("kind: KVCachePool", shown)
            self.assertNotIn("managedFields", shown)
            self.assertIn("main", self.must(f, "get", "-A", "kvp", "-l", "!nothing"))
            self.assertIn("No resources found", self.run_kubectl(f, "get", "kvp", "-l",
                                                                 "app in (a,b)").stderr)
            self.assertIn("Ready", self.must(f, "describe", "kvp", "main"))
            self.assertIn("node-0", self.must(f, "describe", "node", "node-0"))
            self.must(f, "wait", "--for=condition=Ready", "kvp/main", "--timeout=30s")
            self.assertIn("capacityPerNode",
                          self.must(f, "explain", "kvcachepool.spec.tiers"))
            self.assertIn("kvcachepools", self.must(f, "api-resources"))
            self.assertIn("NotFound", self.refused(f, "get", "kvp", "none"))

    def test_watch_shows_changes_as_they_come(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(), 1)
            watch = subprocess.Popen(self.command(f, "get", "kvp", "-w", "-o", "name"),
                                     stdout=subprocess.PIPE, text=True)
            try:
                self.assertIn("main", watch.stdout.readline())
                self.must(f, "annotate", "kvp", "main", "note=one")
                self.assertIn("main", watch.stdout.readline())
            finally:
                watch.kill()
                watch.communicate()

    def test_writes(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(), 1)
            self.must(f, "annotate", "kvp", "main", "note=one")
            self.must(f, "label", "kvp", "main", "team=a")
            self.assertEqual(self.field(f, "kvp", "main", ".metadata.annotations.note"), "one")
            self.must(f, "label", "kvp", "main", "team-")
            self.assertEqual(self.field(f, "kvp", "main", ".metadata.labels"), "")
            self.must(f, "patch", "kvp", "main", "--type=merge",
                      "-p", '{"spec":{"rebalance":{"joinRampPercent":20}}}')
            self.must(f, "patch", "kvp", "main", "--type=json", "-p",
                      '[{"op":"test","path":"/spec/rebalance/joinRampPercent","value":20},'
                      '{"op":"replace","path":"/spec/rebalance/joinRampPercent","value":30}]')
            self.assertEqual(self.field(f, "kvp", "main", ".spec.rebalance.joinRampPercent"), "30")
            # Faults are named as a cluster names them; nothing is changed.
            fault = self.refused(f, "patch", "kvp", "main", "--type=merge", "-p",
                                 '{"spec":{"sharding":{"replicas":9}}}')
            self.assertIn("spec.sharding.replicas", fault)
            editor = f.work / "editor"
            editor.write_text("#!/bin/sh\nsed -i 's/joinRampPercent: 30/joinRampPercent: 40/' $1\n")
            editor.chmod(0o755)
            self.must(f, "edit", "kvp", "main", KUBE_EDITOR=str(editor))
            self.assertEqual(self.field(f, "kvp", "main", ".spec.rebalance.joinRampPercent"), "40")
            self.must(f, "create", "-f", "-", stdin=CONFIG_MAP)
            self.must(f, "annotate", "configmap", "settings", "note=two")
            self.must(f, "patch", "configmap", "settings", "-p", '{"data":{"b":"2"}}')
            self.assertEqual(json.loads(self.field(f, "configmap", "settings", ".data")),
                             {"a": "1", "b": "2"})
            self.must(f, "delete", "configmap", "settings", "--timeout=30s")
            self.assertIn("NotFound", self.refused(f, "get", "configmap", "settings"))

    def test_apply_of_both_kinds(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(), 1)
            second = pool_yaml("second", capacity="1Mi")
            self.must(f, "apply", "-f", "-", stdin=second)
            self.must(f, "apply", "-f", "-", stdin=second)
            self.assertEqual(self.field(f, "kvp", "second", ".metadata.generation"), "1",
                             "the same again changes nothing")
            changed = second.replace("replicas: 1", "replicas: 2")
            self.assertNotEqual(changed, second)
            self.must(f, "apply", "-f", "-", stdin=changed)
            self.assertEqual(self.field(f, "kvp", "second", ".spec.sharding.replicas"), "2")
            self.assertIn("typo", self.refused(f, "apply", "-f", "-",
                                               stdin=changed + "  typo: true\n"))
            self.must(f, "delete", "kvp", "second", "--timeout=30s")
            # Server-side.
            third = pool_yaml("third", capacity="1Mi")
            self.must(f, "apply", "--server-side", "-f", "-", stdin=third)
            self.must(f, "apply", "--server-side", "--validate=false", "-f", "-", stdin=third)
            self.assertEqual(self.field(f, "kvp", "third", ".metadata.generation"), "1")
            self.must(f, "patch", "kvp", "third", "--type=merge", "-p",
                      '{"spec":{"sharding":{"replicas":2}}}')
            conflict = self.refused(f, "apply", "--server-side", "-f", "-", stdin=third)
            self.assertIn(".spec.sharding.replicas", conflict)
            self.must(f, "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=third)
            self.assertEqual(self.field(f, "kvp", "third", ".spec.sharding.replicas"), "1")
            dry = third.replace("replicas: 1", "replicas: 3")
            self.must(f, "apply", "--server-side", "--dry-run=server", "-f", "-", stdin=dry)
            self.assertEqual(self.field(f, "kvp", "third", ".spec.sharding.replicas"), "1")
            self.must(f, "diff", "--server-side", "-f", "-", stdin=third)
            self.must(f, "delete", "kvp", "third", "--timeout=30s")

    def test_cordon_drains_and_uncordon_brings_back(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(), 3)

            def owned(node: str) -> int:
                nodes = {n["name"]: n for n in f.status()["nodes"]}
                return nodes[node]["pools"]["default/main"]["firstOwnerSlots"]

            self.assertGreater(owned("node-1"), 0)
            self.must(f, "cordon", "node-1")
            wait_until(lambda: owned("node-1") == 0, 60, "a cordoned node gives its slots away")
            self.must(f, "uncordon", "node-1")
            wait_until(lambda: owned("node-1") > 0, 60, "an uncordoned node gets slots again")
            self.must(f, "taint", "node", "node-2", "example.com/x=y:NoSchedule")
            self.assertIn("example.com/x", self.field(f, "node", "node-2", ".spec.taints"))
