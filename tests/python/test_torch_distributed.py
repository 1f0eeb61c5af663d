"""The torch.distributed backend, on every rank of a job of any size: each operation against the
oracle, and DistributedDataParallel against Gloo."""

import os
import time
import unittest
import warnings
from unittest import mock

import torch
import torch.distributed as dist

from tutti import _library
from tutti.torch import _worker, distributed  # the latter registers the backend

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def setUpModule():
    torch.set_num_threads(1)
    dist.init_process_group("tutti")


def tearDownModule():
    dist.destroy_process_group()


def of_rank(rank, *shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 + rank)
    return torch.randint(1, 5, shape, generator=generator).to(dtype)


def parts(*shape, dtype=torch.float32):
    return [of_rank(r, *shape, dtype=dtype) for r in range(SIZE)]


class Collectives(unittest.TestCase):
    def test_places(self):
        self.assertEqual((dist.get_backend(), dist.get_rank(), dist.get_world_size()),
                         ("tutti", RANK, SIZE))

    def test_all_reduce(self):
        for dtype in (torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16,
                      torch.bfloat16, torch.float32, torch.float64):
            tensor = of_rank(RANK, 3, 4, dtype=dtype)
            dist.all_reduce(tensor)
            self.assertTrue(torch.equal(tensor, sum(parts(3, 4, dtype=dtype))), dtype)
        stacked = torch.stack(parts(5))
        for op, expected in ((dist.ReduceOp.MAX, stacked.max(0).values),
                             (dist.ReduceOp.MIN, stacked.min(0).values),
                             (dist.ReduceOp.PRODUCT, stacked.prod(0)),
                             (dist.ReduceOp.AVG, stacked.mean(0))):
            tensor = of_rank(RANK, 5)
            dist.all_reduce(tensor, op=op)
            torch.testing.assert_close(tensor, expected)
        for op, expected in ((dist.ReduceOp.SUM, [True, SIZE == 1, False]),
                             (dist.ReduceOp.BAND, [SIZE == 1, SIZE == 1, False])):
            tensor = torch.tensor([RANK == 0, SIZE == 1, False])
            dist.all_reduce(tensor, op=op)
            self.assertEqual(tensor.tolist(), expected)

    @unittest.skipUnless(hasattr(torch, "set_default_device"), "PyTorch before 2.0")
    def test_sum_after_a_multiplication(self):
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64):
            for factor in (0.5, torch.tensor(0.5, dtype=torch.float32)):
                tensor = of_rank(RANK, 5, dtype=dtype)
                dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(factor))
                torch.testing.assert_close(tensor, sum(parts(5, dtype=dtype)) / 2)

    @unittest.skipUnless(hasattr(torch, "set_default_device"), "PyTorch before 2.0")
    def test_a_barrier_whatever_the_default_device(self):
        torch.set_default_device("meta")
        self.addCleanup(torch.set_default_device, None)
        dist.barrier()

    def test_many_at_once(self):
        tensors = [torch.full((1000 + i,), float(RANK + i)) for i in range(20)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for i, (work, tensor) in enumerate(zip(works, tensors)):
            work.wait()
            self.assertTrue(work.is_completed())
            self.assertEqual(tensor[0], SIZE * (SIZE - 1) / 2 + SIZE * i)

    def test_broadcast_reduce_gather_scatter(self):
        for root in range(SIZE):
            tensor = of_rank(RANK, 4)
            dist.broadcast(tensor, root)
            self.assertTrue(torch.equal(tensor, of_rank(root, 4)))
            tensor = of_rank(RANK, 4)
            dist.reduce(tensor, root)
            self.assertTrue(torch.equal(tensor, sum(parts(4)) if RANK == root
                                        else of_rank(RANK, 4)))
            made = [torch.empty(4) for _ in range(SIZE)] if RANK == root else None
            dist.gather(of_rank(RANK, 4), made, dst=root)
            if RANK == root:
                self.assertTrue(torch.equal(torch.stack(made), torch.stack(parts(4))))
            tensor = torch.empty(3)
            rows = list(of_rank(root, SIZE, 3)) if RANK == root else None
            dist.scatter(tensor, rows, src=root)
            self.assertTrue(torch.equal(tensor, of_rank(root, SIZE, 3)[RANK]))

    @unittest.skipUnless(hasattr(dist, "gather_single"), "PyTorch before 2.14")
    def test_gather_single(self):
        for root in range(SIZE):
            made = torch.empty(SIZE, 3) if RANK == root else None
            dist.gather_single(of_rank(RANK, 3), made, dst=root)
            if RANK == root:
                self.assertTrue(torch.equal(made, torch.stack(parts(3))))
        work = dist.gather_single(of_rank(RANK, 3), made, dst=SIZE - 1, async_op=True)
        work.wait()
        if RANK == SIZE - 1:
            self.assertTrue(torch.equal(made, torch.stack(parts(3))))
        if SIZE == 1:  # The other ranks would still send.
            with self.assertRaisesRegex(ValueError, "gather of 3 elements .* does not give 4"):
                dist.gather_single(of_rank(RANK, 3), torch.empty(4))

    @unittest.skipUnless(hasattr(dist, "get_backend_impl"), "PyTorch before 2.14")
    def test_the_implementation_is_shown(self):
        implementation = dist.get_backend_impl(device=torch.device("cpu"))
        self.assertEqual((implementation.name(), implementation.size()), ("tutti", SIZE))

    def test_all_gather(self):
        made = [torch.empty(r + 1, dtype=torch.int16) for r in range(SIZE)]
        dist.all_gather(made, of_rank(RANK, RANK + 1, dtype=torch.int16))
        for rank, tensor in enumerate(made):
            self.assertTrue(torch.equal(tensor, of_rank(rank, rank + 1, dtype=torch.int16)))
        gathered = torch.empty(2 * SIZE)
        getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(gathered, of_rank(RANK, 2))
        self.assertTrue(torch.equal(gathered, torch.cat(parts(2))))
        objects = [None] * SIZE
        dist.all_gather_object(objects, {"rank": RANK})
        self.assertEqual(objects, [{"rank": r} for r in range(SIZE)])

    def test_reduce_scatter(self):
        tensor = torch.empty(3)
        dist.reduce_scatter(tensor, list(of_rank(RANK, SIZE, 3)))
        self.assertTrue(torch.equal(tensor, sum(parts(SIZE, 3))[RANK]))
        getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)(
            tensor, of_rank(RANK, SIZE, 3))
        self.assertTrue(torch.equal(tensor, sum(parts(SIZE, 3))[RANK]))

    def test_small_floats_are_moved_as_they_are(self):
        """Types that nobody reduces, such as those of 4 bits in pairs, travel as bytes."""
        names = [name for name in dir(torch) if name.startswith(("float8_", "float4_"))]
        for dtype in (getattr(torch, name) for name in names):
            def of(rank, count=6):
                return (torch.arange(count, dtype=torch.uint8) * 37 + rank).view(dtype)

            def expect(tensor, wanted):
                self.assertTrue(torch.equal(tensor.view(torch.uint8), wanted.view(torch.uint8)), dtype)
            tensor = of(RANK)
            dist.broadcast(tensor, SIZE - 1)
            expect(tensor, of(SIZE - 1))
            made = [torch.empty(6, dtype=torch.uint8).view(dtype) for _ in range(SIZE)]
            dist.all_gather(made, of(RANK))
            for rank, tensor in enumerate(made):
                expect(tensor, of(rank))
            whole = torch.empty(6 * SIZE, dtype=torch.uint8).view(dtype)
            getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(whole, of(RANK))
            expect(whole, torch.cat([of(rank).view(torch.uint8) for rank in range(SIZE)]))
            swapped = torch.empty(2 * SIZE, dtype=torch.uint8).view(dtype)
            dist.all_to_all_single(swapped, of(RANK, 2 * SIZE))
            expect(swapped, torch.cat([of(rank, 2 * SIZE).view(torch.uint8)[2 * RANK:2 * RANK + 2]
                                       for rank in range(SIZE)]))
            if SIZE > 1:
                sent = dist.isend(of(RANK), (RANK + 1) % SIZE, tag=9)
                dist.recv(made[0], (RANK - 1) % SIZE, tag=9)
                sent.wait()
                expect(made[0], of((RANK - 1) % SIZE))

    def test_all_to_all(self):
        source = torch.arange(2.0 * SIZE) + 100 * RANK
        target = torch.empty(2 * SIZE)
        dist.all_to_all_single(target, source)
        self.assertEqual(target.tolist(), [100.0 * r + 2 * RANK + i for r in range(SIZE)
                                           for i in range(2)])
        # Rank r sends i rows to rank i.
        splits = list(range(SIZE))
        source = torch.full((sum(splits), 2), float(RANK))
        target = torch.empty(RANK * SIZE, 2)
        dist.all_to_all_single(target, source, [RANK] * SIZE, splits)
        self.assertEqual(target[:, 0].tolist(), [float(r) for r in range(SIZE)
                                                 for _ in range(RANK)])
        made = [torch.empty(1) for _ in range(SIZE)]
        dist.all_to_all(made, [torch.tensor([10.0 * RANK + i]) for i in range(SIZE)])
        self.assertEqual(torch.cat(made).tolist(), [10.0 * r + RANK for r in range(SIZE)])
        with self.assertRaisesRegex(ValueError, "do not share out|Tensor's dim 0"):
            dist.all_to_all_single(target, source, None, [9] * SIZE)

    def test_barrier_and_groups(self):
        dist.barrier()
        group = dist.new_group(list(range(0, SIZE, 2)))
        if RANK % 2 == 0:
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=group)
            self.assertEqual(tensor.item(), (SIZE + 1) // 2)
        dist.barrier()

    def test_send_and_receive(self):
        if SIZE == 1:
            return
        up, down = (RANK + 1) % SIZE, (RANK - 1) % SIZE
        # Large ones, both ways at once, sends first: nobody may wait for the other to receive.
        sent = [dist.isend(of_rank(RANK, 300000), peer) for peer in {up, down}]
        for peer in {up, down}:
            tensor = torch.empty(300000)
            dist.recv(tensor, peer)
            self.assertTrue(torch.equal(tensor, of_rank(peer, 300000)))
        for work in sent:
            work.wait()
        # Tags keep messages apart that are received in another order.
        sent = [dist.isend(torch.tensor([float(tag)]), up, tag=tag) for tag in (1, 2)]
        for tag in (2, 1):
            tensor = torch.empty(1)
            dist.recv(tensor, down, tag=tag)
            self.assertEqual(tensor.item(), tag)
        for work in sent:
            work.wait()

    def test_a_group_that_is_done_is_not_aborted(self):
        # The waiting thread goes on before the function that wakes it has returned.
        def succeed_slowly(request):
            succeed(request)
            time.sleep(0.1)
        succeed = _worker.Request.succeed
        store = dist.PrefixStore("done", dist.distributed_c10d._get_default_store())
        with mock.patch.object(_worker.Request, "succeed", succeed_slowly), \
                mock.patch.object(_library.load(), "ncclCommAbort") as abort:
            group = distributed.ProcessGroupTutti(store, RANK, SIZE)
            group.allreduce([torch.ones(2)]).wait()
            group.shutdown()
        abort.assert_not_called()

    def test_refusals(self):
        with self.assertRaisesRegex(ValueError, "contiguous"):
            dist.all_reduce(torch.ones(3, 4).t())
        group = dist.distributed_c10d._get_default_group()
        if not isinstance(group, distributed.ProcessGroupTutti):
            # Before a group's backend in C++ PyTorch itself gives such views their own memory.
            group = group._get_backend(torch.device("cpu"))
        with self.assertRaisesRegex(ValueError, "conjugated"):
            group.broadcast([torch.ones(3, dtype=torch.complex64).conj()], dist.BroadcastOptions())


class Training(unittest.TestCase):
    def train(self, group):
        torch.manual_seed(5)
        model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.Tanh(),
                                    torch.nn.Linear(300, 300), torch.nn.Linear(300, 4)).double()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parallel = torch.nn.parallel.DistributedDataParallel(model, process_group=group,
                                                                 bucket_cap_mb=0.3)
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05, momentum=0.9)
        generator = torch.Generator().manual_seed(RANK)
        losses = []
        for _ in range(8):
            optimizer.zero_grad()
            x = torch.randn(16, 20, generator=generator, dtype=torch.float64)
            loss = torch.nn.functional.cross_entropy(parallel(x), x[:, :4].argmax(1))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, [p.detach() for p in model.parameters()]

    def test_ddp_trains_as_with_gloo(self):
        losses, weights = self.train(None)
        gloo_losses, gloo_weights = self.train(dist.new_group(backend="gloo"))
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(gloo_losses))
        for mine, other in zip(weights, gloo_weights):
            torch.testing.assert_close(mine, other)
        self.assertNotEqual(losses[0], losses[-1])


if __name__ == "__main__":
    unittest.main()
