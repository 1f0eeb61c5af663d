"""NumPy alone: what runs where PyTorch cannot be imported, on every rank of a job of any size.

The suites of NumPy run once more, with an import system that has no torch.
"""

import importlib.abc
import sys
import unittest


class NoTorch(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}, as this test wants it", name=name)
        return None


assert "torch" not in sys.modules, "torch was imported before it could be hidden"
sys.meta_path.insert(0, NoTorch())

import numpy as np  # noqa: E402

import tutti  # noqa: E402
import tutti.elastic  # noqa: E402
import tutti.numpy as hvd  # noqa: E402
from test_numpy import *  # noqa: E402, F401, F403


class Alone(unittest.TestCase):
    def test_torch_is_hidden(self):
        with self.assertRaises(ImportError):
            import torch  # noqa: F401
        with self.assertRaises(ImportError):
            import tutti.torch  # noqa: F401
        from horovod.common.util import gpu_available
        self.assertFalse(gpu_available("tensorflow"))

    def test_an_elastic_loop(self):
        state = tutti.elastic.ObjectState(step=0, weights=np.zeros(2))

        @tutti.elastic.run
        def train(state):
            while state.step < 4:
                state.weights += hvd.allreduce(np.ones(2))
                state.step += 1
                state.commit()
                if state.step == 2 and not resets:
                    state.weights[:] = 99  # lost
                    raise hvd.HorovodInternalError("as if")
            return state.weights.tolist()
        resets = []
        state.register_reset_callbacks([lambda: resets.append(state.step)])
        self.assertEqual((train(state), resets), ([4.0, 4.0], [2]))
        self.assertNotIn("torch", sys.modules)


if __name__ == "__main__":
    unittest.main()
