"""No tenant sees another's blocks: not in results, not in the time a miss takes."""
import random
import statistics
import time
import unittest

import fabric
from engine import NOT_FOUND, Engine
from fabric import Fabric, pool_yaml
from test_lifecycle import fast, long


class Tenants(unittest.TestCase):
    @fast
    def test_b_never_gets_what_a_put(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(tenants=("team-a", "team-b")), 2)
            f.must("put", "secret", "--tenant", "team-a", "--node", "node-0", stdin=b"of a")
            self.assertEqual(f.must("get", "secret", "--tenant", "team-a"), "of a")
            for tenant in ("team-b", "default"):
                for node in ("node-0", "node-1"):
                    got = f.kvctl("get", "secret", "--tenant", tenant, "--node", node)
                    self.assertEqual(got.returncode, fabric.NOT_FOUND)
                    self.assertEqual(got.stdout, b"")
                    self.assertEqual(f.kvctl("exists", "secret", "--tenant", tenant, "--node",
                                             node).returncode, fabric.NOT_FOUND)
                    f.kvctl("rm", "secret", "--tenant", tenant, "--node", node)
            # Neither b's reads nor its removals touched a's block; b may have the same key.
            self.assertEqual(f.must("get", "secret", "--tenant", "team-a"), "of a")
            f.must("put", "secret", "--tenant", "team-b", "--node", "node-0", stdin=b"of b")
            self.assertEqual(f.must("get", "secret", "--tenant", "team-b"), "of b")
            self.assertEqual(f.must("get", "secret", "--tenant", "team-a"), "of a")

    @fast
    def test_replays_of_two_tenants_share_nothing(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(capacity="128Mi", tenants=("team-a", "team-b")), 2)
            trace = f.trace(100)
            first = f.replay(trace, "--tenant", "team-a")
            other = f.replay(trace, "--tenant", "team-b")
            again = f.replay(trace, "--tenant", "team-a")
            # b starts as cold as a did: not one hit comes from a's blocks.
            self.assertAlmostEqual(other["hit_tokens"], first["hit_tokens"],
                                   delta=first["prompt_tokens"] * 0.05)
            self.assertEqual(again["hit_tokens"], again["prompt_tokens"])
            for report in (first, other, again):
                self.assertEqual(report["wrong_bytes"], 0)

    @long
    def test_a_miss_takes_as_long_whether_another_tenant_has_the_key(self) -> None:
        """4,000 interleaved probes; the medians may differ by 3 %. One retry, as the machine is
        shared: a difference that is there is there for every seed."""
        probes, most = 4000, 0.03
        with Fabric() as f:
            f.up(pool_yaml(tenants=("team-a", "team-b")), 2)
            with Engine(f, "node-0", "team-a") as a, Engine(f, "node-0", "team-b") as b:
                for _ in range(2):
                    seed = random.randrange(1 << 32)
                    print(f"KVF_TEST_SEED={seed}")
                    difference = self.probe(a, b, random.Random(seed), probes)
                    if difference <= most:
                        break
            self.assertLessEqual(difference, most)

    def probe(self, a: Engine, b: Engine, source: random.Random, probes: int) -> float:
        fresh = [source.randbytes(16) for _ in range(probes)]
        kept, absent = fresh[:probes // 2], fresh[probes // 2:]
        for first in range(0, len(kept), 500):
            part = a.keys(kept[first:first + 500])
            self.assertEqual(a.put(part, b"x" * 256), part.count)
            self.assertEqual(a.lookup(part).hits, part.count)
        order = [(b.keys([key]), 0) for key in kept] + [(b.keys([key]), 1) for key in absent]
        source.shuffle(order)
        for keys, _ in order[:200]:  # connections, caches
            b.lookup(keys)
        times: tuple[list[int], list[int]] = ([], [])
        for keys, kind in order:
            began = time.perf_counter_ns()
            answer = b.lookup(keys)
            times[kind].append(time.perf_counter_ns() - began)
            self.assertEqual((answer.hits, answer.miss), (0, NOT_FOUND))
        medians = [statistics.median(part) for part in times]
        difference = abs(medians[0] - medians[1]) / min(medians)
        print(f"median of a miss: {medians[0] / 1000:.1f} us for a's keys, "
              f"{medians[1] / 1000:.1f} us for nobody's: {difference * 100:.2f} %")
        return difference

    @fast
    def test_a_token_nobody_gave_is_refused(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(tenants=("team-a",)), 1)
            self.assertEqual(f.kvctl("put", "x", "--tenant", "nobody", stdin=b"x").returncode,
                             fabric.NOT_FOUND)
            tokens = f.dir / "tokens"
            real = tokens.read_text()
            tokens.write_text("".join(f"{line.split()[0]} {'0' * 48}\n"
                                      for line in real.splitlines()))
            refused = f.kvctl("put", "x", "--tenant", "team-a", "--timeout", "2", stdin=b"x")
            self.assertNotEqual(refused.returncode, 0)
            tokens.write_text(real)
            f.must("put", "x", "--tenant", "team-a", stdin=b"x")
