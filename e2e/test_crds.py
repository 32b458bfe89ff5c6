"""The CRDs on a real API server: what it takes, refuses, fills in and shows.

The table in api/crd/cases is also what our own checker is held to (crd_cases_test), so both give
one answer to one object.
"""
import base64
import json
import re
import unittest
from pathlib import Path

from cluster_fabric import install_crds
from fabric import wait_until
from kubernetes.client import YAML, Client, Reply
from kubernetes.cluster import ROOT, ControlPlane

CRDS = ROOT / "api" / "crd"
CASES = CRDS / "cases"
GROUP = "/apis/kvfabric.io/v1alpha1"
POOLS = f"{GROUP}/namespaces/team-a/kvcachepools"
MAPS = f"{GROUP}/namespaces/team-a/kvcacheshardmaps"
STRICT = "fieldValidation=Strict"
METADATA = "metadata: {name: main, namespace: team-a}"

# What the server puts before the text of a rule: the value, or only its type, and, where the rule
# could not be worked out (a duration that overflows), why.
SHOWN_VALUE = re.compile(r"\AInvalid value: (?:\"(?:[^\"\\]|\\.)*\"|[^:\"]*): "
                         r"(?:.* evaluating rule: )?")


def fast(method):
    method.fast = True
    return method


def start_with_crds(test_class: type[unittest.TestCase]) -> tuple[ControlPlane, Client]:
    plane = test_class.enterClassContext(ControlPlane())
    install_crds(plane)
    plane.must("create", "namespace", "team-a")
    admin = plane.client()
    # Established says that the names are taken; the handler comes a moment later.
    for path in (POOLS, MAPS):
        wait_until(lambda: admin.get(path).code == 200, 10, f"{path} is served")
    return plane, admin


def documents(case: Path) -> list[str]:
    return re.split(r"^---$", case.read_text(encoding="utf-8"), flags=re.MULTILINE)


def cases(kind: str) -> list[Path]:
    found = sorted((CASES / kind).glob("*.yaml"))
    assert found, f"no cases in {CASES / kind}"
    return found


