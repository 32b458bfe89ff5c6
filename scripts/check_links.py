#!/usr/bin/env python3
"""Fails on a relative link or a `path/in/backticks` of a Markdown page that leads nowhere, and on a
test that tests/FIELD_BUGS.md names but nobody wrote.

Example: scripts/check_links.py
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(#[^)]*)?\)")
CODE_PATH = re.compile(r"`((?:[a-z0-9_.-]+/)+[A-Za-z0-9_.-]*)`")

TEST = re.compile(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", re.M)
NAMED_TEST = re.compile(r"`([A-Z]\w+)\.(\w+)`")


def written_tests() -> set[tuple[str, str]]:
    tests = set()
    for source in (ROOT / "tests").rglob("*.cc"):
        tests.update(TEST.findall(source.read_text(encoding="utf-8")))
    for source in (ROOT / "e2e").glob("test_*.py"):
        text = source.read_text(encoding="utf-8")
        suite = ""
        for kind, name in re.findall(r"^(class|    def) (\w+)", text, re.M):
            if kind == "class":
                suite = name
            elif name.startswith("test_"):
                tests.add((suite, name))
    return tests


def main() -> int:
    pages = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT,
                           text=True, capture_output=True, check=True).stdout.split()
    faults, seen = [], 0
    for name in pages:
        page = ROOT / name
        if not page.exists():
            continue
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
        for target, _ in LINK.findall(re.sub(r"`[^`\n]*`", "", text)):
            if re.match(r"[a-z]+:", target):
                continue
            seen += 1
            if not (page.parent / target).exists():
                faults.append(f"{name}: link to {target} leads nowhere")
        for target in CODE_PATH.findall(text):
            top = target.split("/")[0]
            if not (ROOT / top).is_dir() or top in ("build",):
                continue  # not a path of this tree
            seen += 1
            if not (ROOT / target).exists() and not list(ROOT.glob(target + ".*")):
                faults.append(f"{name}: {target} does not exist")
    tests = written_tests()
    for suite, name in NAMED_TEST.findall(
            (ROOT / "tests" / "FIELD_BUGS.md").read_text(encoding="utf-8")):
        seen += 1
        if (suite, name) not in tests:
            faults.append(f"tests/FIELD_BUGS.md: no test {suite}.{name}")
    for fault in faults:
        print(fault)
    print(f"links: {len(pages)} pages, {seen} links, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
