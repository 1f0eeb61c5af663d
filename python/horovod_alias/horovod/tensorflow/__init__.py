# SPDX-License-Identifier: Apache-2.0
"""tutti.tensorflow, its parts included: horovod.tensorflow.mpi_ops is tutti.tensorflow.mpi_ops, and
so on; also keras, where Keras 3 is installed."""

import importlib
import importlib.util
import sys

_target = importlib.import_module("tutti.tensorflow")
_names = ["compression", "functions", "mpi_ops"]
if importlib.util.find_spec("keras"):
    _names += ["keras", "keras.callbacks"]
for _name in _names:
    sys.modules[f"{__name__}.{_name}"] = importlib.import_module(f"tutti.tensorflow.{_name}")
sys.modules[__name__] = _target
