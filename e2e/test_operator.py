"""The operator on a real API server: it forms a pool, follows nodes, survives the server's faults
and its own death, and writes nothing without cause."""
import os
import signal
import subprocess
import unittest

from cluster_fabric import LEASE, MAP, POOL, ClusterFabric, install_crds
from fabric import BIN, TIME_SCALE, wait_until
from kubernetes.cluster import ControlPlane


def start_fabric(test_class: type[unittest.TestCase], agents: int) -> ClusterFabric:
    plane = test_class.enterClassContext(ControlPlane())
    fabric = test_class.enterClassContext(ClusterFabric(plane))
    fabric.start_operator()
    for number in range(agents):
        fabric.add_agent(f"node-{number}", f"zone-{number}")
    return fabric


class Conformance(unittest.TestCase):
    """The suite that the embedded API is held to, against the real one."""

    def test_real_server_keeps_the_rules_of_the_embedded_one(self) -> None:
        with ControlPlane() as plane:
            install_crds(plane)
            done = subprocess.run(
                [str(BIN / "kube_conformance_test"), "--gtest_filter=Http/*Cluster*"],
                capture_output=True, text=True, timeout=300 * TIME_SCALE, check=False,
                env={**os.environ, "KVF_TEST_KUBECONFIG": str(plane.admin_kubeconfig)})
            self.assertEqual(done.returncode, 0, done.stdout[-4000:])
            self.assertRegex(done.stdout, r"\[  PASSED  \] [1-9][0-9]+ tests")


class OperatorOnCluster(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.fabric = start_fabric(cls, 3)
        cls.fabric.apply_pool()
        cls.fabric.wait_ready()

    def test_pool_is_what_kubectl_shows(self) -> None:
        f = self.fabric
        self.assertEqual(set(f.members()), {"node-0", "node-1", "node-2"})
        f.plane.must("wait", "--for=condition=Ready", "--timeout=20s", "kvp/main")
        row = f.plane.must("get", "kvp", "main", "--no-headers").split()
        self.assertEqual(row[:3], ["main", "True", "3"], row)
        self.assertEqual(f.condition("TLSReady"), "True")
        owner = f.api.get(MAP).body["metadata"]["ownerReferences"][0]
        self.assertEqual(owner["uid"], f.api.get(POOL).body["metadata"]["uid"])

    def test_idle_it_writes_nothing_but_its_lease(self) -> None:
        f = self.fabric
        f.wait_ready()
        before = (f.version(POOL), f.version(MAP))
        leases = {f.version(LEASE)}

        def renewed_ten_times() -> bool:
            leases.add(f.version(LEASE))
            return len(leases) > 10

        wait_until(renewed_ten_times, 40, "ten renewals of the Lease")
        self.assertEqual(before, (f.version(POOL), f.version(MAP)))

    def test_cordon_drains_and_uncordon_takes_back(self) -> None:
        f = self.fabric
        f.wait_ready()
        f.plane.must("cordon", "node-2")
        wait_until(lambda: f.members().get("node-2") == "Draining", 5, "the drain has begun")
        f.plane.must("uncordon", "node-2")
        wait_until(lambda: f.members().get("node-2") == "Active", 60, "node-2 is back")
        f.wait_ready()

    def test_killed_agent_is_given_up_after_the_grace_and_comes_back(self) -> None:
        f = self.fabric
        f.wait_ready()
        f.kill("node-1")
        wait_until(lambda: f.members().get("node-1") in ("Lost", None), 30, "node-1 is given up")
        f.add_agent("node-1", "zone-1")
        wait_until(lambda: f.members().get("node-1") == "Active", 90, "node-1 is back")
        f.wait_ready()

    def test_killed_operator_goes_on_where_it_was(self) -> None:
        f = self.fabric
        f.wait_ready()
        epoch = f.epoch()
        term = int(f.api.get(LEASE).body["spec"].get("leaseTransitions", 0))
        f.kill("operator")
        f.start_operator()
        # A killed leader released nothing: its Lease must run out, and not by much.
        wait_until(lambda: int(f.api.get(LEASE).body["spec"]["leaseTransitions"]) > term, 20,
                   "the next one leads")
        f.wait_ready()
        self.assertEqual(f.epoch(), epoch, "nothing moves without cause")

    def test_operator_that_is_told_to_stop_lets_the_next_lead_at_once(self) -> None:
        f = self.fabric
        f.wait_ready()
        term = int(f.api.get(LEASE).body["spec"]["leaseTransitions"])
        f.kill("operator", signal.SIGTERM)
        f.start_operator()
        wait_until(lambda: int(f.api.get(LEASE).body["spec"]["leaseTransitions"]) > term, 3,
                   "the next one leads")

    def test_restarted_and_expired_api_server_is_followed(self) -> None:
        f = self.fabric
        f.wait_ready()
        epoch = f.epoch()
        f.plane.restart_apiserver(graceful=False)
        f.plane.expire_watches()
        # It sees what happened meanwhile, and what happens now. Two outages within two minutes: an
        # informer may wait a minute before it asks again, as Kubernetes' own do.
        f.plane.must("annotate", "node", "node-0", "kvfabric.io/drain=true")
        wait_until(lambda: f.members().get("node-0") == "Draining", 150, "the drain has begun")
        f.plane.must("annotate", "node", "node-0", "kvfabric.io/drain-")
        wait_until(lambda: f.members().get("node-0") == "Active", 150, "node-0 is back")
        f.wait_ready(150)
        self.assertGreater(f.epoch(), epoch)
