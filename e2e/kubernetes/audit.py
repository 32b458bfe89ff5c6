"""What an audit log says about who asked for what, and which granted verbs nobody used."""
from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
"""


@dataclass(frozen=True, order=True)
class Access:
    """One kind of request. `resource` is as a rule of a Role writes it: pods, kvcachepools/status;
    for requests without one (/readyz) it is the path."""
    user: str
    verb: str
    group: str
    resource: str
    code: int


def accesses(log: Path, user: str = "") -> Counter[Access]:
    """How often each kind of request was made, all users' or one's.

    A watch that was long enough has two entries, its start and its end; only one counts.
    """
    counts: Counter[Access] = Counter()
    seen: set[str] = set()
    for line in log.read_text(encoding="utf-8").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # the last line, cut by a kill
        name = event["user"].get("username", "")
        if (user and name != user) or event["auditID"] in seen:
            continue
        seen.add(event["auditID"])
        target = event.get("objectRef")
        resource = event.get("requestURI", "").split("?")[0]
        if target:
            resource = target.get("resource", "")
            if target.get("subresource"):
                resource += "/" + target["subresource"]
        counts[Access(name, event["verb"], (target or {}).get("apiGroup", ""), resource,
                      event.get("responseStatus", {}).get("code", 0))] += 1
    return counts


def forbidden(counts: Counter[Access]) -> list[Access]:
    return sorted(access for access in counts if access.code == 403)


def unused(rules: list[dict], counts: Counter[Access]) -> list[tuple[str, str, str]]:
    """(group, resource, verb) that the rules of a Role grant and nobody asked for.

    Rules with "*" cannot be judged and are refused: shipped roles have none.
    """
    asked = {(access.group, access.resource, access.verb) for access in counts
             if access.code != 403}
    granted = set()
    for rule in rules:
        for group in rule.get("apiGroups", []):
            for resource in rule.get("resources", []):
                for verb in rule["verbs"]:
                    if "*" in (group, resource, verb):
                        raise ValueError(f"a rule with * grants what nobody can list: {rule}")
                    granted.add((group, resource, verb))
    return sorted(granted - asked)
