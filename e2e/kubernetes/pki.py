"""Certificates of a test control plane, made with the openssl program (3.0 or newer).

Server and clients have different authorities, as in a real cluster, so that a test cannot pass
because one certificate happens to serve for both.
"""
from __future__ import annotations

import subprocess
from pathlib import Path

SERVER_NAMES = ("DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,"
                "IP:127.0.0.1,IP:10.0.0.1")

# openssl wants a configuration; the machine's own would add extensions that collide with ours.
_CONFIG = "[req]\ndistinguished_name = name\nprompt = no\n[name]\n"
_DAYS = "30"


class Pki:
    """Files NAME.crt and NAME.key in one folder. Not safe to use from two threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700)
        self._config = folder / "openssl.cnf"
        self._config.write_text(_CONFIG, encoding="ascii")
        for authority in ("server-ca", "client-ca", "proxy-ca"):
            self._request(authority, f"/CN={authority}", [
                "basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign"])
        self._leaf("server-ca", "apiserver", "/CN=kube-apiserver", "serverAuth", SERVER_NAMES)
        self._leaf("proxy-ca", "front-proxy", "/CN=front-proxy-client", "clientAuth")
        self._run("genrsa", "-out", str(self.key("service-account")), "2048")
        self._run("rsa", "-in", str(self.key("service-account")), "-pubout", "-out",
                  str(self.folder / "service-account.pub"))

    def certificate(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def client(self, name: str, user: str, groups: tuple[str, ...] = ()) -> None:
        """A client certificate: the API server reads the user from CN and the groups from O."""
        subject = "".join(f"/O={_escaped(group)}" for group in groups) + f"/CN={_escaped(user)}"
        self._leaf("client-ca", name, subject, "clientAuth")

    def _leaf(self, authority: str, name: str, subject: str, usage: str, names: str = "") -> None:
        extensions = ["basicConstraints=CA:FALSE", "keyUsage=critical,digitalSignature",
                      f"extendedKeyUsage={usage}"]
        if names:
            extensions.append(f"subjectAltName={names}")
        self._request(name, subject, extensions, authority)

    def _request(self, name: str, subject: str, extensions: list[str],
                 authority: str = "") -> None:
        command = ["req", "-x509", "-config", str(self._config), "-newkey", "ec", "-pkeyopt",
                   "ec_paramgen_curve:P-256", "-nodes", "-days", _DAYS, "-subj", subject,
                   "-keyout", str(self.key(name)), "-out", str(self.certificate(name))]
        for extension in extensions:
            command += ["-addext", extension]
        if authority:
            command += ["-CA", str(self.certificate(authority)), "-CAkey",
                        str(self.key(authority))]
        self._run(*command)

    @staticmethod
    def _run(*arguments: str) -> None:
        done = subprocess.run(["openssl", *arguments], capture_output=True, text=True,
                              timeout=60, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"openssl {' '.join(arguments)}: exit {done.returncode} "
                               f"(3.0 or newer is needed)\n{done.stderr}")


def _escaped(word: str) -> str:
    return word.replace("\\", "\\\\").replace("/", "\\/").replace("+", "\\+")
