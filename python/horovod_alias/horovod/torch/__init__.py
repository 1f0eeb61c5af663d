# SPDX-License-Identifier: Apache-2.0
"""tutti.torch, its parts included: horovod.torch.mpi_ops is tutti.torch.mpi_ops, and so on."""

import importlib
import sys

_target = importlib.import_module("tutti.torch")
for _name in ("compression", "functions", "mpi_ops", "optimizer", "sync_batch_norm", "elastic",
              "elastic.sampler", "elastic.state"):
    sys.modules[f"{__name__}.{_name}"] = importlib.import_module(f"tutti.torch.{_name}")
sys.modules[__name__] = _target
