"""Skips a test whose Python package is not there: python3 needs.py MODULE PROGRAM ARGUMENTS..."""

import importlib
import runpy
import sys

SKIPPED = 77  # what CMakeLists.txt calls a test that did not run


def module(name: str) -> None:
    """Ends the process, with a word, where the module cannot be imported."""
    try:
        importlib.import_module(name)
    except ImportError as error:
        variable = "TUTTI_TENSORFLOW_PYTHON" if name == "tensorflow" else "TUTTI_PYTHON"
        print(f"skipped: {error}; Debian has many packages as python3-NAME, and cmake -D{variable}= "
              "names another Python")
        sys.exit(SKIPPED)


if __name__ == "__main__":
    module(sys.argv[1])
    del sys.argv[:2]
    runpy.run_path(sys.argv[0], run_name="__main__")
