"""tutti.numpy, on every rank of a job of any size."""

import json
import os
import signal
import tempfile
import threading
import types
import unittest

import numpy as np

import checks
import tutti
import tutti.numpy as hvd

FLOATS = (np.float16, np.float32, np.float64)
INTEGERS = (np.uint8, np.int8, np.uint16, np.int16, np.int32, np.int64, np.uint32, np.uint64)


def setUpModule():
    hvd.init()


def tearDownModule():
    hvd.shutdown()


def of_rank(rank, shape, dtype=np.float32):
    """What `rank` brings: different on every rank and in every element."""
    count = int(np.prod(shape))
    return (np.arange(count) % 7 + rank + 1).reshape(shape).astype(dtype)


class Basics(unittest.TestCase):
    def test_places(self):
        rank, size = hvd.rank(), hvd.size()
        self.assertEqual(hvd.allgather(np.array([rank])).tolist(), list(range(size)))
        self.assertEqual((hvd.local_rank(), hvd.local_size()), (rank, size))
        self.assertEqual((hvd.cross_rank(), hvd.cross_size()), (0, 1))
        self.assertTrue(hvd.is_homogeneous())
        self.assertGreater(hvd.nccl_built(), 20000)

    def test_controllers(self):
        self.assertNotEqual(hvd.mpi_enabled(), hvd.gloo_enabled())  # one of them, as with Horovod
        self.assertEqual(hvd.mpi_threads_supported(), hvd.mpi_built())

    def test_second_init_changes_nothing(self):
        hvd.init()
        self.assertTrue(hvd.is_initialized())

    def test_init_and_shutdown_alternate(self):
        for round_number in range(5):
            hvd.shutdown()
            self.assertFalse(hvd.is_initialized())
            for call in (hvd.rank, hvd.mpi_threads_supported):
                with self.assertRaisesRegex(ValueError, "has not been initialized; use hvd.init"):
                    call()
            hvd.init()
            total = hvd.allreduce(np.array([round_number]), op=hvd.Sum)
            self.assertEqual(total[0], round_number * hvd.size())

    def test_shutdown_does_not_wait_for_children(self):
        end, held = os.pipe()
        child = os.fork()
        if child == 0:  # as a DataLoader's worker, which lives on
            try:
                os.close(held)
                os.read(end, 1)
            finally:
                os._exit(0)
        os.close(end)
        hvd.shutdown()
        os.close(held)
        os.waitpid(child, 0)
        hvd.init()
        self.assertEqual(hvd.allreduce(np.ones(1), op=hvd.Sum)[0], hvd.size())

    def test_children_keep_their_signals(self):
        child = os.fork()
        if child == 0:
            os._exit(signal.set_wakeup_fd(-1) + 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_shutdown_on_another_thread(self):
        thread = threading.Thread(target=hvd.shutdown)
        thread.start()
        thread.join()
        descriptor = signal.set_wakeup_fd(-1)
        if descriptor != -1:  # it may stay for the next job, and then it is open
            os.fstat(descriptor)
            signal.set_wakeup_fd(descriptor)
        hvd.shutdown()
        self.assertEqual(signal.set_wakeup_fd(-1), -1)
        hvd.init()


class Reductions(unittest.TestCase):
    def test_every_type_and_operator(self):
        oracles = {hvd.Sum: np.add, hvd.Min: np.minimum, hvd.Max: np.maximum,
                   hvd.Product: np.multiply}
        for dtype in FLOATS + INTEGERS:
            parts = [of_rank(r, (3, 5), dtype) % dtype(4) for r in range(hvd.size())]
            for op, oracle in oracles.items():
                expected = parts[0]
                for part in parts[1:]:
                    expected = oracle(expected, part)
                got = hvd.allreduce(parts[hvd.rank()], op=op, name=f"{dtype.__name__}.{op}")
                self.assertEqual(got.dtype, dtype)
                np.testing.assert_array_equal(got, expected.astype(dtype))

    def test_average_of_floats_and_integers(self):
        size = hvd.size()
        mean = hvd.allreduce(of_rank(hvd.rank(), (4,), np.float64))
        np.testing.assert_allclose(mean, of_rank(0, (4,)) + (size - 1) / 2)
        values = np.array([-1 if hvd.rank() == 0 else 0], np.int32)
        # It is rounded toward zero, not down.
        self.assertEqual(hvd.allreduce(values)[0], -1 if size == 1 else 0)

    def test_bool(self):
        mine = np.array([hvd.rank() == 0, False, True])
        self.assertEqual(hvd.allreduce(mine, op=hvd.Sum).tolist(), [True, False, True])

    def test_scale_factors_and_compression(self):
        got = hvd.allreduce(np.ones(3, np.float32), op=hvd.Sum, prescale_factor=0.5,
                            postscale_factor=4, compression=hvd.Compression.fp16)
        np.testing.assert_array_equal(got, np.full(3, 2.0 * hvd.size(), np.float32))

    def test_in_place_and_scalars_and_empty(self):
        array = of_rank(hvd.rank(), (6,))
        self.assertIs(hvd.allreduce_(array, op=hvd.Sum), array)
        np.testing.assert_array_equal(array, sum(of_rank(r, (6,)) for r in range(hvd.size())))
        self.assertEqual(hvd.allreduce(2.5, op=hvd.Sum).shape, ())
        self.assertEqual(hvd.allreduce(np.empty((0, 3), np.float32)).shape, (0, 3))

    def test_groups_and_order(self):
        handles = {}
        # Asked for in another order on every rank.
        for i in np.roll(np.arange(20), hvd.rank()):
            handles[i] = hvd.allreduce_async(np.full(i + 1, float(i)), name=f"t{i}", op=hvd.Sum)
        for i, handle in handles.items():
            np.testing.assert_array_equal(hvd.synchronize(handle),
                                          np.full(i + 1, float(i * hvd.size())))
        group = hvd.grouped_allreduce([np.ones(2), np.full(3, 2.0)], op=hvd.Sum)
        self.assertEqual([a.tolist() for a in group],
                         [[hvd.size()] * 2, [2.0 * hvd.size()] * 3])

    def test_strided_input(self):
        array = of_rank(hvd.rank(), (4, 6))[:, ::2]
        expected = sum(of_rank(r, (4, 6))[:, ::2] for r in range(hvd.size()))
        np.testing.assert_array_equal(hvd.allreduce(array, op=hvd.Sum), expected)
        with self.assertRaisesRegex(ValueError, "contiguous"):
            hvd.allreduce_(array)


class Moves(unittest.TestCase):
    def test_allgather_of_uneven_rows(self):
        for dtype in FLOATS + INTEGERS + (np.bool_,):
            mine = np.full((hvd.rank() + 1, 2), hvd.rank(), dtype)
            got = hvd.allgather(mine)
            expected = np.concatenate([np.full((r + 1, 2), r, dtype) for r in range(hvd.size())])
            np.testing.assert_array_equal(got, expected)
        first, second = hvd.grouped_allgather([np.array([hvd.rank()]), np.empty((0, 2))])
        self.assertEqual(first.tolist(), list(range(hvd.size())))
        self.assertEqual(second.shape, (0, 2))

    def test_broadcast_from_every_root(self):
        for root in range(hvd.size()):
            got = hvd.broadcast(of_rank(hvd.rank(), (3, 2)), root)
            np.testing.assert_array_equal(got, of_rank(root, (3, 2)))
        array = of_rank(hvd.rank(), (5,))
        self.assertIs(hvd.broadcast_(array, hvd.size() - 1), array)
        np.testing.assert_array_equal(array, of_rank(hvd.size() - 1, (5,)))

    def test_alltoall(self):
        rank, size = hvd.rank(), hvd.size()
        even = hvd.alltoall(np.arange(2 * size) + 100 * rank)
        self.assertEqual(even.tolist(), [100 * r + 2 * rank + i for r in range(size)
                                         for i in range(2)])
        # Rank r sends r + i rows to rank i.
        splits = [rank + i for i in range(size)]
        rows, received = hvd.alltoall(np.full((sum(splits), 2), rank), splits)
        self.assertEqual(received.tolist(), [r + rank for r in range(size)])
        self.assertEqual(rows[:, 1].tolist(), [r for r in range(size) for _ in range(r + rank)])
        # One row more than is sent.
        rows, received = hvd.alltoall(np.arange(size + 1), [1] * size)
        self.assertEqual((rows.tolist(), received.tolist()), ([rank] * size, [1] * size))
        with self.assertRaisesRegex(ValueError, "add up to"):
            hvd.alltoall(np.arange(5), [9] * size)

    def test_reducescatter_of_uneven_rows(self):
        rank, size = hvd.rank(), hvd.size()
        rows = 2 * size + 1
        got = hvd.reducescatter(of_rank(rank, (rows, 3)), op=hvd.Sum)
        total = sum(of_rank(r, (rows, 3)) for r in range(size))
        begin = 2 * rank + min(rank, 1)
        np.testing.assert_array_equal(got, total[begin:begin + 2 + (rank == 0)])

    def test_objects(self):
        mine = {"rank": hvd.rank(), "text": "x" * 1000 * hvd.rank()}
        self.assertEqual([o["rank"] for o in hvd.allgather_object(mine)], list(range(hvd.size())))
        last = hvd.size() - 1
        self.assertEqual(len(hvd.broadcast_object(mine, last)["text"]), 1000 * last)

    def test_objects_that_pickle_cannot(self):
        checks.objects(self, hvd)


class Rules(unittest.TestCase):
    def test_mismatch_is_one_sentence_and_the_job_lives_on(self):
        if hvd.size() == 1:
            self.skipTest("one rank agrees with itself")
        with self.assertRaises(hvd.HorovodInternalError) as caught:
            hvd.allreduce(np.zeros(3 + (hvd.rank() == 0)), name="odd")
        self.assertIn("allreduce.odd", str(caught.exception))
        self.assertIn("(4) on rank 0", str(caught.exception))
        self.assertEqual(len(set(hvd.allgather_object(str(caught.exception)))), 1)

    def test_groups_of_different_length_are_found_out(self):
        def grouped(count):
            return hvd.grouped_allreduce([np.ones(3)] * count, name="group", op=hvd.Sum)
        for count in (2, 3, 2):  # the same on all ranks, which is right
            self.assertEqual([part[0] for part in grouped(count)], [hvd.size()] * count)
        if hvd.size() == 1:
            return
        for _ in range(2):
            with self.assertRaisesRegex(hvd.HorovodInternalError, "of 2 on rank 0.* of 3 on rank"):
                grouped(2 if hvd.rank() == 0 else 3)
        self.assertEqual(len(grouped(3)), 3)

    def test_a_name_that_is_pending(self):
        if hvd.size() == 1:
            self.skipTest("alone, a tensor may be done at once")
        if hvd.rank() == 0:
            handle = hvd.allreduce_async(np.zeros(2), name="twice")
            self.assertFalse(hvd.poll(handle))  # the others ask only after the broadcast
            with self.assertRaisesRegex(ValueError, "twice"):
                hvd.allreduce_async(np.zeros(2), name="twice")
        hvd.broadcast(np.zeros(1), 0, name="go on")
        if hvd.rank() != 0:
            handle = hvd.allreduce_async(np.zeros(2), name="twice")
        hvd.synchronize(handle)

    def test_handles(self):
        handle = hvd.allreduce_async(np.zeros(2))
        self.assertEqual(hvd.synchronize(handle).shape, (2,))
        self.assertIsNone(hvd.synchronize(handle))  # as with Horovod
        with self.assertRaisesRegex(ValueError, "there is no handle"):
            hvd.poll(handle)
        for use in (hvd.poll, hvd.synchronize):
            for unknown in (handle + 1, -1, "text", None):
                with self.assertRaisesRegex(ValueError, "there is no handle"):
                    use(unknown)

    def test_bad_arguments(self):
        for sentence, call in (
                ("the root is rank", lambda x: hvd.broadcast(x, hvd.size())),
                ("root_rank must be a whole number, not 0.7", lambda x: hvd.broadcast(x, 0.7)),
                ("no reduction operator 77", lambda x: hvd.allreduce(x, op=77)),
                ("arrays of <U4", lambda x: hvd.allreduce(np.array(["text"]))),
                ("arrays of >f4", lambda x: hvd.allreduce(np.zeros(2, ">f4"))),
                ("process_set=None", lambda x: hvd.allreduce(x, process_set=None)),
                ("process_set=None", lambda x: hvd.barrier(None)),
                ("splits must be", lambda x: hvd.alltoall(x, "ab")),
                ("compression='fp16'", lambda x: hvd.allreduce(x, compression="fp16")),
                ("a name must be a string, not 5", lambda x: hvd.allgather(x, name=5)),
                ("postscale_factor", lambda x: hvd.allreduce(x, postscale_factor="x"))):
            with self.assertRaisesRegex(ValueError, sentence):
                call(np.zeros(2))
        for call in (lambda: hvd.allreduce(np.zeros(2), name="a\0b"),
                     lambda: hvd.grouped_allgather([np.zeros(2)], name="a\0b")):
            with self.assertRaisesRegex(ValueError, "zero character"):
                call()

    def test_a_name_in_different_process_sets(self):
        if hvd.size() < 2:
            self.skipTest("there is one set of one rank")
        pair = hvd.add_process_set([0, 1])
        where = pair if hvd.rank() == 1 else hvd.global_process_set
        with self.assertRaisesRegex(hvd.HorovodInternalError,
                                    'the process set of "allreduce.crossed": process set 0 of '):
            hvd.allreduce(np.ones(2), name="crossed", process_set=where)
        self.assertEqual(hvd.allreduce(np.ones(1), name="crossed", op=hvd.Sum)[0], hvd.size())
        hvd.remove_process_set(pair)

    def test_arrays_of_others(self):
        class Array:
            """As CuPy and JAX hand theirs over."""
            def __init__(self, values, kind):
                self.values, self.kind = np.array(values, np.float32), kind

            def __dlpack_device__(self):
                return self.kind, 0

            def __dlpack__(self, stream=None):
                return self.values.__dlpack__()

        cpu, cuda = 1, 2
        self.assertEqual(hvd.allreduce(Array([1, 2], cpu), op=hvd.Sum).tolist(),
                         [hvd.size(), 2 * hvd.size()])
        self.assertEqual(hvd.broadcast(Array([3], cpu), 0).tolist(), [3])
        for call in (hvd.allreduce, hvd.allgather, lambda array: hvd.broadcast(array, 0)):
            with self.assertRaisesRegex(ValueError, "Array lies on a CUDA GPU, number 0, .*"
                                                    "cupy.asnumpy.*torch.from_dlpack"):
                call(Array([1], cuda))

        class Old:
            __cuda_array_interface__ = {"shape": (1,)}

        with self.assertRaisesRegex(ValueError, "Old lies on a CUDA GPU"):
            hvd.allreduce(Old())

    def test_results_go_home(self):
        class Library(types.ModuleType):
            """An array library with DLPack, as JAX and CuPy are."""
            class Array:
                def __init__(self, values):
                    self.values = values

                def __dlpack_device__(self):
                    return 1, 0

                def __dlpack__(self, **how):
                    return self.values.__dlpack__(**how)

                def __array_namespace__(self):
                    return library

            def from_dlpack(self, array):
                if array.dtype == np.int8:
                    raise BufferError("not of this type")
                return self.Array(np.from_dlpack(array))

        library = Library("library")
        mine = library.Array(np.ones(hvd.size(), np.float32))
        for got in (hvd.allreduce(mine, op=hvd.Sum), hvd.broadcast(mine, 0), hvd.allgather(mine),
                    hvd.alltoall(mine), hvd.alltoall(mine, [1] * hvd.size())[0],
                    hvd.grouped_allreduce([mine])[0], hvd.reducescatter(mine),
                    hvd.synchronize(hvd.allreduce_async(mine))):
            self.assertIsInstance(got, library.Array)
        self.assertEqual(hvd.allreduce(mine, op=hvd.Sum).values.tolist(),
                         [hvd.size()] * hvd.size())
        small = library.Array(np.ones(1, np.int8))
        self.assertIsInstance(hvd.allgather(small), np.ndarray)
        with self.assertRaisesRegex(ValueError, "only a numpy.ndarray can be changed in place"):
            hvd.allreduce_(mine)

    def test_complex_numbers(self):
        rank, size = hvd.rank(), hvd.size()
        total = size * (size + 1) // 2
        for dtype in (np.complex64, np.complex128):
            ones = np.array([[1 + 2j, 3 - 1j]], dtype)
            mine = ones * dtype(rank + 1)
            place = mine.copy()
            self.assertIs(hvd.allreduce_(place, op=hvd.Sum), place)
            stacked = np.concatenate([ones * dtype(r + 1) for r in range(size)])
            for got, expected in (
                    (hvd.allreduce(mine, op=hvd.Sum), ones * total), (place, ones * total),
                    (hvd.allreduce(mine.T[::-1], op=hvd.Sum), ones.T[::-1] * total),
                    (hvd.allgather(mine), stacked),
                    (hvd.broadcast(mine, size - 1), ones * size),
                    (hvd.broadcast(mine[0, 0], size - 1), ones[0, 0] * size),
                    (hvd.alltoall(np.repeat(mine, size, 0)), stacked),
                    (hvd.reducescatter(np.repeat(mine, size, 0), op=hvd.Sum), ones * total),
                    (hvd.allgather(mine[:0]), ones[:0])):
                self.assertEqual(got.dtype, dtype)
                np.testing.assert_array_equal(got, expected)
            for op in (hvd.Min, hvd.Product):
                with self.assertRaisesRegex(ValueError, "complex numbers are reduced by Sum"):
                    hvd.allreduce(mine, op=op)
        with self.assertRaisesRegex(ValueError, "a single complex number has no rows"):
            hvd.allgather(np.complex64(1))

    def test_tensors_of_pytorch(self):
        try:
            import torch
        except ImportError:
            self.skipTest("there is no PyTorch")
        self.assertEqual(hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist(), [hvd.size()] * 2)
        for tensor in (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, requires_grad=True)):
            with self.assertRaisesRegex(ValueError, "torch.Tensor cannot be seen as a NumPy array"):
                hvd.allreduce(tensor)

    def test_bad_process_sets(self):
        self.assertEqual(hvd.ProcessSet(rank for rank in (1, 0)).ranks, [0, 1])
        self.assertEqual(hvd.ProcessSet(np.arange(3)).ranks, [0, 1, 2])
        self.assertTrue(hvd.ProcessSet([hvd.rank()]).included())  # not added, and yet known
        self.assertFalse(hvd.ProcessSet([hvd.rank() + 1]).included())
        with self.assertRaisesRegex(ValueError, "a communicator of mpi4py, not of 5"):
            hvd.ProcessSet(5)
        for ranks in ([0.9, 1.2], "01", [None]):
            with self.assertRaisesRegex(ValueError, "must be a whole number"):
                hvd.ProcessSet(ranks)
        with self.assertRaisesRegex(ValueError, "twice"):
            hvd.ProcessSet([1, 1])

    def test_unnamed_operations_that_some_ranks_do_alone(self):
        last = hvd.size() - 1
        alone = hvd.add_process_set([last]) if last else hvd.global_process_set
        if alone.included():
            for _ in range(3):
                hvd.allreduce(np.ones(1), process_set=alone)
                hvd.barrier(alone)
        self.assertEqual(hvd.allreduce(np.ones(1), op=hvd.Sum)[0], hvd.size())
        hvd.barrier()
        if last:
            hvd.remove_process_set(alone)

    def test_unnamed_operations_after_a_mistake_of_one_rank(self):
        if hvd.rank() == 0:
            for wrong in (lambda: hvd.broadcast(np.ones(1), 99),
                          lambda: hvd.broadcast(np.array(["text"]), 0),
                          lambda: hvd.grouped_allreduce([np.ones(1), np.array(["text"])])):
                with self.assertRaises(ValueError):
                    wrong()
        self.assertEqual(hvd.broadcast(np.array([hvd.rank()]), 0)[0], 0)
        self.assertEqual(hvd.grouped_allreduce([np.ones(1)], op=hvd.Sum)[0][0], hvd.size())

    def test_handles_of_a_job_that_was_shut_down(self):
        # Two operations that nobody else asks for.
        handles = [hvd.allreduce_async(np.zeros(2), name=f"only {hvd.rank()} {i}") for i in range(2)]
        hvd.allreduce(np.zeros(1), name="all have asked")
        thread = threading.Thread(target=hvd.shutdown)
        thread.start()
        thread.join()
        for call in (hvd.synchronize, hvd.poll):
            with self.assertRaisesRegex(hvd.HorovodInternalError, "shut down"):
                call(handles[0])
        hvd.init()
        with self.assertRaisesRegex(hvd.HorovodInternalError, "shut down"):
            hvd.synchronize(handles[1])
        self.assertEqual(hvd.allreduce(np.ones(1), op=hvd.Sum)[0], hvd.size())

    def test_join(self):
        for _ in range(hvd.rank()):
            total = hvd.allreduce(np.ones(2), name="joined", op=hvd.Sum)
            self.assertGreaterEqual(total[0], 1)
        self.assertIn(hvd.join(), range(hvd.size()))

    def test_threads(self):
        results = {}

        def work(i):
            results[i] = hvd.allreduce(np.full(3, float(i)), name=f"thread{i}", op=hvd.Sum)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for i, result in results.items():
            self.assertEqual(result.tolist(), [i * hvd.size()] * 3)
        self.assertEqual(len(results), 8)


