#!/usr/bin/env python3
"""Refuses an engine library that needs or shows more than it may.

Engines load libkvfabric.so into images as old as glibc 2.34 and libstdc++ of GCC 11, beside
whatever else they load: so it may need only libc, libm, libstdc++ and libgcc_s, no symbol newer
than GLIBC_2.34 or GLIBCXX_3.4.29, and exports nothing but kvf_*.

Example: tests/client/check_library.py build/release/lib/libkvfabric.so
"""
import re
import subprocess
import sys

MAY_NEED = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}
NEWEST = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13)}


def run(*command: str) -> str:
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout


def main(library: str) -> int:
    faults = []
    needed = set(re.findall(r"NEEDED.*\[(.+)\]", run("readelf", "-d", library)))
    faults += [f"needs {name}" for name in sorted(needed - MAY_NEED)]
    for family, version in re.findall(r"\((GLIBC|GLIBCXX|CXXABI)_([0-9.]+)\)",
                                      run("objdump", "-T", library)):
        if tuple(map(int, version.split("."))) > NEWEST[family]:
            faults.append(f"uses a symbol of {family}_{version}")
    exported = [line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()]
    exported = [name.split("@")[0] for name in exported if " A " not in name]
    ours = [name for name in exported if name.startswith("kvf_")]
    faults += [f"exports {name}" for name in exported
               if not name.startswith("kvf_") and not name.startswith("KVFABRIC_")]
    if len(ours) < 10:
        faults.append(f"exports only {len(ours)} kvf_ functions")
    for fault in sorted(set(faults)):
        print(f"{library}: {fault}")
    print(f"{len(ours)} functions exported, {len(needed)} libraries needed, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
