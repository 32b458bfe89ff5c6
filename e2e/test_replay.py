"""The main job: a replay that nothing makes wrong."""
import json
import signal
import unittest

import fabric
from fabric import TIME_SCALE, Fabric, alive, pool_yaml, wait_until
from test_lifecycle import fast

TWO_SECONDS = 2 * TIME_SCALE


def puts(f: Fabric, agents: int) -> float:
    return sum(f.metric(f"node-{i}", "kvfabric_cluster_put_blocks_total") for i in range(agents))


def wait_for_peers_to_notice(f: Fabric, gone: str, survivors: tuple[str, ...]) -> None:
    up = f'kvfabric_cluster_peer_up{{peer="{gone}"}}'
    wait_until(lambda: not any(f.metric(node, up) for node in survivors), 5, f"{gone} is noticed")


class CleanReplay(unittest.TestCase):
    def check_clean(self, report: dict) -> None:
        self.assertEqual(report["wrong_bytes"], 0)
        self.assertEqual(report["wrong_blocks"], 0)
        self.assertEqual(report["corrupt_blocks"], 0)

    @fast
    def test_second_pass_hits_everything_from_every_node(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(capacity="64Mi"), 3)
            trace = f.trace(200)
            first = f.replay(trace, "--route", "hash")
            self.check_clean(first)
            self.assertEqual(first["puts_failed"], 0)
            self.assertEqual(first["puts_no_space"], 0)
            self.assertEqual(first["stale"], 0)
            # All blocks are full, so a second pass hits every token, wherever it asks.
            second = f.replay(trace, "--route", "round-robin")
            self.check_clean(second)
            self.assertEqual(second["hit_tokens"], second["prompt_tokens"])
            self.assertGreater(second["hit_tokens_peer"], 0)
            self.assertEqual(second["puts_ok"], 0)
            salted = f.replay(trace, "--salt", "other")
            self.assertLess(salted["hit_percent"], 100)

    @fast
    def test_ctrl_c_prints_the_report_so_far(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(), 2)
            replay = f.start_replay(f.trace(4000, every_ms=50), "--speed", "1")
            wait_until(lambda: puts(f, 2) > 0, 10, "the replay has put something")
            replay.interrupt()
            out, _ = replay._process.communicate(timeout=30)
            self.assertEqual(replay._process.returncode, 130)
            report = json.loads(out)
            self.assertTrue(report["interrupted"])
            self.assertLess(report["requests"], report["requests_in_trace"])

    @fast
    def test_event_after_the_last_request_is_told_as_not_done(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(), 1)
            done = f.kvctl("replay", str(f.trace(50)), "--kill", "1000", "-o", "json")
            self.assertEqual(done.returncode, fabric.FAILED, done.stderr)
            event = json.loads(done.stdout)["events"][0]
            self.assertIn("ended before trace second 1000", event["error"])
            self.assertTrue(alive(f.pid("node-0")))

    def test_capacity_far_below_the_trace_stays_clean(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(capacity="8Mi"), 3)
            report = f.replay(f.trace(600, conversations=100, blocks=12))
            self.check_clean(report)
            self.assertEqual(report["puts_failed"], 0)
            self.assertEqual(report["stale"], 0)
            used = f.pool()["status"]["tiers"][0]
            self.assertLessEqual(used["usedBytes"], used["totalBytes"])


