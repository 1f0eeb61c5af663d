#!/usr/bin/env python3
"""Takes the first steps of docs/device_api.md as they are written there.

Compiles the kernel, runs it, steps through it with the page's own commands for gdb, and breaks it in a checked build.
Prints what was found, and ends with 1 where something else came than the page says. Steps that need gdb are left out
with a sentence where there is none, or where it may not trace.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

LIMIT_S = 60


class Steps:
    def __init__(self, arguments, folder):
        self.arguments = arguments
        self.folder = folder
        self.wrong = []
        with open(arguments.page, encoding="utf-8") as file:
            self.page = file.read()
        self.kernel = re.search(r"```c\+\+\n(.*?)```", self.page, re.DOTALL)[1]

    def run(self, command, **more):
        return subprocess.run(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=LIMIT_S, check=False, **more)

    def expect(self, what, condition, shown):
        print(f"{'right' if condition else 'WRONG'}: {what}")
        if not condition:
            self.wrong.append(what)
            print(shown)

    def build(self, name, source):
        """Compiles a program; returns its path, or None where that failed."""
        with open(os.path.join(self.folder, name + ".cc"), "w", encoding="utf-8") as file:
            file.write(source)
        built = self.run([self.arguments.compiler, "-std=c++17", "-g", name + ".cc", "-I", self.arguments.include,
                          "-L", self.arguments.library, "-ltutti", f"-Wl,-rpath,{self.arguments.library}", "-pthread",
                          "-o", name])
        self.expect(f"{name} compiles", built.returncode == 0, built.stdout)
        return os.path.join(self.folder, name) if built.returncode == 0 else None

    def greet(self):
        """Steps 1 and 2. Returns the program."""
        program = self.build("hello", self.kernel)
        if program:
            ran = self.run([program])
            lines = sorted(ran.stdout.splitlines())
            self.expect("both ranks print", ran.returncode == 0 and
                        lines == ["rank 0 got 101", "rank 1 got 100"], ran.stdout)
        return program

    def debug(self, program):
        """Step 3, by the page's commands."""
        if not shutil.which("gdb"):
            print("left out: there is no gdb here")
            return
        commands = [line.strip()[len("(gdb) "):] for line in self.page.splitlines() if line.startswith("    (gdb) ")]
        words = ["gdb", "-batch", "-nx", "-iex", "set debuginfod enabled off"]
        for command in commands:
            words += ["-ex", command]
        ran = self.run(words + [program])
        if "ptrace" in ran.stdout:
            print("left out: gdb may not trace here")
            return
        values = re.findall(r"^\$\d+ = (.*)$", ran.stdout, re.MULTILINE)
        self.expect("gdb shows the thread and what it has written and read",
                    values == ["{x = 0, y = 0, z = 0}", "100", "101"], ran.stdout)
        self.expect("the program goes on to its end", "exited normally" in ran.stdout, ran.stdout)

    def check(self):
        """Step 5, and what else a checked build refuses."""
        define = "#define TUTTI_CHECKED_KERNELS 1\n"
        site = "ncclGetLsaPointer(window, 0, next)"
        barrier = "ncclTeamTagLsa(), blockIdx.x)"
        sentence = re.search(r"^    (tutti: rank 0, .*)$", self.page, re.MULTILINE)[1]
        # Any thread of either rank may be the first.
        at_page = re.sub(r"(rank|thread)\\ \d", r"\1 \\d", re.escape(sentence).replace("0x…", "0x[0-9a-f]+"))
        for name, old, new, pattern in (
                ("checked_offset", site, "ncclGetLsaPointer(window, 4096, next)", at_page),
                ("checked_rank", site, "ncclGetLsaPointer(window, 0, 7)",
                 r"0 bytes at 0 of LSA rank 7 of the window 0x[0-9a-f]+: the LSA team has no such rank"),
                ("checked_window", site, "ncclGetLsaPointer(nullptr, 0, next)",
                 r"tutti: block 0, thread \d: Greet, line 11: .* there is no window"),
                ("checked_barrier", barrier, "ncclTeamTagLsa(), 1)",
                 r"tutti: block 0, thread \d: there is no LSA barrier 1: the requirements have 1"),
        ):
            program = self.build(name, define + self.kernel.replace(old, new))
            if program:
                ran = self.run([program], preexec_fn=no_core)
                self.expect(f"{name} is refused by a sentence",
                            ran.returncode < 0 and re.search(pattern, ran.stdout), ran.stdout + pattern)
        program = self.build("checked_right", define + self.kernel)
        if program:
            ran = self.run([program])
            self.expect("a checked build of what is right runs", ran.returncode == 0, ran.stdout)


def no_core():
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", required=True, help="docs/device_api.md")
    parser.add_argument("--compiler", default="c++")
    parser.add_argument("--include", required=True, help="folder that holds nccl.h")
    parser.add_argument("--library", required=True, help="folder that holds libtutti.so")
    arguments = parser.parse_args()
    arguments.include = os.path.abspath(arguments.include)
    arguments.library = os.path.abspath(arguments.library)
    os.environ["TUTTI_BACKEND"] = "host"
    with tempfile.TemporaryDirectory() as folder:
        steps = Steps(arguments, folder)
        program = steps.greet()
        if program:
            steps.debug(program)
        steps.check()
    return 1 if steps.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
