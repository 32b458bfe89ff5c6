#!/usr/bin/env python3
"""Writes docs/reference/crd.md from the schemas in api/crd.

    scripts/crd_reference.py           writes it
    scripts/crd_reference.py --check   fails when it is not what the schemas say
"""
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "reference" / "crd.md"
HEAD = """# Custom resources

What `kubectl explain` says, on one page. Generated from `api/crd` by `scripts/crd_reference.py`;
a change of a schema changes this page (`scripts/check` looks). A local fabric (`kvctl up`) has the
same schema, the same defaults and the same texts.
"""


def cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def type_of(schema: dict) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    kind = schema.get("type", "")
    if kind == "array":
        return f"list of {type_of(schema['items'])}"
    if kind == "object" and "additionalProperties" in schema:
        return f"map of {type_of(schema['additionalProperties'])}"
    return kind


def limits(schema: dict) -> str:
    """What the schema demands of a value, beside its type."""
    out = []
    if "enum" in schema:
        out.append("one of " + ", ".join(f"`{v}`" if v != "" else "empty" for v in schema["enum"]))
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None or high is not None:
        out.append(f"{low if low is not None else ''}..{high if high is not None else ''}")
    if "minLength" in schema or "maxLength" in schema:
        out.append(f"{schema.get('minLength', 0)}..{schema.get('maxLength', '')} characters")
    if "minItems" in schema or "maxItems" in schema:
        out.append(f"{schema.get('minItems', 0)}..{schema.get('maxItems', '')} items")
    if "pattern" in schema:
        out.append(f"pattern `{schema['pattern']}`")
    keys = schema.get("x-kubernetes-list-map-keys")
    if keys:
        out.append("one item for each " + ", ".join(f"`{k}`" for k in keys))
    return "; ".join(out)


def default_of(schema: dict) -> str:
    if "default" not in schema:
        return ""
    value = schema["default"]
    if isinstance(value, (dict, list)):
        return ""  # its fields have theirs
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`"


def children(schema: dict) -> tuple[str, dict]:
    """Suffix of the path and the schema that has properties."""
    if schema.get("type") == "array":
        suffix, inner = children(schema["items"])
        return "[]" + suffix, inner
    if isinstance(schema.get("additionalProperties"), dict):
        suffix, inner = children(schema["additionalProperties"])
        return ".*" + suffix, inner
    return "", schema


def walk(path: str, schema: dict, rows: list, rules: list) -> None:
    for rule in schema.get("x-kubernetes-validations", []):
        rules.append((path, rule.get("message", rule["rule"])))
    suffix, inner = children(schema)
    if inner is not schema:
        for rule in inner.get("x-kubernetes-validations", []):
            rules.append((path + suffix, rule.get("message", rule["rule"])))
    required = set(inner.get("required", []))
    for name, child in inner.get("properties", {}).items():
        at = f"{path}{suffix}.{name}"
        rows.append((at, type_of(child), default_of(child),
                     "yes" if name in required and "default" not in child else "",
                     child.get("description", ""), limits(child)))
        walk(at, child, rows, rules)


def table(rows: list) -> str:
    out = "| Field | Type | Default | Required | Meaning |\n|---|---|---|---|---|\n"
    for path, kind, default, required, text, bounds in rows:
        meaning = text + (f" ({bounds})" if bounds and text else bounds)
        out += f"| `{path}` | {kind} | {default} | {required} | {cell(meaning)} |\n"
    return out


def page(crd: dict) -> str:
    names = crd["spec"]["names"]
    out = ""
    for version in crd["spec"]["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        out += f"\n## {names['kind']} ({crd['spec']['group']}/{version['name']})\n\n"
        out += schema.get("description", "") + "\n"
        short = names.get("shortNames", [])
        if short:
            out += f"\n`kubectl get {short[0]}` prints: "
            columns = version.get("additionalPrinterColumns", [])
            out += ", ".join(c["name"] + (" (wide)" if c.get("priority") else "") for c in columns)
            out += ".\n"
        for part in ("spec", "status"):
            if part not in schema["properties"]:
                continue
            rows, rules = [], []
            walk(part, schema["properties"][part], rows, rules)
            out += f"\n### {names['kind']} {part}\n\n" + table(rows)
            if rules:
                out += "\nRules over several fields:\n\n"
                out += "".join(f"- `{at}`: {cell(message)}\n" for at, message in rules)
    return out


def main() -> int:
    text = HEAD
    for file in sorted((ROOT / "api" / "crd").glob("*.yaml")):
        text += page(yaml.safe_load(file.read_text(encoding="utf-8")))
    if sys.argv[1:] == ["--check"]:
        if not OUT.exists() or OUT.read_text(encoding="utf-8") != text:
            print("docs/reference/crd.md is not what api/crd says: run scripts/crd_reference.py")
            return 1
        return 0
    if sys.argv[1:]:
        print(__doc__)
        return 2
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
