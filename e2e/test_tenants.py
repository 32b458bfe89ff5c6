"""No tenant sees another's blocks."""
import unittest

import fabric
from fabric import Fabric, pool_yaml
from test_lifecycle import fast


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