class NodeFaults(unittest.TestCase):
    def check_event(self, report: dict, index: int = 0) -> None:
        event = report["events"][index]
        self.assertEqual(event["error"], "", report["events"])
        self.assertLessEqual(event["wrong_exists_s"], TWO_SECONDS, report["events"])
        self.assertLessEqual(event["failed_put_s"], TWO_SECONDS, report["events"])
        self.assertEqual(report["wrong_bytes"], 0)
        self.assertEqual(report["stale"], 0)

    def test_kill_in_the_middle_is_over_in_two_seconds(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(capacity="256Mi", replicas=2, grace="3s"), 3)
            trace = f.trace(800, every_ms=100)
            report = f.replay(trace, "--speed", "8", "--route", "hash", "--kill", "24")
            self.check_event(report)
            self.assertGreater(report["other_node"], 0, "requests of the dead node went elsewhere")
            victim = report["events"][0]["node"]
            wait_until(lambda: self.owned(f, victim) == 0, 20, "slots of the lost node moved")
            # Two copies of each block: one survived.
            again = f.replay(trace, "--route", "hash")
            self.assertEqual(again["wrong_bytes"], 0)
            self.assertGreaterEqual(again["hit_percent"], 95)

    def test_survivors_blocks_are_reachable_at_once_without_copies(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(replicas=1, grace="300s"), 3)
            trace = f.trace(300)
            f.replay(trace, "--route", "hash")
            f.must("node", "kill", "node-2")
            wait_until(lambda: not alive(f.pid("node-2")), 5, "node-2 gone")
            wait_for_peers_to_notice(f, "node-2", ("node-0", "node-1"))
            report = f.replay(trace, "--route", "hash")
            self.assertEqual(report["wrong_bytes"], 0)
            self.assertEqual(report["puts_failed"], 0)
            self.assertGreater(report["hit_percent"], 45)

    def test_stopped_agent_is_routed_round_within_two_seconds(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(replicas=2, grace="60s"), 3)
            report = f.replay(f.trace(800, every_ms=100), "--speed", "8", "--route", "hash",
                              "--stop", "24:24")
            self.check_event(report)
            self.assertGreater(report["other_node"], 0)
            # No call waited longer than the promise.
            for call in ("lookup_us", "get_us", "put_us"):
                self.assertLess(report[call]["p99"], TWO_SECONDS * 1e6, report)
            self.assertTrue(f.pool()["ready"])

    def test_operator_killed_in_the_middle_is_not_noticed(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(), 3)
            replay = f.start_replay(f.trace(600, every_ms=100), "--speed", "8")
            wait_until(lambda: puts(f, 3) > 0, 10, "the replay has put something")
            f.kill_operator()
            report = replay.result()
            self.assertEqual(report["wrong_bytes"], 0)
            self.assertEqual(report["puts_failed"], 0)
            self.assertEqual(report["wrong_exists"], 0)
            self.assertEqual(report["no_agent"], 0)

    def test_operator_down_for_a_whole_replay_with_a_node_killed(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(replicas=2), 3)
            epoch = f.pool()["epoch"]
            f.kill_operator()
            report = f.replay(f.trace(800, every_ms=100), "--speed", "8", "--route", "hash",
                              "--kill", "24", "--settle", "0")
            self.check_event(report)
            f.must("up")
            self.assertGreaterEqual(f.pool()["epoch"], epoch)
            self.assertTrue(f.pool()["ready"])

    def test_drain_loses_nothing_and_moves_no_more_than_it_must(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(capacity="64Mi", replicas=1), 3)
            trace = f.trace(200)
            f.replay(trace, "--route", "hash")
            report = f.replay(trace, "--speed", "1", "--route", "hash", "--drain", "1:node-1")
            self.check_event(report)
            self.assertEqual(report["puts_failed"], 0)
            wait_until(lambda: self.owned(f, "node-1") == 0, 60, "node-1 owns nothing")
            self.assertLessEqual(report["moved_slots"], 1.05 * report["moved_slots_bound"] + 1)
            # What it held went to the others: as many hits without it.
            f.signal(signal.SIGKILL, "node-1")
            wait_for_peers_to_notice(f, "node-1", ("node-0", "node-2"))
            again = f.replay(trace, "--route", "hash")
            self.assertEqual(again["wrong_bytes"], 0)
            self.assertGreaterEqual(again["hit_percent"], 99)

    def test_killed_node_comes_back_and_one_more_joins(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(replicas=2, grace="60s"), 3)
            report = f.replay(f.trace(400, every_ms=100), "--speed", "8", "--kill", "8:node-1",
                              "--add", "20")
            self.check_event(report)
            self.assertEqual(report["events"][1]["error"], "")
            new = report["events"][1]["node"]
            f.must("node", "add", "node-1")
            wait_until(lambda: self.owned(f, new) > 0, 60, "the new node owns slots")
            wait_until(lambda: f.pool()["ready"], 60, "ready")
            self.assertGreater(self.owned(f, "node-1"), 0)
            self.assertLessEqual(report["moved_slots"], 1.3 * report["moved_slots_bound"] + 1)

    @staticmethod
    def owned(f: Fabric, node: str) -> int:
        for entry in f.status()["nodes"]:
            if entry["name"] == node:
                pools = entry["pools"]
                return pools.get("default/main", {}).get("ownerSlots", 0)
        raise AssertionError(f"no node {node}")