class ProcessSets(unittest.TestCase):
    def test_ranks_that_disagree(self):
        if hvd.size() < 2:
            self.skipTest("needs two ranks")
        with self.assertRaisesRegex(hvd.HorovodInternalError, "Ranks disagree on the ranks of the"):
            hvd.add_process_set([0] if hvd.rank() == 0 else [1])

    def test_even_and_odd(self):
        if hvd.size() < 2:
            self.skipTest("needs two ranks")
        even = hvd.add_process_set(range(0, hvd.size(), 2))
        odd = hvd.add_process_set(hvd.ProcessSet(range(1, hvd.size(), 2)))
        mine, other = (even, odd) if hvd.rank() % 2 == 0 else (odd, even)
        self.assertTrue(mine.included())
        self.assertFalse(other.included())
        self.assertEqual(mine.rank(), hvd.rank() // 2)
        total = hvd.allreduce(np.array([hvd.rank()]), op=hvd.Sum, process_set=mine)
        self.assertEqual(total[0], sum(mine.ranks))
        root = mine.ranks[-1]
        self.assertEqual(hvd.broadcast(np.array([hvd.rank()]), root, process_set=mine)[0], root)
        moved = hvd.alltoall(np.arange(mine.size()), process_set=mine)
        self.assertEqual(moved.tolist(), [mine.rank()] * mine.size())
        with self.assertRaises(ValueError):
            hvd.allreduce(np.zeros(1), process_set=other)
        with self.assertRaises(ValueError):
            hvd.add_process_set(even)
        again = hvd.ProcessSet(even.ranks)
        with self.assertRaisesRegex(ValueError, "two sets of the ranks"):
            hvd.init(process_sets=[even, again])
        hvd.init(process_sets=[even])  # as it is
        hvd.init(process_sets=[again])
        self.assertEqual(again.process_set_id, even.process_set_id)
        if again.included():
            hvd.barrier(again)
        self.assertTrue(hvd.remove_process_set(odd))
        self.assertFalse(hvd.remove_process_set(odd))
        self.assertTrue(hvd.remove_process_set(even))
        for removed in (even, again):
            with self.assertRaisesRegex(ValueError, "has not been added"):
                hvd.allreduce(np.zeros(1), process_set=removed)


class Timeline(unittest.TestCase):
    def test_json(self):
        folder = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None, 0)
        path = os.path.join(folder, "trace.json")
        hvd.start_timeline(path)
        hvd.allreduce(np.zeros(4), name="seen")
        hvd.stop_timeline()
        mine = path if hvd.rank() == 0 else f"{path}.{hvd.rank()}"
        with open(mine, encoding="utf-8") as file:
            self.assertIn("allreduce.seen", json.dumps(json.load(file)))
        with self.assertRaises(ValueError):
            hvd.stop_timeline()
        with self.assertRaisesRegex(ValueError, "cannot be written: No such file"):
            hvd.start_timeline("/nonexistent/trace.json")


