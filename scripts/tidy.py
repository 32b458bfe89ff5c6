#!/usr/bin/env python3
"""House rules a formatter cannot see: sizes, banned calls, words that mean unfinished.

Limits: file 600 lines (header 250), function 70, line 100. Banned: sleeping, detach, getenv
outside main and tests, printing outside programs, `using namespace`, what clang 14 cannot
compile. Example: scripts/tidy.py
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE, MAX_HEADER, MAX_FUNCTION, MAX_LINE = 600, 250, 70, 100

# pattern, why, where it is allowed (path prefixes or suffixes)
BANNED = [
    (re.compile(r"\b(sleep_for|sleep_until|usleep|nanosleep)\b"), "sleeping synchronises nothing",
     ("cli/", "bench/")),
    (re.compile(r"\.detach\(\)"), "threads are joined", ()),
    (re.compile(r"\bgetenv\("), "environment is read in main only",
     ("tests/", "bench/", "cli/", "main.cc", "e2e/")),
    (re.compile(r"\bstd::(cout|cerr)\b"), "log through common/log.h",
     ("tests/", "bench/", "cli/", "main.cc")),
    (re.compile(r"(?<![a-z_:])(?:std::)?(?:f)?printf\("), "log through common/log.h",
     ("tests/", "bench/", "cli/", "main.cc", "common/check.cc")),
    (re.compile(r"\busing namespace\b"), "names say where they come from", ()),
    (re.compile(r"\bstd::views::|\bstd::ranges::views|\bstd::source_location|\bstd::format\b"),
     "clang 14 cannot compile it", ()),
    (re.compile(r"\b(TODO|FIXME|XXX|HACK)\b"), "finish it or file an issue", ()),
    (re.compile(r"\bGTEST_SKIP|\bDISABLED_"), "a skipped test proves nothing", ()),
]
FUNCTION_END = re.compile(r"^\}")
# A definition at column 0 (or inside one level of class) that opens a body on this line.
FUNCTION_START = re.compile(r"^[A-Za-z_~].*[^;=]\{\s*$")
NOT_FUNCTION = re.compile(r"^(namespace|class|struct|enum|union|extern|typedef|using|template)\b")


def long_functions(lines: list[str]) -> list[tuple[int, int]]:
    """(first line, length) of each top-level body that is too long."""
    found, start = [], None
    for number, line in enumerate(lines, 1):
        if start is None:
            if FUNCTION_START.match(line) and not NOT_FUNCTION.match(line) and "(" in "".join(
                    lines[max(0, number - 6):number]):
                start = number
        elif FUNCTION_END.match(line):
            if number - start + 1 > MAX_FUNCTION:
                found.append((start, number - start + 1))
            start = None
    return found


def check(name: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    lines = text.splitlines()
    faults = []
    limit = MAX_HEADER if name.endswith(".h") else MAX_FILE
    if name.endswith((".h", ".cc", ".py", ".sh")) and len(lines) > limit:
        faults.append(f"{name}: {len(lines)} lines (limit {limit}): split by reason to change")
    if not name.endswith((".h", ".cc", ".c")):
        return faults
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_LINE and "http" not in line and "R\"" not in line:
            faults.append(f"{name}:{number}: {len(line)} columns (limit {MAX_LINE})")
        code = line.split("//")[0] if "TODO" not in line and "FIXME" not in line else line
        for pattern, why, allowed in BANNED:
            if pattern.search(code) and not any(name.startswith(a) or name.endswith(a)
                                                for a in allowed):
                faults.append(f"{name}:{number}: {pattern.search(code).group(0)}: {why}")
    for start, length in long_functions(lines):
        faults.append(f"{name}:{start}: function of {length} lines (limit {MAX_FUNCTION})")
    if name.endswith(".h") and not text.startswith("#pragma once"):
        if "extern \"C\"" not in text:
            faults.append(f"{name}: starts without #pragma once")
    return faults


def main() -> int:
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.h", "*.cc", "*.c",
                            "*.py", "*.sh"],
                           cwd=ROOT, text=True, capture_output=True, check=True).stdout.split()
    faults = [fault for name in files if (ROOT / name).exists() for fault in check(name)]
    for fault in faults:
        print(fault)
    print(f"tidy: {len(files)} files, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
