"""Engine: libkvfabric.so as an engine uses it, through its C interface (client/kvfabric.h).

For what kvctl is too slow for: a process a call would drown the time of the call.
"""
from __future__ import annotations

import ctypes
from ctypes import (POINTER, Structure, byref, c_char_p, c_int, c_size_t, c_uint8, c_uint16,
                    c_uint32, c_uint64, c_void_p, create_string_buffer)

from fabric import BIN, Fabric

SINGLE = 1
NOT_FOUND = 1  # kvf_miss
BUDGET_MS = 5000


class Options(Structure):
    _fields_ = [("abi_version", c_uint32), ("endpoints", c_char_p), ("token", c_char_p),
                ("pool", c_char_p), ("fingerprint", c_char_p), ("kind", c_int),
                ("connect_timeout_ms", c_uint32), ("staging_bytes", c_uint64)]


class Lane(Structure):
    _fields_ = [("group", c_uint16), ("rank", c_uint16)]


class Buffer(Structure):  # kvf_key and kvf_span
    _fields_ = [("data", c_void_p), ("size", c_size_t)]


class Lookup(Structure):
    _fields_ = [("hits", c_uint32), ("local", c_uint32), ("peer", c_uint32), ("miss", c_int),
                ("lease", c_void_p)]


SHARED = Lane(0, 65535)


def load() -> ctypes.CDLL:
    library = ctypes.CDLL(str(BIN.parent / "lib" / "libkvfabric.so"))
    library.kvf_client_create.argtypes = [POINTER(Options), POINTER(c_void_p), c_char_p, c_size_t]
    library.kvf_client_wait.argtypes = [c_void_p, c_uint32, c_char_p, c_size_t]
    library.kvf_client_destroy.argtypes = [c_void_p]
    library.kvf_client_destroy.restype = None
    library.kvf_chain_create.argtypes = [POINTER(Buffer), c_size_t]
    library.kvf_chain_create.restype = c_void_p
    library.kvf_chain_destroy.argtypes = [c_void_p]
    library.kvf_chain_destroy.restype = None
    library.kvf_lookup_single.argtypes = [c_void_p, c_void_p, c_uint32, POINTER(c_uint8),
                                          POINTER(Lookup)]
    library.kvf_lookup_single.restype = None
    library.kvf_lease_release.argtypes = [c_void_p]
    library.kvf_lease_release.restype = None
    library.kvf_put_blocks.argtypes = [c_void_p, c_void_p, c_uint32, POINTER(Buffer), c_size_t,
                                       Lane, c_uint32, POINTER(c_uint8)]
    library.kvf_put_blocks.restype = c_uint32
    return library


class Keys:
    """Independent keys, prepared so that a timed call does nothing but the call."""

    def __init__(self, library: ctypes.CDLL, keys: list[bytes]) -> None:
        self._library = library
        self.count = len(keys)
        texts = [create_string_buffer(key, len(key)) for key in keys]
        array = (Buffer * len(keys))(*[Buffer(ctypes.addressof(t), len(t)) for t in texts])
        self.handle = library.kvf_chain_create(array, len(keys))
        if not self.handle:
            raise AssertionError("keys refused")

    def __del__(self) -> None:
        self._library.kvf_chain_destroy(self.handle)


class Engine:
    """A client of one tenant at one node."""

    def __init__(self, fabric: Fabric, node: str, tenant: str, pool: str = "default/main") -> None:
        tokens = dict(line.split() for line in (fabric.dir / "tokens").read_text().splitlines())
        socket = fabric.dir / "agents" / node / "agent.sock"
        self.library = load()
        self._client = c_void_p()
        options = Options(1, f"unix:{socket}".encode(), tokens[tenant].encode(), pool.encode(),
                          b"client=e2e\n", SINGLE, 200, 64 << 20)
        why = create_string_buffer(256)
        if self.library.kvf_client_create(byref(options), byref(self._client), why, 256) != 0 or \
                self.library.kvf_client_wait(self._client, BUDGET_MS, why, 256) != 0:
            raise AssertionError(f"engine of {tenant}: {why.value.decode()}")

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.library.kvf_client_destroy(self._client)

    def keys(self, keys: list[bytes]) -> Keys:
        return Keys(self.library, keys)

    def put(self, keys: Keys, block: bytes) -> int:
        """The same bytes under each key; how many are there then."""
        data = create_string_buffer(block, len(block))
        spans = (Buffer * keys.count)(*[Buffer(ctypes.addressof(data), len(block))] * keys.count)
        results = (c_uint8 * keys.count)()
        return self.library.kvf_put_blocks(self._client, keys.handle, 0, spans, keys.count, SHARED,
                                           BUDGET_MS, results)

    def lookup(self, keys: Keys) -> Lookup:
        out = Lookup()
        found = (c_uint8 * keys.count)()
        self.library.kvf_lookup_single(self._client, keys.handle, BUDGET_MS, found, byref(out))
        if out.lease:
            self.library.kvf_lease_release(out.lease)
        return out
