"""No file of the package imports, at its top or later, one that imports it; and lists of the package are those of the
library."""

import ast
import os
import re
import subprocess
import sys
import unittest

import tutti

FOLDER = os.path.dirname(tutti.__file__)
SECRET_CC = os.path.join(os.path.dirname(__file__), os.pardir, os.pardir, "src", "config", "secret.cc")


def modules():
    """Path by name of every module of the package."""
    found = {}
    for folder, _, files in os.walk(FOLDER):
        for file in files:
            if file.endswith(".py"):
                path = os.path.join(folder, file)
                name = os.path.relpath(path, os.path.dirname(FOLDER))[:-3].replace(os.sep, ".")
                found[name[:-9] if name.endswith(".__init__") else name] = path
    return found


def imported(path, names):
    """The modules among `names` that the file imports anywhere; not the packages that they are in."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in inner if name in names)
            if node.module in names and not all(name in names for name in inner):
                yield node.module


class Lists(unittest.TestCase):
    def test_the_compiler_gets_none_of_the_librarys_variables_with_secrets(self):
        with open(SECRET_CC, encoding="utf-8") as file:
            text = file.read()
        constants = dict(re.findall(r'constexpr const char\* (k\w+) = "(\w+)";', text))
        words = re.search(r"kVariables\[\] = \{(.*?)\}", text, re.DOTALL)[1].replace(" ", "").split(",")
        with open(os.path.join(FOLDER, "_torch_compile.py"), encoding="utf-8") as file:
            values = [ast.literal_eval(node.value) for node in ast.parse(file.read()).body
                      if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_SECRETS"]
        self.assertEqual(values, [tuple(constants.get(word, word.strip('"')) for word in words)])


class Imports(unittest.TestCase):
    def test_the_package_imports_nothing_that_takes_long(self):
        code = "import sys; before = set(sys.modules); import tutti; print(*set(sys.modules) - before)"
        ran = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
        loaded = set(ran.stdout.split())
        self.assertIn("tutti._library", loaded)
        self.assertEqual(loaded & {"http.client", "ssl", "email.parser", "torch", "numpy", "asyncio", "multiprocessing"}, set())

    def test_there_is_no_circle(self):
        found = modules()
        graph = {name: sorted(set(imported(path, found)) - {name}) for name, path in found.items()}
        self.assertIn("tutti._library", graph["tutti._launch"])
        done, under_way = set(), []

        def visit(name):
            self.assertNotIn(name, under_way, " imports ".join((*under_way, name)))
            if name in done:
                return
            under_way.append(name)
            for other in graph[name]:
                visit(other)
            under_way.pop()
            done.add(name)
        for name in graph:
            visit(name)


if __name__ == "__main__":
    unittest.main()
