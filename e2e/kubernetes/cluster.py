"""ControlPlane: etcd and a real kube-apiserver on loopback, alone in a temporary directory.

    with ControlPlane(controllers=True) as plane:
        print(plane.must("get", "namespaces"))

Any number may run at once, of any checkout: ports are free ones, paths are fresh, certificates are
its own. What it started ends with the `with` block, at SIGTERM, and when the runner is killed.
"""
from __future__ import annotations

import atexit
import base64
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import audit
from .client import Client
from .component import Component
from .pki import Pki

ROOT = Path(__file__).resolve().parent.parent.parent
TIME_SCALE = float(os.environ.get("KVF_TIME_SCALE", "1"))
# Waits end early when what they wait for is there or cannot come; the limit is for what hangs.
START_SECONDS = 240
PORT_TRIES = 5
ADDRESS_IN_USE = "address already in use"


@dataclass(frozen=True)
class Options:
    """What a test may choose.

    controllers, scheduler: run kube-controller-manager (all its controllers; ServiceAccounts get
        made, garbage is collected) and kube-scheduler.
    watch_cache: False serves watches from etcd itself, so that a compaction ends them with 410.
    min_request_timeout_s: the server ends watches without timeoutSeconds after 1 to 2 times this.
    audit: log who asked for what; see audit_log.
    node_grace_s: silence after which a node becomes Unknown. Keep it at 50 with kwok.
    apiserver_flags: more flags for kube-apiserver.
    """
    controllers: bool = False
    scheduler: bool = False
    watch_cache: bool = True
    min_request_timeout_s: int | None = None
    audit: bool = False
    node_grace_s: int = 50
    apiserver_flags: tuple[str, ...] = ()


