# SPDX-License-Identifier: Apache-2.0
"""Training that survives a failed operation: state that is committed, restored and synchronised,
and a sampler that goes on where it was.

What is there: State, ObjectState, TorchState, ElasticSampler, and `run`, which restores and goes on
after a HorovodInternalError on a job whose ranks are all alive. What is not: ranks that leave or
come (no rendezvous for elastic jobs yet); `run` says so when a rank is gone.
"""

from __future__ import annotations

from tutti.torch.elastic.run import run
from tutti.torch.elastic.sampler import ElasticSampler
from tutti.torch.elastic.state import ObjectState, State, TorchState

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]
