#!/usr/bin/env python3
"""Checks that the table of docs/device_api.md says of every name of the device API what works where.

A name is one that a header of include/nccl_device has (not those of its folders impl and host, nor what is nccl.h's).
The table has it between backquotes, or a name with "…" in the place of any letters, or the name of its type without or with "_t". Names
of the table must exist, too. Prints what is wrong, one line each, and exits with 1.
"""

import argparse
import glob
import os
import re
import sys

NAME = r"nccl[A-Z]\w*"


def names_of(include, *patterns):
    """Returns the names that headers have outside of comments."""
    names = set()
    for pattern in patterns:
        for path in glob.glob(os.path.join(include, pattern)):
            with open(path, encoding="utf-8") as file:
                names |= set(re.findall(rf"\b{NAME}", re.sub(r"//.*", "", file.read())))
    return names


def in_table(page):
    """Returns the names and the patterns of the table."""
    with open(page, encoding="utf-8") as file:
        section = re.search(r"^## What works where$(.*?)^## ", file.read(), re.MULTILINE | re.DOTALL)[1]
    cells = "\n".join(line.split(" | ")[0] for line in section.splitlines() if line.startswith("|"))
    quoted = " ".join(re.findall(r"`([^`]*)`", cells))
    words = set(re.findall(r"nccl[A-Z][\w…]*", quoted))
    return {word for word in words if "…" not in word}, {word for word in words if "…" in word}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--include", required=True, help="folder that holds nccl_device.h")
    parser.add_argument("--page", required=True, help="docs/device_api.md")
    arguments = parser.parse_args()

    of_nccl_h = {"ncclComm_t", "ncclResult_t", "ncclSuccess", "ncclWindow_t"}
    names = names_of(arguments.include, "nccl_device.h", "nccl_device/*.h") - of_nccl_h
    known = names | names_of(arguments.include, "nccl_device/impl/*.h")
    listed, patterns = in_table(arguments.page)
    expressions = {pattern: re.compile(pattern.replace("…", r"\w*")) for pattern in patterns}
    errors = []
    for name in sorted(names):
        alike = {name, name + "_t", name.removesuffix("_t")}
        if not alike & listed and not any(e.fullmatch(name) for e in expressions.values()):
            errors.append(f"{name}: is declared, and not in the table")
    for name in sorted(listed - known):
        errors.append(f"{name}: is in the table, and declared nowhere")
    for pattern, expression in sorted(expressions.items()):
        if not any(expression.fullmatch(name) for name in known):
            errors.append(f"{pattern}: is in the table, and stands for no name")
    for error in errors:
        print(error)
    if not errors:
        print(f"{len(names)} names: all in the table")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
