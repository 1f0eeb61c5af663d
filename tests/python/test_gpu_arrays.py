"""tutti.Communicator on arrays in the memory of GPUs, on every rank of a job whose GPUs are the stand-ins of
tests/fakegpu: each rank is the GPU of its number. The arrays here have CUDA's array interface, as CuPy's do, and
nothing that NumPy could read."""

import ctypes
import sys
import types
import unittest

import numpy as np

import tutti
from tutti import _launch

driver = ctypes.CDLL("libcuda.so.1")


def cuda(name, *arguments):
    if getattr(driver, name)(*arguments) != 0:
        raise RuntimeError(f"{name} failed")


class Array:
    """An array on a GPU, written and read by copies."""

    def __init__(self, values, device=None):
        values = np.asarray(values)
        self.shape, self.dtype = values.shape, values.dtype
        self.bytes, self.number = values.nbytes, DEVICE if device is None else device
        self.memory = ctypes.c_uint64()
        self.strides, self.read_only = None, False
        cuda("cuMemAlloc_v2", ctypes.byref(self.memory), ctypes.c_size_t(max(self.bytes, 1)))
        source = np.ascontiguousarray(values)
        if self.bytes:
            cuda("cuMemcpyHtoD_v2", self.memory, ctypes.c_void_p(source.ctypes.data), ctypes.c_size_t(self.bytes))

    def __del__(self):
        driver.cuMemFree_v2(self.memory)

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.shape, "typestr": self.dtype.str, "version": 3, "strides": self.strides,
                "data": (self.memory.value, self.read_only), "stream": STREAM.value}

    def __dlpack_device__(self):
        return 2, self.number

    def __array_namespace__(self):
        return types.SimpleNamespace(empty=lambda shape, dtype: Array(np.full(shape, 77, dtype)),
                                     asarray=lambda values, dtype: Array(np.asarray(values, dtype)))

    def numpy(self):
        """Returns the values, once the stream has done what it holds."""
        cuda("cuStreamSynchronize", STREAM)
        values = np.empty(self.shape, self.dtype)
        if self.bytes:
            cuda("cuMemcpyDtoH_v2", ctypes.c_void_p(values.ctypes.data), self.memory, ctypes.c_size_t(self.bytes))
        return values

    def tolist(self):
        return self.numpy().tolist()


class WithoutLibrary(Array):
    """As Numba's: there is no namespace that could make another one."""
    __array_namespace__ = property()


def of_rank(rank, shape, dtype=np.float64):
    return (np.arange(np.prod(shape)).reshape(shape) % 7 + rank).astype(dtype)


