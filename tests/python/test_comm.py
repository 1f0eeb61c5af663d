"""init(comm=...), on every rank of a job of four or more."""

import unittest

import numpy as np

import tutti
import tutti.numpy as hvd
from tutti import _launch


class ListOfRanks(unittest.TestCase):
    def tearDown(self):
        hvd.shutdown()

    def test_two_jobs_side_by_side(self):
        me = _launch.read().rank
        mine = [[0, 2], [3, 1]][me % 2] if me < 4 else [me]
        hvd.init(comm=mine)
        self.assertEqual((hvd.size(), hvd.rank()), (len(mine), mine.index(me)))
        self.assertEqual(hvd.allgather(np.array([me])).tolist(), mine)

    def test_refusals(self):
        me = _launch.read().rank
        with self.assertRaisesRegex(ValueError, f"rank {me} is not among"):
            hvd.init(comm=[(me + 1) % 4])
        for wrong in ([], [me, me], [me, 99]):
            with self.assertRaisesRegex(ValueError, "does not consist of"):
                hvd.init(comm=wrong)


class Mpi:
    """What is used of a communicator of mpi4py, over one of our own."""

    def __init__(self):
        launch = _launch.read()
        unique_id = tutti.Communicator.unique_id() if launch.rank == 0 else b""
        meeting = launch.meet(unique_id)
        self.comm = tutti.Communicator(launch.rank, launch.size, meeting.unique_id)
        self.machines = [f"machine {place.machine}" for place in meeting.places]

    def Get_rank(self):
        return self.comm.rank

    def Get_size(self):
        return self.comm.size

    def bcast(self, data, root):
        array = np.frombuffer(data, np.uint8).copy() if data else np.empty(128, np.uint8)
        return bytes(self.comm.broadcast(array, root))

    def allgather(self, machine):
        return self.machines


class Part:
    """What is used of a part of mpi4py's world: the ranks that share a color."""

    def __init__(self, world, color):
        self.comm = world.split(color)

    def __bool__(self):
        return self.comm is not None  # COMM_NULL

    def Get_rank(self):
        return self.comm.rank

    def allgather(self, number):
        return self.comm.allgather(np.array(number)).tolist()


class ProcessSetsOfMpi(unittest.TestCase):
    def tearDown(self):
        hvd.shutdown()

    def test_every_rank_brings_its_own(self):
        hvd.init()
        with tutti.Communicator.world() as world:
            mine = hvd.ProcessSet(Part(world, hvd.rank() % 2))
            self.assertEqual((mine.ranks, mine.size(), mine.included()), (None, None, None))
            hvd.init(process_sets=[mine])
            self.assertEqual(mine.ranks, list(range(hvd.rank() % 2, hvd.size(), 2)))
            total = hvd.allreduce(np.array([hvd.rank()]), op=hvd.Sum, process_set=mine)
            self.assertEqual(total[0], sum(mine.ranks))
            # Only some ranks are in one.
            some = hvd.ProcessSet(Part(world, 0 if hvd.rank() in (0, 1) else -1))
            hvd.add_process_set(some)
            self.assertEqual(some.ranks, [0, 1] if hvd.rank() < 2 else None)
            ids = hvd.allgather_object((mine.process_set_id, some.process_set_id))
            self.assertEqual(ids, [(r % 2 + 1, 3 if r < 2 else None) for r in range(hvd.size())])
            hvd.barrier()


class CommunicatorOfMpi(unittest.TestCase):
    def test_all_ranks(self):
        try:
            from mpi4py import MPI
            comm = MPI.COMM_WORLD
            if comm.Get_size() != _launch.read().size:
                comm = Mpi()  # not started by mpirun
        except (ImportError, RuntimeError):
            comm = Mpi()
        hvd.init(comm=comm)
        self.assertEqual(hvd.allgather(np.array([comm.Get_rank()])).tolist(),
                         list(range(comm.Get_size())))
        hvd.shutdown()


if __name__ == "__main__":
    unittest.main()
