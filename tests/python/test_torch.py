"""tutti.torch, on every rank of a job of any size."""

import atexit
import os
import unittest
import warnings

import torch

import checks
import tutti
import tutti.torch as hvd


def setUpModule():
    torch.set_num_threads(1)
    hvd.init()


def tearDownModule():
    hvd.shutdown()


def of_rank(rank, *shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randint(1, 5, shape, generator=generator).to(dtype)


def parts(*shape, dtype=torch.float32):
    return [of_rank(r, *shape, dtype=dtype) for r in range(hvd.size())]


@unittest.skipUnless(hasattr(torch, "set_default_device"), "PyTorch before 2.0")
class DefaultDevice(unittest.TestCase):
    """Another default device is for the program's tensors: the package's own lie on the host."""

    def setUp(self):
        torch.set_default_device("meta")
        self.addCleanup(torch.set_default_device, None)

    def test_objects_and_optimizers(self):
        self.assertEqual(hvd.broadcast_object(hvd.rank() + 5, 0), 5)
        self.assertEqual(hvd.allgather_object(hvd.rank()), list(range(hvd.size())))
        weight = torch.nn.Parameter(torch.full((2,), float(hvd.rank()), device="cpu"))
        optimizer = torch.optim.SGD([weight], lr=0.1 * (hvd.rank() + 1), momentum=0.9)
        weight.sum().backward()
        optimizer.step()
        hvd.broadcast_optimizer_state(optimizer, 0)
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.1)

    def test_operations_with_tensors_of_their_own(self):
        mine = torch.ones(hvd.size(), 2, device="cpu", requires_grad=True)
        rows, received = hvd.alltoall(mine, [1] * hvd.size())
        self.assertEqual((rows.device.type, received.tolist()), ("cpu", [1] * hvd.size()))
        (rows.sum() + hvd.allgather(mine).sum()).backward()
        self.assertEqual(mine.grad.unique().tolist(), [2.0])
        table = torch.nn.Embedding(3, 1, sparse=True, device="cpu")
        for as_dense in (False, True):
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0),
                                                 sparse_as_dense=as_dense)
            for step in range(2):
                optimizer.zero_grad()
                if step == 0:
                    table(torch.tensor([0], device="cpu")).sum().backward()
                optimizer.step()
            self.assertTrue(hvd.size() == 1 or table.weight.grad.is_sparse)

    def test_elastic(self):
        from tutti.torch import elastic
        weight = torch.nn.Linear(2, 1, device="cpu")
        sampler = elastic.ElasticSampler(list(range(4 * hvd.size())), shuffle=True)
        state = elastic.TorchState(weight, torch.optim.SGD(weight.parameters(), lr=0.1),
                                   sampler=sampler, epoch=hvd.rank())
        sampler.record_batch(0, 2)
        state.commit()
        state.sync()
        self.assertEqual((state.epoch, len(sampler.processed_indices)), (0, 2 * hvd.size()))


