"""Runs one file of tests on every rank of a job: python3 ranks.py test_numpy (under `tutti run`).

A rank that fails stops at once, so that the others end with an error instead of waiting for it.
Skips where a package that the tests need is not there.
"""

import sys
import unittest

import needs


def main() -> int:
    needs.module(next((name for name in ("torch", "tensorflow") if name in sys.argv[1]), "numpy"))
    suite = unittest.defaultTestLoader.loadTestsFromName(sys.argv[1])
    if suite.countTestCases() == 0:
        print(f"there are no tests in {sys.argv[1]}")
        return 1
    result = unittest.TextTestRunner(failfast=True, verbosity=1).run(suite)
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
