# SPDX-License-Identifier: Apache-2.0
"""Training that goes on while ranks fail, leave and come: states that are committed, restored and
synchronised, and a sampler that continues where it was.

    state = elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=0)

    @elastic.run
    def train(state):
        ...
        state.sampler.record_batch(i, batch_size)
        state.commit()

`tutti run --min-np 2 --max-np 8 python3 train.py` starts it; docs/elastic.md says what happens
when. """

from __future__ import annotations

from tutti.elastic import State, run
from tutti.torch.elastic.handlers import get_handler_registry, set_handler_registry
from tutti.torch.elastic.sampler import ElasticSampler
from tutti.torch.elastic.state import ObjectState, TorchState

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState",
           "get_handler_registry", "run", "set_handler_registry"]