class Collectives(unittest.TestCase):
    def test_allreduce_of_every_type(self):
        for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
                      torch.float16, torch.bfloat16, torch.float32, torch.float64):
            got = hvd.allreduce(of_rank(hvd.rank(), 3, 4, dtype=dtype), op=hvd.Sum)
            self.assertEqual(got.dtype, dtype)
            self.assertTrue(torch.equal(got, sum(parts(3, 4, dtype=dtype))))
        seen = hvd.allreduce(torch.tensor([hvd.rank() == 0, False]), op=hvd.Sum)
        self.assertEqual(seen.tolist(), [True, False])

    def test_in_place_and_grouped(self):
        tensor = of_rank(hvd.rank(), 5)
        self.assertIs(hvd.allreduce_(tensor, op=hvd.Max), tensor)
        self.assertTrue(torch.equal(tensor, torch.stack(parts(5)).max(0).values))
        a, b = hvd.grouped_allreduce([of_rank(hvd.rank(), 2), of_rank(hvd.rank(), 3, 3)])
        torch.testing.assert_close(a, sum(parts(2)) / hvd.size())
        torch.testing.assert_close(b, sum(parts(3, 3)) / hvd.size())
        tensors = [torch.ones(2), torch.ones(3)]
        hvd.grouped_allreduce_(tensors, op=hvd.Sum)
        self.assertEqual(tensors[1].tolist(), [hvd.size()] * 3)

    def test_average_is_deprecated(self):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            got = hvd.allreduce(torch.ones(1), average=False)
        self.assertEqual(got.item(), hvd.size())
        self.assertTrue(any(w.category is DeprecationWarning for w in caught))
        with self.assertRaises(ValueError):
            hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum)

    def test_compression(self):
        class Halver:
            @staticmethod
            def compress(tensor):
                return tensor / 2, "context"

            @staticmethod
            def decompress(tensor, ctx):
                assert ctx == "context"
                return tensor * 2

        for compression in (hvd.Compression.none, hvd.Compression.fp16, hvd.Compression.bf16,
                            Halver):
            got = hvd.allreduce(of_rank(hvd.rank(), 4), op=hvd.Sum, compression=compression)
            self.assertEqual(got.dtype, torch.float32)
            self.assertTrue(torch.equal(got, sum(parts(4))))

    def test_moves(self):
        rank, size = hvd.rank(), hvd.size()
        got = hvd.allgather(torch.full((rank + 1, 2), rank, dtype=torch.bfloat16))
        self.assertEqual(got[:, 0].tolist(), [r for r in range(size) for _ in range(r + 1)])
        self.assertTrue(torch.equal(hvd.broadcast(of_rank(rank, 3), size - 1),
                                    of_rank(size - 1, 3)))
        # (A row more than the splits name stays here.)
        rows, received = hvd.alltoall(torch.full((size * (rank + 1) + 1,), rank),
                                      torch.tensor([rank + 1] * size))
        self.assertEqual(received.tolist(), [r + 1 for r in range(size)])
        self.assertEqual(rows.tolist(), [r for r in range(size) for _ in range(r + 1)])
        mine = hvd.reducescatter(of_rank(rank, size, 2), op=hvd.Sum)
        self.assertTrue(torch.equal(mine[0], sum(parts(size, 2))[rank]))
        a, b = hvd.grouped_reducescatter([torch.ones(size), torch.ones(2 * size)], op=hvd.Sum)
        self.assertEqual((a.tolist(), b.tolist()), ([size], [size] * 2))
        with self.assertRaisesRegex(hvd.HorovodInternalError, "knows no Adasum"):
            hvd.reducescatter(torch.ones(size), op=hvd.Adasum)

    def test_sparse(self):
        index = torch.tensor([[hvd.rank(), 4]])
        tensor = torch.sparse_coo_tensor(index, torch.tensor([1.0, 2.0]), (5,))
        got = hvd.sparse_allreduce_async(tensor, "sparse", hvd.Sum)().to_dense()
        self.assertEqual(got.tolist(), [1.0 if i < hvd.size() else 0.0 for i in range(4)] +
                         [2.0 * hvd.size()])

    def test_refusals(self):
        with self.assertRaisesRegex(ValueError, "contiguous"):
            hvd.allreduce(torch.ones(3, 4).t())
        for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather, hvd.alltoall, hvd.reducescatter,
                     hvd.allreduce_async, lambda t: hvd.broadcast(t, 0),
                     lambda t: hvd.grouped_allreduce([t]), lambda t: hvd.grouped_allgather([t]),
                     lambda t: hvd.grouped_reducescatter([t]),
                     lambda t: hvd.allreduce(t, compression=hvd.Compression.fp16)):
            with self.assertRaisesRegex(ValueError, "a list is no torch.Tensor"):
                call([1, 2])
        for op in (hvd.Max, hvd.Product, hvd.Adasum):
            with self.assertRaisesRegex(ValueError, "complex numbers are reduced by Sum and"):
                hvd.allreduce(torch.ones(2, dtype=torch.complex64), op=op)
        with self.assertRaisesRegex(ValueError, "a single complex number has no rows"):
            hvd.allgather(torch.tensor(1j))
        with self.assertRaisesRegex(ValueError, "resolve_conj"):
            hvd.allreduce_(torch.ones(2, dtype=torch.complex64).conj())
        with self.assertRaisesRegex(ValueError, "meta"):
            hvd.allreduce(torch.ones(2, device="meta"))
        with self.assertRaisesRegex(ValueError, "the root is rank -1"):
            hvd.broadcast(torch.ones(2), -1)
        for sentence, call in (
                ("root_rank must be a whole number, not 0.7", lambda t: hvd.broadcast(t, 0.7)),
                ("process_set=None is no ProcessSet",
                 lambda t: hvd.allreduce(t, process_set=None)),
                ("process_set=None is no ProcessSet",
                 lambda t: hvd.alltoall(t, process_set=None)),
                ("splits must be a list of whole numbers", lambda t: hvd.alltoall(t, "ab")),
                ("compression='fp16'", lambda t: hvd.allreduce(t, compression="fp16")),
                ("compression='fp16'", lambda t: hvd.reducescatter(t, compression="fp16")),
                ("a name must be a string, not 5", lambda t: hvd.allreduce(t, name=5)),
                ("prescale_factor must be a number",
                 lambda t: hvd.allreduce(t, prescale_factor=None)),
                ("no reduction operator 9", lambda t: hvd.allreduce(t, op=9))):
            with self.assertRaisesRegex(ValueError, sentence):
                call(torch.ones(2))

    def test_negated_views(self):
        view = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
        self.assertTrue(view.is_neg())
        self.assertEqual(hvd.allreduce(view.contiguous() if not view.is_contiguous() else view,
                                       op=hvd.Sum).tolist(), [-2.0 * hvd.size(), 4.0 * hvd.size()])
        one = torch.tensor([1 + 2j]).conj().imag
        self.assertEqual(hvd.allreduce(one, op=hvd.Sum).item(), -2.0 * hvd.size())
        with self.assertRaisesRegex(ValueError, "resolve_neg"):
            hvd.allreduce_(one)

    def test_complex_numbers(self):
        rank, size = hvd.rank(), hvd.size()
        for dtype in (torch.complex64, torch.complex128):
            mine = torch.tensor([[1 + 2j, 3 - 1j]], dtype=dtype) * (rank + 1)
            ones = torch.tensor([[1 + 2j, 3 - 1j]], dtype=dtype)
            total = size * (size + 1) // 2
            self.assertTrue(torch.equal(hvd.allreduce(mine, op=hvd.Sum), ones * total))
            torch.testing.assert_close(hvd.allreduce(mine), ones * total / size)
            # A view that stands for the conjugate, and a group with others.
            seen, other = hvd.grouped_allreduce([mine.conj(), torch.ones(2)], op=hvd.Sum)
            self.assertTrue(torch.equal(seen, ones.conj() * total))
            self.assertEqual(other.tolist(), [size] * 2)
            place = mine.clone()
            self.assertIs(hvd.allreduce_(place, op=hvd.Sum), place)
            self.assertTrue(torch.equal(place, ones * total))
            self.assertTrue(torch.equal(hvd.allgather(mine),
                                        torch.cat([ones * (r + 1) for r in range(size)])))
            self.assertTrue(torch.equal(hvd.broadcast(mine, size - 1), ones * size))
            self.assertEqual(hvd.broadcast(mine[0, 0], size - 1), ones[0, 0] * size)
            rows, received = hvd.alltoall(mine.expand(size, 2).contiguous(), [1] * size)
            self.assertTrue(torch.equal(rows, torch.cat([ones * (r + 1) for r in range(size)])))
            part = hvd.reducescatter(mine.expand(size, 2).contiguous(), op=hvd.Sum)
            self.assertTrue(torch.equal(part, ones * total))
            got = hvd.allreduce(mine, op=hvd.Sum, compression=hvd.Compression.fp16)
            self.assertEqual((got.dtype, got[0, 0].item()), (dtype, total * (1 + 2j)))
            hvd.broadcast_parameters({"complex": place}, root_rank=0)
        leaf = torch.tensor([1 + 1j], requires_grad=True)
        hvd.allreduce(leaf, op=hvd.Sum).abs().sum().backward()
        self.assertEqual(leaf.grad.dtype, torch.complex64)

    def test_arrays_of_other_libraries(self):
        try:
            import numpy as np
        except ImportError:
            self.skipTest("there is no NumPy")
        rank, size = hvd.rank(), hvd.size()
        mine = np.full((2, 2), rank, np.float32)
        total = size * (size - 1) // 2
        for got, expected in (
                (hvd.allreduce(mine, op=hvd.Sum), np.full((2, 2), total)),
                (hvd.allreduce(mine, op=hvd.Sum, compression=hvd.Compression.fp16),
                 np.full((2, 2), total)),
                (hvd.synchronize(hvd.allreduce_async(mine, op=hvd.Sum)), np.full((2, 2), total)),
                (hvd.grouped_allreduce([mine, torch.ones(1)], op=hvd.Sum)[0],
                 np.full((2, 2), total)),
                (hvd.allgather(mine)[::2, 0], np.arange(size)),
                (hvd.broadcast(mine, size - 1), np.full((2, 2), size - 1)),
                (hvd.alltoall(np.arange(size, dtype=np.int64)), np.full(size, rank)),
                (hvd.reducescatter(np.ones((size, 1), np.float64), op=hvd.Sum), [[size]])):
            self.assertIsInstance(got, np.ndarray)
            np.testing.assert_array_equal(got, expected)
        self.assertIs(hvd.allreduce_(mine, op=hvd.Sum), mine)
        self.assertEqual(mine[0, 0], total)

        class Elsewhere:
            def __dlpack_device__(self):
                return 2, 0

            def __dlpack__(self, **unused):
                raise BufferError("there is no such device")
        with self.assertRaisesRegex(ValueError, "Elsewhere cannot be seen as a torch.Tensor"):
            hvd.allreduce(Elsewhere())

    def test_names_where_horovod_has_them(self):
        from tutti.torch import mpi_ops
        for name in ("init", "rank", "size", "local_rank", "Adasum", "Sum", "HorovodInternalError",
                     "add_process_set", "mpi_built", "nccl_built"):
            self.assertIs(getattr(mpi_ops, name), getattr(hvd, name))

    def test_a_forked_child_ends(self):
        child = os.fork()
        if child == 0:
            try:
                hvd.rank()
            except ValueError:
                atexit._run_exitfuncs()  # as the interpreter does, without unittest's own ending
                os._exit(7)
            os._exit(1)
        self.assertEqual(os.waitpid(child, 0)[1], 7 << 8)
        self.assertEqual(hvd.allreduce(torch.ones(1), op=hvd.Sum).item(), hvd.size())

    def test_objects_and_communicator(self):
        self.assertEqual(hvd.allgather_object(("r", hvd.rank())),
                         [("r", r) for r in range(hvd.size())])
        self.assertEqual(hvd.broadcast_object({"a": hvd.rank()}, 0), {"a": 0})
        with tutti.Communicator.world() as comm:
            self.assertEqual(comm.allreduce(torch.ones(2, dtype=torch.bfloat16)).tolist(),
                             [hvd.size()] * 2)
            rows = comm.allgather_rows(torch.full((comm.rank + 1,), comm.rank))
            self.assertEqual(rows.tolist(), [r for r in range(comm.size) for _ in range(r + 1)])
            rows, received = comm.alltoall_rows(torch.full((comm.size, 2), 1j * comm.rank),
                                                [1] * comm.size)
            self.assertEqual(rows[:, 1].tolist(), [1j * r for r in range(comm.size)])
            self.assertEqual(received.dtype, torch.int32)

    def test_objects_that_pickle_cannot(self):
        checks.objects(self, hvd)


