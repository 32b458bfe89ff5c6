#!/usr/bin/env python3
"""Fails on any #include that the layering of ARCHITECTURE.md does not allow.

Each directory names what it may include. A file may always include its own directory. Generated
protobuf and gRPC headers, and the heavy third parties listed below, may appear only in .cc files.

Example: scripts/check_layers.py
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

BASE = {"common"}
ALLOWED = {
    "common": set(),
    "placement": BASE,
    "trace": BASE,
    "transport": BASE,
    "http": BASE,
    "api": BASE,
    "client": BASE | {"transport"},
    "agent/block": BASE,
    "agent/policy": BASE | {"agent/block"},
    "agent/tier": BASE | {"agent/block"},
    "agent/engine": BASE | {"agent/block", "agent/policy", "agent/tier"},
    "agent/cluster": BASE | {"agent/block", "agent/engine", "agent/tier", "agent/policy",
                             "placement", "transport"},
    "agent/service": BASE | {"agent/block", "agent/engine", "agent/tier", "agent/cluster",
                             "placement", "transport", "http", "api"},
    "agent": BASE | {"agent/block", "agent/engine", "agent/tier", "agent/cluster",
                     "agent/service", "placement", "transport", "http"},
    "operator/kube": BASE | {"http"},
    "operator/specs": BASE | {"placement", "operator/kube"},
    "operator/controllers": BASE | {"placement", "operator/kube", "operator/specs", "api"},
    "operator": BASE | {"placement", "operator/kube", "operator/specs", "operator/controllers",
                        "http"},
    "cli": BASE | {"client", "trace", "placement", "operator/kube", "operator/specs", "api"},
    "bench": None,  # any public header
    "tests": None,
}
HEAVY = re.compile(r'#include\s+[<"]((grpcpp|grpc|google/protobuf|kvfabric/v1|nlohmann(?!/json_fwd)|spdlog|CLI|'
                   r'httplib|yaml-cpp|prometheus|curl|openssl)[/.][^>"]*)[>"]')
GENERATED = re.compile(r'^\s*#\s*include\s+[<"]kvfabric/v1/', re.M)
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def module_of(path: str) -> str | None:
    parts = path.split("/")
    for depth in (2, 1):
        name = "/".join(parts[:depth])
        if len(parts) > depth and name in ALLOWED:
            return name
    return None


def main() -> int:
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.h", "*.cc"],
                           cwd=ROOT, text=True, capture_output=True, check=True).stdout.split()
    faults = []
    edges: dict[str, set[str]] = {}
    for name in files:
        if not (ROOT / name).exists():
            continue
        text = (ROOT / name).read_text(encoding="utf-8")
        module = module_of(name)
        if module is None:
            faults.append(f"{name}: no rule for this directory: add it to scripts/check_layers.py")
            continue
        if name.endswith(".h") and (heavy := HEAVY.search(text)) and not name.startswith("tests/"):
            faults.append(f"{name}: {heavy.group(1)} may be included in .cc files only")
        rule = ALLOWED[module]
        if GENERATED.search(text) and rule is not None and "api" not in rule:
            faults.append(f"{name}: {module} may not see the generated API")
        for included in INCLUDE.findall(text):
            if included.startswith("kvfabric/v1/"):
                continue
            target = module_of(included)
            if target is None:
                faults.append(f'{name}: "{included}" is not a path from the repository root')
                continue
            if not (ROOT / included).exists():
                faults.append(f'{name}: "{included}" does not exist')
            if target in (module, "tests") and (target == module or module == "tests"):
                continue
            edges.setdefault(module, set()).add(target)
            if rule is not None and target not in rule:
                faults.append(f"{name}: {module} may not include {target} ({included})")
    for fault in faults:
        print(fault)
    print(f"layers: {len(files)} files, {sum(map(len, edges.values()))} edges, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