class Communicators(unittest.TestCase):
    def check_roots(self, comm):
        rank, size, last = comm.rank, comm.size, comm.size - 1
        gathered = comm.gather(of_rank(rank, (4,))[::2], root=last)
        if rank == last:
            np.testing.assert_array_equal(gathered, [of_rank(r, (4,))[::2] for r in range(size)])
        else:
            self.assertIsNone(gathered)
        whole = np.arange(2.0 * size).reshape(size, 2) if rank == last else None
        out = None if rank == last else np.empty(2)
        self.assertEqual(comm.scatter(whole, last, out).tolist(), [2.0 * rank, 2.0 * rank + 1])
        comm.barrier()
        with self.assertRaisesRegex(ValueError, f"there is no rank {size} among {size}"):
            comm.gather(np.ones(1), root=size)
        if rank != last:
            with self.assertRaisesRegex(ValueError, "scatter needs `out`"):
                comm.scatter(None, last)
        else:
            with self.assertRaisesRegex(ValueError, "its first dimension must be the number"):
                comm.scatter(np.ones(size + 1), last)

    def check_rows(self, comm):
        rank, size = comm.rank, comm.size
        for dtype in (np.int16, np.float64, np.bool_):
            mine = np.full((rank, 2), rank, dtype)  # rank 0 has none
            np.testing.assert_array_equal(
                comm.allgather_rows(mine),
                np.concatenate([np.full((r, 2), r, dtype) for r in range(size)]))
            gathered = comm.gather_rows(mine, size - 1)
            everything = comm.allgather_rows(mine)
            if rank == size - 1:
                np.testing.assert_array_equal(gathered, everything)
            else:
                self.assertIsNone(gathered)
            whole = np.arange(size * (size - 1)).reshape(-1, 2).astype(dtype)
            begin = rank * (rank - 1) // 2
            got = (comm.scatter_rows(whole, range(size)) if rank == 0 else
                   comm.scatter_rows(None, out=np.empty((rank, 2), dtype)))
            np.testing.assert_array_equal(got, whole[begin:begin + rank])
        splits = [rank + i for i in range(size)]
        rows, received = comm.alltoall_rows(np.full((sum(splits), 3), rank), splits)
        self.assertEqual(received.tolist(), [r + rank for r in range(size)])
        self.assertEqual(rows[:, 2].tolist(), [r for r in range(size) for _ in range(r + rank)])
        total = sum(of_rank(r, (size + 1, 2)) for r in range(size))
        begin = rank + min(rank, 1)
        np.testing.assert_array_equal(comm.reducescatter_rows(of_rank(rank, (size + 1, 2))),
                                      total[begin:begin + 1 + (rank == 0)])
        counts = [0] * (size - 1) + [size + 1]
        np.testing.assert_array_equal(
            comm.reducescatter_rows(of_rank(rank, (size + 1, 2)), "sum", counts),
            total if rank == size - 1 else total[:0])
        for wrong in ([1] * (size + 1), [-1] * size, [size] * size):
            with self.assertRaisesRegex(ValueError, "numbers that add up to"):
                comm.reducescatter_rows(np.ones((size + 1, 2)), rows=wrong)
        with self.assertRaisesRegex(ValueError, "a single number has no rows"):
            comm.allgather_rows(np.array(5.0))
        if rank > 0:
            with self.assertRaisesRegex(ValueError, "scatter_rows needs `out`"):
                comm.scatter_rows(None)

    def check_complex(self, comm):
        ones = np.full(3, 1 + 2j)
        total = comm.size * (comm.size + 1) // 2
        np.testing.assert_array_equal(comm.allreduce(ones * (comm.rank + 1)), ones * total)
        np.testing.assert_array_equal(comm.allgather(ones), [ones] * comm.size)
        np.testing.assert_array_equal(comm.allgather_rows(ones), np.tile(ones, comm.size))
        with self.assertRaisesRegex(ValueError, "complex numbers are reduced by sum and avg"):
            comm.allreduce(ones, "max")
        with self.assertRaisesRegex(ValueError, "out must have the array's type"):
            comm.allreduce(ones, out=np.empty(3))

    def test_every_collective(self):
        rank, size = hvd.rank(), hvd.size()
        with tutti.Communicator.world() as comm:
            self.assertEqual((comm.rank, comm.size), (rank, size))
            total = sum(of_rank(r, (size, 3)) for r in range(size))
            np.testing.assert_array_equal(comm.allreduce(of_rank(rank, (size, 3))), total)
            np.testing.assert_array_equal(comm.reducescatter(of_rank(rank, (size, 3))),
                                          total[rank])
            reduced = comm.reduce(of_rank(rank, (size, 3)), root=size - 1)
            self.assertEqual(reduced is None, rank != size - 1)
            np.testing.assert_array_equal(comm.allgather(np.array([rank, True], np.int16))[:, 0],
                                          np.arange(size))
            self.assertEqual(comm.alltoall(np.arange(size) * 10 + rank).tolist(),
                             [10 * rank + r for r in range(size)])
            array = of_rank(rank, (4,))
            self.assertIs(comm.broadcast(array, size - 1), array)
            np.testing.assert_array_equal(array, of_rank(size - 1, (4,)))
            self.assertIs(comm.allreduce(array, "max", out=array), array)
            child = comm.split(rank % 2, -rank)
            self.assertEqual(child.size, (size + 1 - rank % 2) // 2)
            child.destroy()
            if size > 1 and rank < 2:
                if rank == 0:
                    comm.send(np.arange(5.0), 1)
                else:
                    self.assertEqual(comm.receive(np.empty(5), 0).tolist(), [0, 1, 2, 3, 4])
            self.check_roots(comm)
            self.check_rows(comm)
            self.check_complex(comm)
            with self.assertRaises(ValueError):
                comm.allreduce(array, "median")
            with self.assertRaises(ValueError):
                comm.alltoall(np.zeros(size + 1))
        with self.assertRaises(ValueError):
            comm.allreduce(array)


if __name__ == "__main__":
    unittest.main()
