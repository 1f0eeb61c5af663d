"""Runs one file of tests on every rank of a job: python3 ranks.py test_numpy (under `tutti run`).

A rank that fails stops at once, so that the others end with an error instead of waiting for it.
Status 77, with a word, where a package that the tests need is not there.
"""

import importlib
import sys
import unittest

SKIPPED = 77


def main() -> int:
    needed = {"test_torch": ("numpy", "torch"), "test_torch_training": ("numpy", "torch")}
    for module in needed.get(sys.argv[1], ("numpy",)):
        try:
            importlib.import_module(module)
        except ImportError as error:
            print(f"skipped: {error}; the Debian package python3-{module} has it, or name another "
                  "Python with cmake -DTUTTI_PYTHON=")
            return SKIPPED
    suite = unittest.defaultTestLoader.loadTestsFromName(sys.argv[1])
    if suite.countTestCases() == 0:
        print(f"there are no tests in {sys.argv[1]}")
        return 1
    result = unittest.TextTestRunner(failfast=True, verbosity=1).run(suite)
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
