"""Component: one process of the control plane, its log, and ways to disturb it."""
from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

LOG_TAIL_LINES = 25


class Component:
    """Owns at most one process, which ends at the latest when this Python process does.

    Used by the thread that made it: the kernel ends the process when that thread goes.
    """

    def __init__(self, name: str, command: list[str], log: Path,
                 environment: dict[str, str] | None = None) -> None:
        self.name = name
        self.command = command
        self.log = log
        self._environment = environment
        self._process: subprocess.Popen | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        assert not self.running, f"{self.name} runs already"
        # setpriv becomes the program, so the pid is the program's; a test runner that is killed
        # with SIGKILL leaves nothing behind.
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self.command], stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, cwd=self.log.parent,
                env=self._environment)

    def stop(self, seconds: float = 30) -> None:
        """As a rollout does: SIGTERM, and SIGKILL when that takes too long."""
        if not self.running:
            return
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """As a crash does."""
        if self._process is not None:
            if self.running:
                self.signal(signal.SIGKILL)
            self._process.wait()

    def pause(self) -> None:
        """Connections stay open and nothing answers: a stalled process, a cut network."""
        self.signal(signal.SIGSTOP)
        deadline = time.monotonic() + 10
        while _state(self.pid) not in "Tt":
            assert time.monotonic() < deadline, f"{self.name} does not stop at SIGSTOP"
            time.sleep(0.001)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def tail(self) -> str:
        """The end of the log, for an error message."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        state = "runs" if self.running else "was not started"
        if self._process is not None and not self.running:
            state = f"ended with {self._process.returncode}"
        return f"--- {self.name} ({state}):\n" + "\n".join(text.splitlines()[-LOG_TAIL_LINES:])


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0]