class Cases(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.plane, cls.admin = start_with_crds(cls)

    def submit(self, case: Path) -> Reply:
        """Stores every document but the last; the answer to the last, which is not stored."""
        *before, last = documents(case)
        stored = None
        try:
            for document in before:
                reply = self.write(document, stored)
                self.assertTrue(reply.ok, f"{case.name}: a document before the last is refused: "
                                          f"{reply.message}")
                stored = reply.body
            return self.write(last, stored, "&dryRun=All")
        finally:
            if stored is not None:
                self.admin.delete(f"{POOLS}/main")

    def write(self, document: str, stored: dict | None, query: str = "") -> Reply:
        if stored is None:
            return self.admin.request("POST", f"{POOLS}?{STRICT}{query}", document, YAML)
        version = stored["metadata"]["resourceVersion"]
        update = document.replace(METADATA, f'{METADATA[:-1]}, resourceVersion: "{version}"}}')
        self.assertNotEqual(update, document, f"an update must hold the line {METADATA}")
        return self.admin.request("PUT", f"{POOLS}/main?{STRICT}{query}", update, YAML)

    @fast
    def test_good_pools_are_taken_and_filled_in_as_our_decoder_does(self) -> None:
        for case in cases("good"):
            with self.subTest(case.name):
                reply = self.submit(case)
                self.assertTrue(reply.ok, reply.message)
                # crd_cases_test holds our checker to the same files.
                stored = (CASES / "stored" / f"{case.stem}.json").read_text(encoding="utf-8")
                self.assertEqual(reply.body["spec"], json.loads(stored))

    @fast
    def test_bad_pools_are_refused_with_the_same_faults(self) -> None:
        for case in cases("bad"):
            with self.subTest(case.name):
                self.check_faults(case, self.submit(case))

    def check_faults(self, case: Path, reply: Reply) -> None:
        """Rules of ours must have the same path and the same text. Faults of the schema must have
        the same path; the server words them itself."""
        text = case.read_text(encoding="utf-8")
        rules = set(re.findall(r"^# expect: (.*)$", text, re.MULTILINE))
        schema = {line.split(": ")[0]
                  for line in re.findall(r"^# expect-schema: (.*)$", text, re.MULTILINE)}
        self.assertFalse(reply.ok, f"taken, but expected: {rules | schema}")
        unknown = set(re.findall(r'unknown field "([^"]*)"', reply.message))
        if unknown:
            # Found while decoding, before there is an object whose faults could be listed.
            self.assertEqual(reply.code, 400, reply.message)
            self.assertEqual((unknown, rules), (schema, set()))
            return
        self.assertEqual(reply.code, 422, reply.message)
        told = {f"{field}: {SHOWN_VALUE.sub('', message)}" for field, message in reply.causes}
        fields = {field for field, _ in reply.causes}
        self.assertEqual(rules - told, set(), f"not told; the server told: {reply.causes}")
        self.assertEqual(schema - fields, set(), f"not told; the server told: {reply.causes}")
        if not schema:
            self.assertEqual(told, rules)


class Schema(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.plane, cls.admin = start_with_crds(cls)

    def pool(self, name: str, **spec: object) -> dict:
        return {"apiVersion": "kvfabric.io/v1alpha1", "kind": "KVCachePool",
                "metadata": {"name": name, "namespace": "team-a"},
                "spec": {"tiers": [{"name": "dram", "type": "DRAM", "capacityPerNode": "1Gi"}],
                         **spec}}

    def create(self, name: str, **spec: object) -> dict:
        reply = self.admin.post(f"{POOLS}?{STRICT}", self.pool(name, **spec))
        self.assertEqual(reply.code, 201, reply.message)
        return reply.body

    @staticmethod
    def status(ready: str = "True") -> dict:
        return {"observedGeneration": 1, "epoch": 7, "members": {"desired": 3, "ready": 2},
                "tiers": [{"name": "dram", "totalBytes": 4, "usedBytes": 1, "used": "25%"}],
                "hitRatio": "87%", "rebalance": {"state": "Idle"},
                "conditions": [{"type": "Ready", "status": ready, "reason": "Serving",
                                "message": "2 of 3 nodes serve", "observedGeneration": 1,
                                "lastTransitionTime": "2026-01-02T03:04:05Z"}]}

    @fast
    def test_the_server_takes_both_definitions_without_complaint(self) -> None:
        for name in ("kvcachepools", "kvcacheshardmaps"):
            crd = self.admin.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"
                                 f"{name}.kvfabric.io").body
            conditions = {c["type"]: c["status"] for c in crd["status"]["conditions"]}
            # NonStructuralSchema, or a rule that costs too much, would stand here as well.
            self.assertEqual(conditions, {"NamesAccepted": "True", "Established": "True"})

    @fast
    def test_fields_that_do_not_exist_are_named(self) -> None:
        reply = self.admin.post(f"{POOLS}?{STRICT}", self.pool("typo", shardin={}, pause=True))
        self.assertEqual(reply.code, 400)
        for field in ("spec.shardin", "spec.pause"):
            self.assertIn(f'unknown field "{field}"', reply.message)
        done = self.plane.kubectl("apply", "-f", "-", stdin=json.dumps(self.pool("typo", pause=1)))
        self.assertEqual(done.returncode, 1)
        self.assertIn("spec.pause", done.stderr)

    @fast
    def test_get_shows_the_columns_of_both_kinds(self) -> None:
        self.create("columns")
        self.admin.merge(f"{POOLS}/columns/status", {"status": self.status()})
        lines = self.plane.must("get", "kvp", "columns", "-n", "team-a").splitlines()
        self.assertEqual(lines[0].split(), ["NAME", "READY", "MEMBERS", "EPOCH", "USED", "HIT",
                                            "REBALANCE", "AGE"])
        self.assertEqual(lines[1].split()[:-1], ["columns", "True", "2", "7", "25%", "87%", "Idle"])
        wide = self.plane.must("get", "kvcachepools", "columns", "-n", "team-a", "-o", "wide")
        self.assertIn("MESSAGE", wide)
        self.assertIn("2 of 3 nodes serve", wide)
        self.assertIn("columns", self.plane.must("get", "kvfabric", "-A"))  # the category

        self.assertEqual(self.admin.post(MAPS, shard_map("columns", 3)).code, 201)
        lines = self.plane.must("get", "kvsm", "-n", "team-a").splitlines()
        self.assertEqual(lines[0].split(), ["NAME", "EPOCH", "TERM", "SLOTS", "AGE"])
        self.assertEqual(lines[1].split()[:-1], ["columns", "3", "1", "16384"])

    @fast
    def test_explain_tells_what_fields_mean(self) -> None:
        wait_until(lambda: self.plane.kubectl("explain", "kvp.spec.tiers").returncode == 0, 20,
                   "the schema is published")
        text = self.plane.must("explain", "kvp.spec.tiers")
        self.assertIn("Where bytes are held, fastest first.", text)
        self.assertRegex(text, r"capacityPerNode\s+<[^>]*>\s+-required-")
        self.assertIn("enum: GPU, DRAM, NVMe, Object", text)
        self.assertIn("leaseTransitions", self.plane.must("explain", "kvsm.spec.term"))

    def test_every_field_of_the_spec_is_explained(self) -> None:
        wait_until(lambda: self.plane.kubectl("explain", "kvp.spec").returncode == 0, 20,
                   "the schema is published")
        text = self.plane.must("explain", "kvp.spec", "--recursive")
        for field in ("tiers", "sharding", "rebalance", "tenancy", "security", "access", "events",
                      "nodeLossGracePeriod", "quota", "encryptionKeySecretRef"):
            self.assertRegex(text, rf"(?m)^\s+{field}\t")

    @fast
    def test_describe_shows_conditions(self) -> None:
        self.create("described")
        self.admin.merge(f"{POOLS}/described/status", {"status": self.status()})
        text = self.plane.must("describe", "kvp", "described", "-n", "team-a")
        self.assertIn("2 of 3 nodes serve", text)
        self.assertRegex(text, r"Capacity Per Node:\s+1Gi")

    @fast
    def test_wait_sees_the_condition_that_the_operator_writes(self) -> None:
        self.create("waited")
        wait = ("wait", "--for=condition=Ready", "kvp/waited", "-n", "team-a")
        self.admin.merge(f"{POOLS}/waited/status", {"status": self.status("False")})
        self.assertNotEqual(self.plane.kubectl(*wait, "--timeout=1s").returncode, 0)
        self.admin.merge(f"{POOLS}/waited/status", {"status": self.status("True")})
        self.assertIn("condition met", self.plane.must(*wait, "--timeout=30s"))

    @fast
    def test_status_and_spec_are_written_apart(self) -> None:
        created = self.create("apart")
        path = f"{POOLS}/apart"
        self.assertEqual(created["metadata"]["generation"], 1)
        after = self.admin.merge(f"{path}/status", {"status": self.status()}).body
        self.assertEqual(after["metadata"]["generation"], 1)
        self.assertNotEqual(after["metadata"]["resourceVersion"],
                            created["metadata"]["resourceVersion"])
        # A spec that comes through /status is ignored, a status that comes with the spec too.
        after = self.admin.merge(f"{path}/status", {"spec": {"paused": True}}).body
        self.assertEqual((after["spec"]["paused"], after["metadata"]["generation"]), (False, 1))
        after = self.admin.merge(path, {"status": {"epoch": 99}, "spec": {"paused": True}}).body
        self.assertEqual((after["status"]["epoch"], after["spec"]["paused"],
                          after["metadata"]["generation"]), (7, True, 2))
        # A new object cannot bring a status along.
        brought = self.admin.post(POOLS, {**self.pool("brought"), "status": {"epoch": 1}}).body
        self.assertNotIn("status", brought)

    @fast
    def test_a_status_like_the_operators_is_held_to_the_schema(self) -> None:
        self.create("typed")
        path = f"{POOLS}/typed/status?{STRICT}"
        reply = self.admin.merge(path, {"status": {"epoch": "seven"}})
        # <nil> says that rules were not asked, as there was a fault of the schema.
        self.assertEqual({field for field, _ in reply.causes}, {"status.epoch", "<nil>"})
        reply = self.admin.merge(path, {"status": {"epoh": 7}})
        self.assertFalse(reply.ok)
        self.assertIn('unknown field "status.epoh"', reply.message)

    @fast
    def test_applying_the_same_twice_writes_once(self) -> None:
        first = self.admin.apply(f"{POOLS}/applied", self.pool("applied"))
        self.assertEqual(first.code, 201, first.message)
        again = self.admin.apply(f"{POOLS}/applied", self.pool("applied"))
        self.assertEqual((again.code, again.body["metadata"]["resourceVersion"]),
                         (200, first.body["metadata"]["resourceVersion"]))
        object_ = {**self.pool("applied"), "status": self.status()}
        del object_["spec"]
        path = f"{POOLS}/applied/status"
        first = self.admin.apply(path, object_, "kvfabric-operator")
        self.assertEqual(first.code, 200, first.message)
        again = self.admin.apply(path, object_, "kvfabric-operator")
        self.assertEqual(again.body["metadata"]["resourceVersion"],
                         first.body["metadata"]["resourceVersion"])
        # Two owners: the user's next apply leaves the status alone.
        after = self.admin.apply(f"{POOLS}/applied", self.pool("applied", paused=True)).body
        self.assertEqual((after["status"]["epoch"], after["spec"]["paused"]), (7, True))

    @fast
    def test_quantities_are_kept_as_they_were_written(self) -> None:
        tiers = [{"name": "dram", "type": "DRAM", "capacityPerNode": 68719476736},
                 {"name": "flash", "type": "NVMe", "capacityPerNode": "1.5T"}]
        stored = self.create("quantities", tiers=tiers)["spec"]["tiers"]
        self.assertEqual([tier["capacityPerNode"] for tier in stored], [68719476736, "1.5T"])

    @fast
    def test_examples_that_we_ship_are_taken(self) -> None:
        files = [file for file in sorted((ROOT / "examples").glob("**/*.yaml"))
                 if "kind: KVCachePool" in file.read_text(encoding="utf-8")]
        self.assertTrue(files)
        for file in files:
            with self.subTest(file.name):
                done = self.plane.kubectl("apply", "--server-side", "--dry-run=server",
                                          "--validate=strict", "-f", str(file))
                self.assertEqual(done.returncode, 0, done.stderr)

    @fast
    def test_a_shard_map_only_goes_forward(self) -> None:
        path = f"{MAPS}/forward"
        self.assertEqual(self.admin.post(f"{MAPS}?{STRICT}", shard_map("forward", 5)).code, 201)
        ahead = {"epoch": 6, "table": table(1)}
        self.assertEqual(self.admin.merge(path, {"spec": ahead}).code, 200)
        for spec, field, text in (
                ({"epoch": 5}, "spec.epoch", "the epoch never goes back: write the stored one + 1"),
                ({"term": 0}, "spec.term",
                 "the term never goes back: another leader has written since"),
                ({"table": table(2)}, "spec.epoch",
                 "a change of table or members needs a higher epoch: write the stored one + 1"),
                ({"epoch": 7, "table": "AAAA"}, "spec.table", "must hold slotCount x owners entries"
                 " of two bytes in base64: write the whole table"),
                ({"poolUID": "other"}, "spec.poolUID",
                 "cannot change: make a new pool, or write the old value")):
            with self.subTest(text):
                reply = self.admin.merge(path, {"spec": spec})
                self.assertEqual([(f, SHOWN_VALUE.sub("", m)) for f, m in reply.causes],
                                 [(field, text)], reply.message)

    @fast
    def test_the_largest_shard_map_is_taken(self) -> None:
        """131,072 slots of 3 owners, 1,024 members and as many migrations: the bounds of the
        schema, the cost of its rules and the server's limit of an object leave room for it."""
        largest = shard_map("largest", 1, slots=131_072, owners=3)
        name = "ip-10-123-245-167.eu-central-1.compute.internal"
        largest["spec"]["members"] = [member(i, name) for i in range(1024)]
        largest["spec"]["migrations"] = [{"from": name, "to": name, "slots": 128, "bytes": 1 << 40}
                                         for _ in range(64)]
        reply = self.admin.post(f"{MAPS}?{STRICT}", largest)
        self.assertEqual(reply.code, 201, reply.message)
        # The guarded write that the fabric's consensus stands on.
        body = reply.body
        body["spec"].update(epoch=2, table=table(1, 131_072, 3))
        self.assertEqual(self.admin.put(f"{MAPS}/largest", body).code, 200)
        self.assertEqual(self.admin.put(f"{MAPS}/largest", body).code, 409)


def table(index: int, slots: int = 16_384, owners: int = 2) -> str:
    return base64.b64encode(index.to_bytes(2, "big") * (slots * owners)).decode()


def member(index: int, node: str) -> dict:
    return {"index": index, "nodeName": f"{index}.{node}", "agentUID": f"{index:036}",
            "address": "10.123.245.167", "port": 7070, "bulkPort": 7071, "zone": "eu-central-1a",
            "weight": 1 << 36, "state": "Active"}


def shard_map(name: str, epoch: int, slots: int = 16_384, owners: int = 2) -> dict:
    return {"apiVersion": "kvfabric.io/v1alpha1", "kind": "KVCacheShardMap",
            "metadata": {"name": name, "namespace": "team-a"},
            "spec": {"poolUID": "a", "term": 1, "epoch": epoch, "slotCount": slots, "replicas": 1,
                     "owners": owners, "members": [member(0, "node")],
                     "table": table(0, slots, owners), "checksum": "0123456789abcdef"}}
