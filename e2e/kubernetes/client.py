"""Client: one user's view of the API server, as plain HTTP requests.

For what kubectl hides: status codes, causes, resource versions, /status, watches.
"""
from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

JSON = "application/json"
YAML = "application/yaml"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


@dataclass
class Reply:
    code: int
    body: dict[str, Any]

    @property
    def ok(self) -> bool:
        return 200 <= self.code < 300

    @property
    def message(self) -> str:
        return self.body.get("message", "")

    @property
    def causes(self) -> list[tuple[str, str]]:
        """(field, message) of each fault of an object that was refused."""
        return [(cause.get("field", ""), cause.get("message", ""))
                for cause in self.body.get("details", {}).get("causes", [])]


class Client:
    """Opens a connection per request, so it outlives restarts of the server."""

    def __init__(self, port: int, context: ssl.SSLContext, token: str = "") -> None:
        self._port = port
        self._context = context
        self._token = token

    def request(self, method: str, path: str, body: object = None,
                content_type: str = JSON, timeout: float = 30) -> Reply:
        """`body` is an object to be written as JSON, or a text that is of the content type."""
        connection = self._connect(timeout)
        try:
            text = body if body is None or isinstance(body, str) else json.dumps(body)
            payload = None if text is None else text.encode()
            connection.request(method, path, payload, self._headers(content_type))
            response = connection.getresponse()
            return Reply(response.status, _parsed(response.read()))
        finally:
            connection.close()

    def get(self, path: str) -> Reply:
        return self.request("GET", path)

    def post(self, path: str, body: object) -> Reply:
        return self.request("POST", path, body)

    def put(self, path: str, body: object) -> Reply:
        return self.request("PUT", path, body)

    def merge(self, path: str, body: object) -> Reply:
        return self.request("PATCH", path, body, MERGE_PATCH)

    def apply(self, path: str, body: object, manager: str = "e2e") -> Reply:
        """Server-side apply; `path` may have a query of its own."""
        query = ("&" if "?" in path else "?") + f"fieldManager={manager}&force=true"
        return self.request("PATCH", path + query, body, APPLY_PATCH)

    def delete(self, path: str) -> Reply:
        return self.request("DELETE", path)

    def watch(self, path: str, seconds: float) -> Iterator[dict[str, Any]]:
        """The events of a watch until the server ends it; `path` holds watch=1.

        A server that refuses the watch gives its answer as one event {"code": N, "object": ...}.
        Raises TimeoutError after `seconds` without an event.
        """
        connection = self._connect(seconds)
        try:
            connection.request("GET", path, headers=self._headers(JSON))
            response = connection.getresponse()
            if response.status != 200:
                yield {"code": response.status, "object": _parsed(response.read())}
                return
            while line := response.readline():
                yield json.loads(line)
        finally:
            connection.close()

    def _connect(self, timeout: float) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("127.0.0.1", self._port, timeout=timeout,
                                           context=self._context)

    def _headers(self, content_type: str) -> dict[str, str]:
        headers = {"Accept": JSON, "Content-Type": content_type}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(data)
    except ValueError:
        return {"message": data.decode(errors="replace")}
    return parsed if isinstance(parsed, dict) else {"message": data.decode(errors="replace")}