class Gradients(unittest.TestCase):
    """Against what autograd says of the same sum computed on one rank."""

    def leaf(self, *shape):
        return of_rank(hvd.rank(), *shape, dtype=torch.float64).requires_grad_()

    def test_allreduce(self):
        for op, factor in ((hvd.Sum, hvd.size()), (hvd.Average, 1)):
            x = self.leaf(3)
            (hvd.allreduce(x, op=op) * 2).sum().backward()
            self.assertEqual(x.grad.tolist(), [2.0 * factor] * 3)
        x, y = self.leaf(2), self.leaf(3)
        a, b = hvd.grouped_allreduce([x, y], op=hvd.Sum)
        (a.sum() + 3 * b.sum()).backward()
        self.assertEqual(y.grad.tolist(), [3.0 * hvd.size()] * 3)

    def test_allgather(self):
        x = self.leaf(hvd.rank() + 1, 2)
        gathered = hvd.allgather(x)
        weights = torch.arange(gathered.shape[0], dtype=torch.float64)
        (gathered * weights[:, None] * (hvd.rank() + 1)).sum().backward()
        begin = hvd.rank() * (hvd.rank() + 1) // 2
        mean = (hvd.size() + 1) / 2
        expected = (weights[begin:begin + hvd.rank() + 1] * mean)[:, None].expand(-1, 2)
        torch.testing.assert_close(x.grad, expected.contiguous())

    def test_groups_travel_together(self):
        x, y = self.leaf(hvd.rank() + 1, 2), self.leaf(2)
        a, b = hvd.grouped_allgather([x, y], name="both")
        (a.sum() * (hvd.rank() + 1) + 3 * b.sum()).backward()
        mean = (hvd.size() + 1) / 2
        self.assertEqual(x.grad.tolist(), [[mean] * 2] * (hvd.rank() + 1))
        self.assertEqual(y.grad.tolist(), [3.0] * 2)
        for op, factor in ((hvd.Sum, hvd.size()), (hvd.Average, 1)):
            x, y = self.leaf(2 * hvd.size()), self.leaf(hvd.size(), 3)
            a, b = hvd.grouped_reducescatter([x, y], op=op, name="parts")
            (a.sum() * (hvd.rank() + 1) + 5 * b.sum()).backward()
            self.assertEqual(x.grad.tolist(), [factor * (r + 1.0) for r in range(hvd.size())
                                               for _ in range(2)])
            self.assertEqual(y.grad.tolist(), [[factor * 5.0] * 3] * hvd.size())
        with self.assertRaisesRegex(ValueError, "a group has no members"):
            hvd.grouped_allgather([])

    def test_a_group_with_gradients_is_the_same_group_without(self):
        # Some ranks want gradients and others not, which is none of the operation's business.
        for grouped in (hvd.grouped_allgather, hvd.grouped_reducescatter):
            x = torch.ones(hvd.size(), dtype=torch.float64, requires_grad=hvd.rank() == 0)
            first, second = grouped([x, x * 2], name="mixed")
            self.assertEqual(second.tolist(), (first * 2).tolist())

    def test_broadcast(self):
        x = self.leaf(2)
        (hvd.broadcast(x, 0) * (hvd.rank() + 1)).sum().backward()
        mean = (hvd.size() + 1) / 2
        self.assertEqual(x.grad.tolist(), [mean if hvd.rank() == 0 else 0.0] * 2)

    def test_alltoall(self):
        x = self.leaf(2 * hvd.size())
        rows = hvd.alltoall(x)
        (rows * (hvd.rank() + 1)).sum().backward()
        self.assertEqual(x.grad.tolist(), [r + 1.0 for r in range(hvd.size()) for _ in range(2)])

    def test_alltoall_of_some_rows(self):
        x = self.leaf(hvd.size() + 2, 2)
        rows, _ = hvd.alltoall(x, [1] * hvd.size())
        (rows * (hvd.rank() + 1)).sum().backward()
        expected = [r + 1.0 for r in range(hvd.size())] + [0.0] * 2
        self.assertEqual(x.grad[:, 0].tolist(), expected)

    def test_reducescatter(self):
        for op, factor in ((hvd.Sum, hvd.size()), (hvd.Average, 1)):
            x = self.leaf(2 * hvd.size())
            (hvd.reducescatter(x, op=op) * (hvd.rank() + 1)).sum().backward()
            self.assertEqual(x.grad.tolist(),
                             [factor * (r + 1.0) for r in range(hvd.size()) for _ in range(2)])


if __name__ == "__main__":
    unittest.main()
