"""Bytes that no client of ours sends: counted and answered or closed, never a crash."""
import json
import os
import socket
import unittest

from fabric import Fabric, alive, pool_yaml
from test_lifecycle import fast


class Garbage(unittest.TestCase):
    @fast
    def test_garbage_on_every_port_leaves_agent_and_operator_alive(self) -> None:
        with Fabric() as f:
            f.up(pool_yaml(), 2)
            settings = json.loads((f.dir / "kvctl.json").read_text())
            node = settings["nodes"][0]
            ports = [node["grpc"], node["bulk"], node["http"]]
            text = json.loads((f.dir / "operator.json").read_text())
            ports += [int(str(text[key]).rsplit(":", 1)[1].strip("/"))
                      for key in ("api", "http") if key in text]
            random = os.urandom(1 << 16)
            for payload in (b"", b"\0" * 65536, b"\xff" * 65536, random, b"GET / HTTP/1.1\r\n" * 900):
                for port in ports:
                    self.send(socket.AF_INET, ("127.0.0.1", port), payload)
                self.send(socket.AF_UNIX, str(f.dir / "agents" / "node-0" / "agent.sock"), payload)
            self.assertTrue(alive(f.pid()))
            self.assertTrue(alive(f.pid("node-0")))
            f.must("put", "x", "--node", "node-0", stdin=b"still here")
            self.assertEqual(f.must("get", "x", "--node", "node-0"), "still here")
            self.assertTrue(f.pool()["ready"])

    @staticmethod
    def send(family: int, address, payload: bytes) -> None:
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            connection.settimeout(2)
            try:
                connection.connect(address)
                connection.sendall(payload)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
            except OSError:
                pass  # closed on us, or slow to close: both are answers
