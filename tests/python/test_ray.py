"""The backend TUTTI of ray.util.collective, on actors of a Ray that this program starts."""

import tempfile
import unittest

import numpy as np
import ray
from ray.util import collective

import tutti.ray  # registers the backend in the driver

SIZE = 3


@ray.remote(num_cpus=0)
class Rank:
    def __init__(self, rank):
        import tutti.ray  # registers the backend in the actor
        self.rank = rank

    def init(self, group):
        collective.init_collective_group(SIZE, self.rank, backend="TUTTI", group_name=group)

    def destroy(self, group):
        collective.destroy_collective_group(group)

    def run(self, group, kind="numpy"):
        """Returns what each collective left on this rank, as lists."""
        def make(values):
            array = np.array(values, np.float32)
            if kind == "numpy":
                return array
            import torch
            return torch.from_numpy(array)
        mine = [self.rank + 1.0, 2.0]
        results = {}
        array = make(mine)
        collective.allreduce(array, group)
        results["allreduce"] = array.tolist()
        array = make(mine)
        collective.allreduce(array, group, collective.types.ReduceOp.MAX)
        results["max"] = array.tolist()
        array = make(mine)
        collective.reduce(array, 1, group)
        results["reduce"] = array.tolist()
        array = make(mine)
        collective.broadcast(array, 2, group)
        results["broadcast"] = array.tolist()
        rows = [make([0, 0]) for _ in range(SIZE)]
        collective.allgather(rows, make(mine), group)
        results["allgather"] = [row.tolist() for row in rows]
        array = make([0, 0])
        collective.reducescatter(array, [make([r, self.rank]) for r in range(SIZE)], group)
        results["reducescatter"] = array.tolist()
        array = make(mine)
        if self.rank == 0:
            collective.send(array, 1, group)
        elif self.rank == 1:
            collective.recv(array, 0, group)
        results["message"] = array.tolist()
        collective.barrier(group)
        return results

    def refused(self, group, kind):
        """Returns what wrong calls of this rank alone say."""
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(8))
            file.flush()
            locked = np.memmap(file.name, np.float32, mode="r")
        wrong = [lambda: collective.allgather([np.zeros(3)] * SIZE, np.zeros(2), group),
                 lambda: collective.reducescatter(np.zeros(2), [np.zeros(3)] * SIZE, group),
                 lambda: collective.allreduce(locked, group)]
        said = []
        for call in wrong:
            try:
                call()
            except kind as error:
                said.append(str(error))
        return said

    def sum_of(self, array, group):
        """Returns what is left in an array of Ray's object store, which NumPy calls read-only."""
        assert not array.flags.writeable
        collective.allreduce(array, group)
        return array.copy()

    def mixed(self, group):
        """Returns what is left where arrays of a call are NumPy's and PyTorch's."""
        import torch
        mine = np.array([self.rank, 2], np.float32)
        rows = [torch.zeros(2), np.zeros(2, np.float32), torch.zeros(2)]
        collective.allgather(rows, mine, group)
        summed = torch.zeros(2) if self.rank == 0 else np.zeros(2, np.float32)
        rows_of_kinds = [np.asarray(row) if self.rank == 1 else row for row in rows]
        collective.reducescatter(summed, rows_of_kinds, group)
        return [row.tolist() for row in rows], summed.tolist()


def expected(rank):
    total = SIZE * (SIZE + 1) / 2
    mine = [rank + 1.0, 2.0]
    return {"allreduce": [total, 2.0 * SIZE], "max": [SIZE, 2.0],
            "reduce": [total, 2.0 * SIZE] if rank == 1 else mine, "broadcast": [3.0, 2.0],
            "allgather": [[r + 1.0, 2.0] for r in range(SIZE)],
            "reducescatter": [float(rank * SIZE), SIZE * (SIZE - 1) / 2],
            "message": [1.0, 2.0] if rank == 1 else mine}


class Collectives(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
        cls.ranks = [Rank.remote(rank) for rank in range(SIZE)]

    @classmethod
    def tearDownClass(cls):
        ray.shutdown()

    def all(self, method, *arguments):
        return ray.get([getattr(rank, method).remote(*arguments) for rank in self.ranks])

    def test_groups_that_actors_make(self):
        for _ in range(2):  # The name can be used again.
            self.all("init", "one")
            self.assertEqual(self.all("run", "one"), [expected(rank) for rank in range(SIZE)])
            for kind in (ValueError, RuntimeError):
                said = self.all("refused", "one", kind)[0]
                self.assertEqual(len(said), 3, said)
                self.assertIn("shape and type", said[0])
                self.assertIn("shape and type", said[1])
                self.assertIn("pass a copy", said[2])
            self.all("destroy", "one")

    def test_groups_that_the_driver_declares(self):
        collective.create_collective_group(self.ranks, SIZE, list(range(SIZE)), backend="TUTTI",
                                           group_name="two")
        self.assertEqual(self.all("run", "two"), [expected(rank) for rank in range(SIZE)])

    def test_arrays_of_the_object_store(self):
        self.all("init", "stored")
        for count in (3, 100_000):  # The store shares the memory of long ones.
            given = [np.full(count, rank, np.float32) for rank in range(SIZE)]
            got = ray.get([rank.sum_of.remote(array, "stored")
                           for rank, array in zip(self.ranks, given)])
            for array in got:
                np.testing.assert_array_equal(array, np.full(count, sum(range(SIZE)), np.float32))

    def test_arrays_of_both_kinds(self):
        try:
            import torch  # noqa: F401
        except ImportError:
            self.skipTest("there is no PyTorch")
        self.all("init", "mixed")
        rows = [[float(rank), 2.0] for rank in range(SIZE)]
        self.assertEqual(self.all("mixed", "mixed"),
                         [(rows, [SIZE * rank, 2.0 * SIZE]) for rank in range(SIZE)])

    def test_tensors_of_torch(self):
        try:
            import torch  # noqa: F401
        except ImportError:
            self.skipTest("there is no PyTorch")
        self.all("init", "three")
        self.assertEqual(self.all("run", "three", "torch"), [expected(rank) for rank in range(SIZE)])


if __name__ == "__main__":
    unittest.main()