def programs(target: str = "kube") -> Path:
    """The folder with what `e2e/bootstrap TARGET` built."""
    where = subprocess.run([str(ROOT / "e2e" / "bootstrap"), "--where", target],
                           capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    if not (Path(where) / target).exists():
        raise FileNotFoundError(f"{where}/{target} is not there: run e2e/bootstrap {target}")
    return Path(where)


class ControlPlane:
    """Used by one thread: the kernel ends the processes when the thread that started them goes."""

    def __init__(self, **choices: object) -> None:
        self.options = Options(**choices)
        self.bin = programs()
        self.start_seconds: dict[str, float] = {}
        self._components: list[Component] = []
        self._ports: dict[str, list[int]] = {}
        self._old_sigterm: object = None
        self._dir: Path | None = None

    def __enter__(self) -> "ControlPlane":
        self._take_sigterm()
        self._dir = Path(tempfile.mkdtemp(prefix="kvf-plane-"))
        # For a plane that belongs to a test class: its cleanup is not reached at an interrupt.
        atexit.register(self.close)
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends what was started, newest first; may be called again."""
        # The data is thrown away, so nobody needs to be asked.
        for component in reversed(self._components):
            component.kill()
        shutil.rmtree(self.dir, ignore_errors=True)
        if self._old_sigterm is not None:
            signal.signal(signal.SIGTERM, self._old_sigterm)
            self._old_sigterm = None
        atexit.unregister(self.close)

    # What tests ask.

    @property
    def dir(self) -> Path:
        """Temporary, for the test's own files too."""
        assert self._dir is not None, "use it in a with statement"
        return self._dir

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def audit_log(self) -> Path:
        assert self.options.audit, "made without audit=True"
        return self.dir / "audit.log"

    def kubectl(self, *arguments: str, stdin: str | None = None, kubeconfig: Path | None = None,
                timeout: float = 60) -> subprocess.CompletedProcess:
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(self.dir),
                       "KUBECONFIG": str(kubeconfig or self.admin_kubeconfig)}
        return subprocess.run([str(self.bin / "kubectl"), *arguments], input=stdin,
                              capture_output=True, text=True, timeout=timeout * TIME_SCALE,
                              env=environment, cwd=self.dir, check=False)

    def must(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        done = self.kubectl(*arguments, stdin=stdin, timeout=timeout)
        if done.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(arguments)}: exit {done.returncode}\n"
                                 f"{done.stdout}{done.stderr}{self.logs()}")
        return done.stdout

    def logs(self) -> str:
        return "".join(f"\n{component.tail()}" for component in self._components)

    # Users.

    def kubeconfig(self, user: str, groups: tuple[str, ...] = ()) -> Path:
        """A user with a client certificate: no rights but those that RBAC gives it."""
        name = self._certificate(user, groups)
        return self._write_kubeconfig(name, {
            "client-certificate": str(self.pki.certificate(name)),
            "client-key": str(self.pki.key(name))})

    def client(self, user: str = "admin", groups: tuple[str, ...] = ("system:masters",)) -> Client:
        name = self._certificate(user, groups)
        context = ssl.create_default_context(cafile=str(self.pki.certificate("server-ca")))
        context.load_cert_chain(self.pki.certificate(name), self.pki.key(name))
        return Client(self.port, context)

    def token(self, namespace: str, account: str, seconds: int = 3600,
              audiences: tuple[str, ...] = ()) -> str:
        """A token of a ServiceAccount, as the kubelet projects it; 600 s is the server's least."""
        spec: dict[str, object] = {"expirationSeconds": seconds}
        if audiences:
            spec["audiences"] = list(audiences)
        reply = self.client().post(
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
        if not reply.ok:
            raise AssertionError(f"token of {namespace}/{account}: {reply.code} {reply.message}")
        return reply.body["status"]["token"]

    def token_client(self, token: str) -> Client:
        context = ssl.create_default_context(cafile=str(self.pki.certificate("server-ca")))
        return Client(self.port, context, token)

    def token_kubeconfig(self, namespace: str, account: str, seconds: int = 3600) -> Path:
        """For programs outside the cluster; the token is in a file beside it, NAME.token."""
        name = f"{namespace}.{account}"
        file = self.dir / f"{name}.token"
        file.touch(mode=0o600)
        file.write_text(self.token(namespace, account, seconds), encoding="ascii")
        return self._write_kubeconfig(name, {"tokenFile": str(file)})

    # Disturbances. The parts are also there as etcd, apiserver, controller_manager and scheduler:
    # pause(), resume(), kill(), start().

    def restart_apiserver(self, graceful: bool = True) -> float:
        """Same port, same data, empty watch cache; answers how long it was away."""
        started = time.monotonic()
        if graceful:
            self.apiserver.stop()
        else:
            self.apiserver.kill()
        self.apiserver.start()
        self._await("kube-apiserver", self._api_ready)
        return time.monotonic() - started

    def await_ready(self) -> None:
        """After a test has started a part again."""
        self._await("etcd", self._etcd_ready)
        self._await("kube-apiserver", self._api_ready)

    def revision(self) -> int:
        """etcd's present revision: the highest resourceVersion there is."""
        return int(self._etcd_call("kv/range", {"key": _base64("/")})["header"]["revision"])

    def compact(self) -> int:
        """Forgets all history in etcd and answers the revision that is left.

        Reads at older revisions get 410 from then on; so do watches when watch_cache is off. With
        the watch cache on, call expire_watches(), as the cache remembers on its own.
        """
        revision = self.revision()
        self._etcd_call("kv/compaction", {"revision": str(revision), "physical": True})
        return revision

    def expire_watches(self) -> int:
        """Makes every resourceVersion up to now too old to watch from: all watches end, and get
        410 when they come again, as after a long cut. Answers the revision that is left."""
        # The fresh cache begins at what it finds; it must not find what the watchers saw last.
        self.client().request("PATCH", "/api/v1/namespaces/kube-system",
                              {"metadata": {"annotations": {"e2e/expired": str(time.time_ns())}}},
                              "application/merge-patch+json")
        revision = self.compact()
        self.restart_apiserver()
        return revision

    # Starting.

    def _start(self) -> None:
        started = time.monotonic()
        self.pki = Pki(self.dir / "pki")
        self.start_seconds["certificates"] = time.monotonic() - started
        self.etcd = self._start_at_free_ports("etcd", 2, self._etcd_command, self._etcd_ready)
        if self.options.audit:
            (self.dir / "audit-policy.yaml").write_text(audit.POLICY, encoding="ascii")
        self._certificate("admin", ("system:masters",))
        self.apiserver = self._start_at_free_ports("kube-apiserver", 1, self._apiserver_command,
                                                   self._api_ready)
        self.admin_kubeconfig = self.kubeconfig("admin", ("system:masters",))
        if self.options.controllers:
            self.controller_manager = self._start_at_free_ports(
                "kube-controller-manager", 1, self._controller_manager_command,
                lambda: self._healthy("kube-controller-manager"))
        if self.options.scheduler:
            self.scheduler = self._start_at_free_ports(
                "kube-scheduler", 1, self._scheduler_command,
                lambda: self._healthy("kube-scheduler"))
        self.start_seconds["all"] = time.monotonic() - started

    def _start_at_free_ports(self, name: str, count: int,
                             command: Callable[[list[int]], list[str]],
                             ready: Callable[[], bool]) -> Component:
        """Tries other ports when somebody took one between the look and the start."""
        started = time.monotonic()
        for attempt in range(PORT_TRIES):
            self._ports[name] = free_ports(count)
            component = Component(name, command(self._ports[name]), self.dir / f"{name}.log",
                                  {"HOME": str(self.dir), "PATH": os.environ.get("PATH", "")})
            self._components.append(component)
            component.start()
            try:
                self._await(name, ready)
            except AssertionError:
                if attempt == PORT_TRIES - 1 or ADDRESS_IN_USE not in component.tail():
                    raise
                component.kill()
                self._components.remove(component)
                continue
            break
        self.start_seconds[name] = time.monotonic() - started
        return component

    @property
    def port(self) -> int:
        return self._ports["kube-apiserver"][0]

    def _etcd_command(self, ports: list[int]) -> list[str]:
        client, peer = (f"http://127.0.0.1:{port}" for port in ports)
        shutil.rmtree(self.dir / "etcd", ignore_errors=True)
        return [str(self.bin / "etcd"), "--name=node0", f"--data-dir={self.dir / 'etcd'}",
                f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=node0={peer}", "--unsafe-no-fsync=true",
                # One member always wins; it need not wait a second for others before it does.
                "--heartbeat-interval=10", "--election-timeout=100"]

    def _apiserver_command(self, ports: list[int]) -> list[str]:
        folder, options = self.pki.folder, self.options
        command = [
            str(self.bin / "kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{self._ports['etcd'][0]}",
            "--bind-address=127.0.0.1", f"--secure-port={ports[0]}",
            "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
            f"--tls-cert-file={folder}/apiserver.crt",
            f"--tls-private-key-file={folder}/apiserver.key",
            f"--client-ca-file={folder}/client-ca.crt",
            f"--requestheader-client-ca-file={folder}/proxy-ca.crt",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={folder}/front-proxy.crt",
            f"--proxy-client-key-file={folder}/front-proxy.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={folder}/service-account.pub",
            f"--service-account-signing-key-file={folder}/service-account.key",
            "--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
            f"--watch-cache={str(options.watch_cache).lower()}"]
        if not options.controllers:
            # Nobody would make the default accounts that this plugin waits for.
            command.append("--disable-admission-plugins=ServiceAccount")
        if options.min_request_timeout_s is not None:
            command.append(f"--min-request-timeout={options.min_request_timeout_s}")
        if options.audit:
            command += [f"--audit-policy-file={self.dir}/audit-policy.yaml",
                        f"--audit-log-path={self.audit_log}", "--audit-log-mode=blocking-strict"]
        return command + list(options.apiserver_flags)

    def _controller_manager_command(self, ports: list[int]) -> list[str]:
        return self._controller_command("kube-controller-manager", ports[0]) + [
            "--use-service-account-credentials", f"--root-ca-file={self.pki.folder}/server-ca.crt",
            f"--service-account-private-key-file={self.pki.folder}/service-account.key",
            "--node-monitor-period=1s", f"--node-monitor-grace-period={self.options.node_grace_s}s",
            "--kube-api-qps=200", "--kube-api-burst=400"]

    def _scheduler_command(self, ports: list[int]) -> list[str]:
        return self._controller_command("kube-scheduler", ports[0])

    def _controller_command(self, name: str, port: int) -> list[str]:
        config = self.kubeconfig(f"system:{name}")
        return [str(self.bin / name), f"--kubeconfig={config}",
                f"--authentication-kubeconfig={config}", f"--authorization-kubeconfig={config}",
                "--bind-address=127.0.0.1", f"--secure-port={port}", "--leader-elect=false"]

    # Readiness.

    def _await(self, name: str, ready: Callable[[], bool]) -> None:
        component = next(c for c in self._components if c.name == name)
        deadline = time.monotonic() + START_SECONDS * TIME_SCALE
        while True:
            if not component.running:
                raise AssertionError(f"{name} ended while it started\n{component.tail()}")
            if ready():
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"{name} is not ready after {START_SECONDS * TIME_SCALE} s"
                                     f"{self.logs()}")
            time.sleep(0.05)

    def _etcd_ready(self) -> bool:
        return _answers(f"http://127.0.0.1:{self._ports['etcd'][0]}/health")

    def _api_ready(self) -> bool:
        try:
            return self.client().request("GET", "/readyz", timeout=5).code == 200
        except OSError:
            return False

    def _healthy(self, name: str) -> bool:
        # They make certificates of their own that nobody signed; only that they answer counts.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return _answers(f"https://127.0.0.1:{self._ports[name][0]}/healthz", context)

    # Small parts.

    def _certificate(self, user: str, groups: tuple[str, ...]) -> str:
        name = "user-" + "".join(c if c.isalnum() or c in "-_" else "." for c in
                                 "+".join((user, *sorted(groups))))
        if not self.pki.certificate(name).exists():
            self.pki.client(name, user, groups)
        return name

    def _write_kubeconfig(self, name: str, user: dict[str, str]) -> Path:
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "e2e",
            "clusters": [{"name": "e2e", "cluster": {
                "server": self.url, "certificate-authority":
                    str(self.pki.certificate("server-ca"))}}],
            "users": [{"name": "e2e", "user": user}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}}]}
        file = self.dir / f"{name}.kubeconfig"
        file.write_text(json.dumps(config), encoding="utf-8")
        return file

    def _etcd_call(self, method: str, body: dict) -> dict:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._ports['etcd'][0]}/v3/{method}",
            json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.loads(response.read())

    def _take_sigterm(self) -> None:
        """SIGTERM ends Python at once by default, without the end of any with block."""
        if (threading.current_thread() is threading.main_thread()
                and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL):
            self._old_sigterm = signal.signal(signal.SIGTERM, _interrupt)


def free_ports(count: int) -> list[int]:
    """Free now, and out of the range from which the kernel takes ports for outgoing connections,
    so that a server which restarts finds its port again."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates = random.SystemRandom().sample(range(10_000, max(first, 20_000)), 200)
    ports = []
    for port in candidates:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise OSError(f"no {count} free ports among 200 tried")


def _answers(url: str, context: ssl.SSLContext | None = None) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5, context=context) as response:
            return response.status == 200
    except OSError:
        return False


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _interrupt(_number: int, _frame: object) -> None:
    # Not SystemExit: unittest takes that for the failure of one test and goes on.
    raise KeyboardInterrupt("SIGTERM")
