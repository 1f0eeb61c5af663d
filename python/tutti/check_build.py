# SPDX-License-Identifier: Apache-2.0
"""python3 -m tutti.check_build prints what can be used here, as horovodrun --check-build does."""

from __future__ import annotations

import importlib.util
from typing import Dict, Tuple

from tutti import _features, _library


def report() -> str:
    """Returns a line for each part, and why NVIDIA's NCCL cannot be used where it cannot."""
    try:
        version, path = _features.find_nccl()
        nccl, why = True, f"{version // 10000}.{version // 100 % 100}.{version % 100}, {path}"
    except ValueError as error:
        nccl, why = False, str(error)
    parts: Dict[str, Dict[str, Tuple[bool, str]]] = {
        "Frameworks": {"PyTorch": (importlib.util.find_spec("torch") is not None, ""),
                       "TensorFlow": (importlib.util.find_spec("tensorflow") is not None, ""),
                       "NumPy": (importlib.util.find_spec("numpy") is not None, "")},
        "Controllers": {"Tutti": (True, ""), "MPI": (_features.mpi_built(), ""),
                        "Gloo": (_features.gloo_built(), ""), "oneCCL": (_features.has_ccl(), "")},
        "Operations on tensors of the host": {
            "Tutti": (True, ""), "MPI": (_features.mpi_built(), ""),
            "Gloo": (_features.gloo_built(), ""), "oneCCL": (_features.has_ccl(), ""),
            "DDL": (_features.ddl_built(), "IBM ended it; there is no library of it to be had")},
        "Operations on tensors of GPUs": {
            "Tutti": (_features.cuda_built(), "" if _features.cuda_built() else "there is no driver of CUDA"),
            "NCCL": (nccl, why)},
    }
    lines = [f"libtutti: {_library.load()._name}"]
    for title, found in parts.items():
        lines.append(f"{title}:")
        for name, (there, note) in found.items():
            lines.append(f"    [{'X' if there else ' '}] {name}" + (f" ({note})" if note else ""))
    return "\n".join(lines)


if __name__ == "__main__":
    print(report())
