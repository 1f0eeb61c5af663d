# SPDX-License-Identifier: Apache-2.0
"""Jobs that go on while ranks fail, leave and come, for plain objects and NumPy arrays.

    state = tutti.elastic.ObjectState(weights=weights, step=0)

    @tutti.elastic.run
    def train(state):
        while state.step < 1000:
            state.weights -= 0.1 * hvd.allreduce(gradient(state.weights))
            state.step += 1
            state.commit()

    train(state)

`tutti run --min-np 2 --max-np 8 python3 train.py` starts it; docs/elastic.md says what happens when.
For PyTorch: tutti.torch.elastic, which has the same and more.
"""

from __future__ import annotations

from tutti.elastic.run import run
from tutti.elastic.state import ObjectState, State

__all__ = ["ObjectState", "State", "run"]
