"""The control plane that the other tests stand on: it starts, fails as asked, and goes."""
import os
import signal
import subprocess
import sys
import unittest
from pathlib import Path

from fabric import alive, wait_until
from kubernetes import audit
from kubernetes.cluster import ControlPlane, ROOT

CONFIG = "/api/v1/namespaces/default/configmaps"


def fast(method):
    method.fast = True
    return method


def config(name: str, **data: str) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


class Plane(unittest.TestCase):
    @fast
    def test_two_run_at_once_and_leave_nothing(self) -> None:
        with ControlPlane() as one, ControlPlane() as other:
            self.assertNotEqual(one.port, other.port)
            one.must("create", "namespace", "only-here")
            self.assertIn("only-here", one.must("get", "namespaces"))
            self.assertNotIn("only-here", other.must("get", "namespaces"))
            version = one.must("version")
            self.assertIn("Server Version: v1.34.4", version)
            pids = [plane.apiserver.pid for plane in (one, other)] + [one.etcd.pid, other.etcd.pid]
            folders = [one.dir, other.dir]
        self.assertFalse([pid for pid in pids if alive(pid)])
        self.assertFalse([folder for folder in folders if folder.exists()])

    def test_what_was_started_ends_with_its_runner(self) -> None:
        script = ("import sys, time; sys.path.insert(0, sys.argv[1])\n"
                  "from kubernetes.cluster import ControlPlane\n"
                  "with ControlPlane() as plane:\n"
                  "    print(plane.dir, plane.etcd.pid, plane.apiserver.pid, flush=True)\n"
                  "    time.sleep(600)\n")
        for number in (signal.SIGTERM, signal.SIGKILL):
            with self.subTest(number.name), subprocess.Popen(
                    [sys.executable, "-c", script, str(ROOT / "e2e")], stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL, text=True) as runner:
                folder, *pids = runner.stdout.readline().split()
                os.kill(runner.pid, number)
                runner.wait(30)
                wait_until(lambda: not any(alive(int(pid)) for pid in pids), 10, "all are gone")
                if number == signal.SIGTERM:
                    self.assertFalse(Path(folder).exists())
                else:  # nobody was left to remove it
                    subprocess.run(["rm", "-rf", folder], check=True)

    def test_a_part_that_cannot_start_is_named_with_its_log(self) -> None:
        with self.assertRaisesRegex(AssertionError,
                                    "kube-apiserver ended while it started(.|\n)*--no-such-flag"):
            ControlPlane(apiserver_flags=("--no-such-flag",)).__enter__()

    def test_data_survives_crashes_of_the_server_and_of_etcd(self) -> None:
        with ControlPlane() as plane:
            admin = plane.client()
            self.assertEqual(admin.post(CONFIG, config("a", x="1")).code, 201)
            plane.restart_apiserver(graceful=False)
            self.assertEqual(admin.get(f"{CONFIG}/a").body["data"], {"x": "1"})
            plane.etcd.kill()
            plane.etcd.start()
            plane.await_ready()
            self.assertEqual(admin.get(f"{CONFIG}/a").body["data"], {"x": "1"})

    def test_a_paused_server_answers_nothing_until_it_goes_on(self) -> None:
        with ControlPlane() as plane:
            plane.apiserver.pause()
            with self.assertRaises(TimeoutError):
                plane.client().request("GET", "/readyz", timeout=0.5)
            plane.apiserver.resume()
            self.assertEqual(plane.client().get("/readyz").code, 200)

    def test_rbac_holds_and_the_audit_log_tells_who_was_refused(self) -> None:
        with ControlPlane(audit=True) as plane:
            admin, user = plane.client(), plane.client("reader", ("readers",))
            self.assertEqual(user.get(CONFIG).code, 403)
            plane.must("create", "role", "reader", "--verb=list,watch", "--resource=configmaps")
            plane.must("create", "rolebinding", "reader", "--role=reader", "--group=readers")
            wait_until(lambda: user.get(CONFIG).code == 200, 10, "the binding is known")
            events = list(user.watch(f"{CONFIG}?watch=1&timeoutSeconds=1", 30))
            self.assertEqual([event["type"] for event in events], [])
            plane.must("create", "serviceaccount", "robot")
            robot = plane.token_client(plane.token("default", "robot", 600))
            self.assertEqual(robot.get(CONFIG).code, 403)

            seen = audit.accesses(plane.audit_log)
            who = "system:serviceaccount:default:robot"
            self.assertEqual(seen[audit.Access(who, "list", "", "configmaps", 403)], 1)
            self.assertEqual(seen[audit.Access("reader", "watch", "", "configmaps", 200)], 1)
            self.assertEqual({access.user for access in audit.forbidden(seen)}, {"reader", who})
            rules = admin.get("/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles/reader"
                              ).body["rules"]
            self.assertEqual(audit.unused(rules, seen), [])
            rules[0]["verbs"].append("get")
            self.assertEqual(audit.unused(rules, seen), [("", "configmaps", "get")])

    def test_a_watch_from_before_the_cut_is_told_that_it_is_too_old(self) -> None:
        with ControlPlane() as plane:
            admin = plane.client()
            old = admin.post(CONFIG, config("a")).body["metadata"]["resourceVersion"]
            admin.merge(f"{CONFIG}/a", {"data": {"x": "1"}})
            watch = f"{CONFIG}?watch=1&resourceVersion={old}&timeoutSeconds=1"
            self.assertEqual([event["type"] for event in admin.watch(watch, 30)], ["MODIFIED"])
            plane.expire_watches()
            self.assertEqual(self._code(next(admin.watch(watch, 30))), 410)

    def test_without_watch_cache_a_compaction_ends_watches_and_pages(self) -> None:
        with ControlPlane(watch_cache=False) as plane:
            admin = plane.client()
            old = admin.post(CONFIG, config("a")).body["metadata"]["resourceVersion"]
            admin.post(CONFIG, config("b"))
            page = admin.get(f"{CONFIG}?limit=1").body["metadata"]["continue"]
            admin.merge(f"{CONFIG}/a", {"data": {"x": "1"}})
            plane.compact()
            watch = f"{CONFIG}?watch=1&resourceVersion={old}&timeoutSeconds=5"
            self.assertEqual(self._code(next(admin.watch(watch, 30))), 410)
            self.assertEqual(admin.get(f"{CONFIG}?limit=1&continue={page}").code, 410)

    def test_the_server_ends_watches_when_asked_to(self) -> None:
        with ControlPlane(min_request_timeout_s=1) as plane:
            # Without timeoutSeconds: between once and twice the time. It ends, that is the test.
            self.assertIsNotNone(list(plane.client().watch(f"{CONFIG}?watch=1", 30)))

    def test_controllers_and_scheduler_do_their_work(self) -> None:
        with ControlPlane(controllers=True, scheduler=True) as plane:
            wait_until(lambda: "default" in plane.must("get", "serviceaccounts"), 30,
                       "the default account is made")
            plane.must("apply", "-f", "-", stdin=NODE_AND_DAEMON_SET)
            status = {"conditions": [{"type": "Ready", "status": "True", "reason": "Test",
                                      "message": "", "lastHeartbeatTime": None,
                                      "lastTransitionTime": None}],
                      "capacity": {"cpu": "8", "memory": "32Gi", "pods": "10"},
                      "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "10"}}
            reply = plane.client().merge("/api/v1/nodes/node-a/status", {"status": status})
            self.assertTrue(reply.ok, reply.message)
            # The controller manager lifts the taint of a node that is not ready, the DaemonSet
            # controller makes the pod, the scheduler binds it.
            wait_until(lambda: plane.must("get", "pods", "-o",
                                          "jsonpath={.items[*].spec.nodeName}") == "node-a", 30,
                       "the pod of the DaemonSet is bound")

    @staticmethod
    def _code(event: dict) -> int:
        """Of a watch that was refused, at connect or as its first event."""
        return event.get("code") or event["object"].get("code", 0)


NODE_AND_DAEMON_SET = """
apiVersion: v1
kind: Node
metadata: {name: node-a}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: default}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec:
      containers:
        - {name: agent, image: "localhost/agent:dev"}
"""
