#!/usr/bin/env python3
"""Checks the declared functions against surface.txt, in both directions.

Every function of the list is declared; every nccl function has a pnccl twin with the same type; nothing else is
declared. With --library also: the library exports exactly these names. Prints what is wrong, one line each, and exits
with 1; with 0 it says what it counted.
"""

import argparse
import re
import subprocess
import sys

DECLARATION = re.compile(
    r"(?P<result>ncclResult_t|ncclTeam_t|const char\s*\*|(?:const )?void\s*\*+|void|int)\s*\b(?P<name>(?:p?nccl|tutti)\w+)\s*"
    r"\((?P<parameters>[^;{}]*)\)\s*;"
)


def read_list(path):
    with open(path, encoding="utf-8") as file:
        names = [line.split("#")[0].strip() for line in file]
    return [name for name in names if name]


def declared(compiler, include):
    """Name -> type of every function that our headers declare, as the preprocessor shows them."""
    headers = ("nccl.h", "nccl_device.h", "tutti/tutti.h", "tutti/host_grid.h", "tutti/coordinator_c.h",
               "tutti/elastic_c.h", "tutti/launch.h")
    source = "".join(f"#include <{header}>\n" for header in headers)
    command = [compiler, "-E", "-P", "-DTUTTI_NO_CUDA", "-I", include, "-x", "c", "-"]
    text = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    return {
        m["name"]: re.sub(r"\s+", " ", f"{m['result']} ({m['parameters']})")
        for m in DECLARATION.finditer(text)
    }


def exported(library):
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", library]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {line.split()[0].split("@")[0] for line in text.splitlines() if line}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compiler", default="cc")
    parser.add_argument("--include", required=True, help="folder that holds nccl.h")
    parser.add_argument("--list", required=True, help="surface.txt")
    parser.add_argument("--library", help="libtutti.so, to compare its exported names too")
    arguments = parser.parse_args()

    names = read_list(arguments.list)
    wanted = set(names) | {"p" + name for name in names if name.startswith("nccl")}
    have = declared(arguments.compiler, arguments.include)

    errors = [f"{name}: listed twice" for name in sorted(set(names)) if names.count(name) > 1]
    errors += [f"{name}: not declared" for name in sorted(wanted - set(have))]
    errors += [f"{name}: declared but not in the list" for name in sorted(set(have) - wanted)]
    errors += [
        f"{name}: its twin has another type: {have['p' + name]} instead of {have[name]}"
        for name in names
        if "p" + name in have and name in have and have["p" + name] != have[name]
    ]
    if arguments.library:
        symbols = exported(arguments.library)
        errors += [f"{name}: not exported" for name in sorted(wanted - symbols)]
        errors += [f"{name}: exported but not in the list" for name in sorted(symbols - wanted)]
    for error in errors:
        print(error)
    if not errors:
        print(f"{len(names)} functions, {len(wanted) - len(names)} twins: all as listed")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