class GpuArrays(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        global DEVICE, STREAM
        launch = _launch.read()
        DEVICE, STREAM = launch.rank, ctypes.c_void_p()
        context = ctypes.c_void_p()
        cuda("cuInit", 0)
        cuda("cuDevicePrimaryCtxRetain", ctypes.byref(context), DEVICE)
        cuda("cuCtxSetCurrent", context)
        cuda("cuStreamCreate", ctypes.byref(STREAM), 1)
        unique_id = tutti.Communicator.unique_id() if launch.rank == 0 else b""
        cls.comm = tutti.Communicator(launch.rank, launch.size, launch.meet(unique_id).unique_id, device=DEVICE)
        cls.rank, cls.size = launch.rank, launch.size

    @classmethod
    def tearDownClass(cls):
        cls.comm.destroy()

    def test_reductions(self):
        total = sum(of_rank(r, (self.size, 3)) for r in range(self.size))
        mine = Array(of_rank(self.rank, (self.size, 3)))
        np.testing.assert_array_equal(self.comm.allreduce(mine).numpy(), total)
        np.testing.assert_array_equal(self.comm.reducescatter(mine).numpy(), total[self.rank])
        self.assertIs(self.comm.allreduce(mine, "max", out=mine), mine)
        np.testing.assert_array_equal(mine.numpy(), of_rank(self.size - 1, (self.size, 3)))
        reduced = self.comm.reduce(Array(of_rank(self.rank, (5,), np.float16)), root=self.size - 1)
        self.assertEqual(reduced is None, self.rank != self.size - 1)
        complex_ones = Array(np.full(3, 1 + 2j, np.complex64))
        np.testing.assert_array_equal(self.comm.allreduce(complex_ones).numpy(), np.full(3, self.size * (1 + 2j)))

    def test_movement(self):
        np.testing.assert_array_equal(self.comm.allgather(Array(of_rank(self.rank, (4,), np.int16))).numpy(),
                                      [of_rank(r, (4,), np.int16) for r in range(self.size)])
        np.testing.assert_array_equal(self.comm.alltoall(Array(np.arange(self.size) * 10 + self.rank)).numpy(),
                                      [10 * self.rank + r for r in range(self.size)])
        array = Array(of_rank(self.rank, (4,)))
        self.comm.broadcast(array, self.size - 1)
        np.testing.assert_array_equal(array.numpy(), of_rank(self.size - 1, (4,)))
        gathered = self.comm.gather(Array(of_rank(self.rank, (2,))), root=0)
        if self.rank == 0:
            np.testing.assert_array_equal(gathered.numpy(), [of_rank(r, (2,)) for r in range(self.size)])
        whole = Array(np.arange(2.0 * self.size).reshape(self.size, 2)) if self.rank == 0 else None
        row = self.comm.scatter(whole, 0, None if self.rank == 0 else Array(np.zeros(2)))
        self.assertEqual(row.tolist(), [2.0 * self.rank, 2.0 * self.rank + 1])
        if self.rank == 0:
            self.comm.send(Array(np.arange(5.0)), 1)
        elif self.rank == 1:
            self.assertEqual(self.comm.receive(Array(np.zeros(5)), 0).tolist(), [0, 1, 2, 3, 4])

    def test_rows_that_differ(self):
        rows = self.comm.allgather_rows(Array(np.full((self.rank, 2), self.rank)))
        np.testing.assert_array_equal(rows.numpy(),
                                      np.concatenate([np.full((r, 2), r) for r in range(self.size)]))
        splits = [self.rank + i for i in range(self.size)]
        rows, received = self.comm.alltoall_rows(Array(np.full((sum(splits), 3), self.rank)), splits)
        self.assertEqual(received.tolist(), [r + self.rank for r in range(self.size)])
        self.assertEqual(rows.numpy()[:, 2].tolist(),
                         [r for r in range(self.size) for _ in range(r + self.rank)])
        total = sum(of_rank(r, (self.size + 1, 2)) for r in range(self.size))
        begin = self.rank + min(self.rank, 1)
        np.testing.assert_array_equal(
            self.comm.reducescatter_rows(Array(of_rank(self.rank, (self.size + 1, 2)))).numpy(),
            total[begin:begin + 1 + (self.rank == 0)])

    def test_groups_and_barrier(self):
        with self.comm.split(self.rank % 2, -self.rank) as child:
            members = (self.size + 1 - self.rank % 2) // 2
            self.assertEqual(child.allreduce(Array(np.ones(1))).tolist(), [members])
        self.comm.barrier()

    def test_what_is_refused(self):
        mine = Array(np.ones((2, 2)))
        for wrong, sentence in ((np.ones(2), "lacks CUDA's array interface"),
                                (Array(np.ones(2), self.rank + 1), f"lies on device {self.rank + 1}, but this rank"),
                                (Array(np.array([b"x"])), "cannot be sent")):
            with self.assertRaisesRegex(ValueError, sentence):
                self.comm.allreduce(wrong)
        mine.strides = (8, 16)
        with self.assertRaisesRegex(ValueError, "must be contiguous"):
            self.comm.allreduce(mine)
        mine.strides, mine.read_only = (16, 8), True
        with self.assertRaisesRegex(ValueError, "read-only"):
            self.comm.broadcast(mine)
        with self.assertRaisesRegex(ValueError, "has no `empty`.*give `out`"):
            self.comm.allreduce(WithoutLibrary(np.ones(2)))
        with self.assertRaisesRegex(ValueError, "device is -2"):
            tutti.Communicator(0, 1, tutti.Communicator.unique_id(), device=-2)
        torch = sys.modules.get("torch")
        if torch is not None:
            with self.assertRaisesRegex(ValueError, "lies on the host, but this rank is device"):
                self.comm.allreduce(torch.ones(2))


if __name__ == "__main__":
    unittest.main()
