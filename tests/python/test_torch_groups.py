"""What torch.distributed asks of the tutti backend besides collectives: names of groups, messages
from any rank, the monitored barrier, and what PyTorch builds on them (functional collectives,
DTensor, FSDP2, distributed checkpoints)."""

import json
import os
import shutil
import tempfile
import time
import unittest
from datetime import timedelta

import torch
import torch.distributed as dist

import tutti.torch.distributed  # registers the backend

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
MODERN = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)


def setUpModule():
    torch.set_num_threads(1)
    dist.init_process_group("tutti")


def tearDownModule():
    dist.destroy_process_group()


class Groups(unittest.TestCase):
    def test_groups_end_one_by_one(self):
        for _ in range(2):
            groups = [dist.new_group(list(range(SIZE))) for _ in range(2)]
            for group in groups:
                tensor = torch.ones(1)
                dist.all_reduce(tensor, group=group)
                self.assertEqual(tensor.item(), SIZE)
            dist.destroy_process_group(groups[0])
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=groups[1])
            self.assertEqual(tensor.item(), SIZE)
            dist.destroy_process_group(groups[1])

    @unittest.skipUnless(MODERN, "PyTorch before 2.8")
    def test_names(self):
        groups = [dist.new_group(list(range(SIZE)), group_desc=f"group {i}") for i in range(2)]
        self.assertEqual([group.group_desc for group in groups], ["group 0", "group 1"])
        self.assertEqual(len({group.group_name for group in groups}), 2)
        for group in groups:
            self.assertIs(dist.distributed_c10d._resolve_process_group(group.group_name), group)
            dist.destroy_process_group(group)

    def test_coalesced(self):
        tensors = [torch.full((3,), float(RANK + i)) for i in range(3)]
        dist.all_reduce_coalesced(tensors)
        total = SIZE * (SIZE - 1) / 2
        self.assertEqual([tensor[0].item() for tensor in tensors],
                         [total + SIZE * i for i in range(3)])


@unittest.skipIf(SIZE == 1, "a message needs two ranks")
class Messages(unittest.TestCase):
    def test_from_any_source(self):
        if RANK == 0:
            seen = {}
            for _ in range(2 * (SIZE - 1)):
                tensor = torch.zeros(1000)
                source = dist.recv(tensor, tag=7)
                self.assertEqual(tensor.tolist(), [source * 10.0 + seen.get(source, 0)] * 1000)
                seen[source] = seen.get(source, 0) + 1
            self.assertEqual(seen, {rank: 2 for rank in range(1, SIZE)})
        else:
            for i in range(2):
                dist.send(torch.full((1000,), RANK * 10.0 + i), 0, tag=7)

    def test_from_any_source_then_from_a_named_one(self):
        group = dist.new_group(list(range(SIZE)))
        if RANK == 0:
            works = []
            for _ in range(SIZE - 1):
                tensor = torch.zeros(3)
                works.append((tensor, dist.irecv(tensor, group=group)))
            for tensor, work in works:
                work.wait()
                self.assertTrue(work.is_completed() and work.is_success())
                self.assertEqual(tensor[0].item(), work._source_rank())
            self.assertEqual({work._source_rank() for _, work in works}, set(range(1, SIZE)))
            dist.barrier()
            for rank in range(1, SIZE):  # These were not taken by those before.
                tensor = torch.zeros(5)
                dist.recv(tensor, rank, group=group)
                self.assertEqual(tensor[0].item(), -rank)
        else:
            dist.send(torch.full((3,), float(RANK)), 0, group=group)
            dist.barrier()
            dist.send(torch.full((5,), -float(RANK)), 0, group=group)
        dist.barrier()
        dist.destroy_process_group(group)

    @unittest.skipUnless(MODERN, "older PyTorch does not tell a group that it is destroyed")
    def test_a_group_ends_while_nobody_sends(self):
        group = dist.new_group(list(range(SIZE)))
        if RANK == 0:
            for peer in range(1, SIZE):  # One waits on a connection, others for theirs.
                if peer == 1:
                    dist.recv(torch.zeros(1), peer, group=group)
            work = dist.irecv(torch.zeros(1), group=group)
            dist.destroy_process_group(group)
            with self.assertRaises(RuntimeError):
                work.wait()
        elif RANK == 1:
            dist.send(torch.zeros(1), 0, group=group)
        dist.barrier()
        if RANK != 0:
            dist.destroy_process_group(group)

    @unittest.skipUnless(MODERN, "older PyTorch does not raise what went wrong in the background")
    def test_another_size(self):
        if RANK == 0:
            with self.assertRaisesRegex(ValueError, "sent 12 bytes for a tensor of 16"):
                dist.recv(torch.zeros(4), 1, tag=3)
            tensor = torch.zeros(4)
            dist.recv(tensor, 1, tag=3)  # The connection still serves.
            self.assertEqual(tensor.tolist(), [1.0] * 4)
        elif RANK == 1:
            dist.send(torch.zeros(3), 0, tag=3)
            dist.send(torch.ones(4), 0, tag=3)


class MonitoredBarrier(unittest.TestCase):
    def test_all_come(self):
        for _ in range(3):
            dist.monitored_barrier(timeout=timedelta(seconds=60))
        group = dist.new_group(list(range(SIZE)))
        dist.monitored_barrier(group, wait_all_ranks=True)

    @unittest.skipIf(SIZE == 1, "somebody must stay away")
    def test_names_those_who_stay_away(self):
        group = dist.new_group(list(range(SIZE)))
        absent = list(range(1, SIZE))
        for wait_all, words in ((True, ", ".join(map(str, absent))), (False, "1")):
            dist.barrier()
            begin = time.monotonic()
            if RANK == 0:
                with self.assertRaisesRegex(RuntimeError, f"^Ranks? {words} failed to pass "
                                            f"monitoredBarrier: .* of {SIZE} ranks"):
                    dist.monitored_barrier(group, timedelta(seconds=0.2), wait_all)
                self.assertLess(time.monotonic() - begin, 60)
            dist.barrier()
            if RANK != 0:  # They come late, and hear what rank 0 said.
                with self.assertRaisesRegex(RuntimeError, f"^Rank {RANK} successfully reached .*"
                                            "failed to pass monitoredBarrier"):
                    dist.monitored_barrier(group, timedelta(seconds=60), wait_all)

    @unittest.skipIf(SIZE == 1, "somebody must hear of it")
    def test_no_time_at_all(self):
        group = dist.new_group(list(range(SIZE)))
        with self.assertRaisesRegex(RuntimeError, "Rank 0 timed out in monitoredBarrier"):
            dist.monitored_barrier(group, timedelta(seconds=0 if RANK == 0 else 60))
        dist.barrier()


@unittest.skipUnless(MODERN, "PyTorch before 2.8")
class BuiltOnTop(unittest.TestCase):
    def setUp(self):
        from torch.distributed.device_mesh import init_device_mesh
        self.mesh = init_device_mesh("cpu", (SIZE,))

    def test_functional_collectives(self):
        import torch.distributed._functional_collectives as functional
        group = dist.group.WORLD
        total = SIZE * (SIZE + 1) / 2
        mine = torch.full((SIZE, 2), RANK + 1.0)
        self.assertEqual(functional.all_reduce(mine, "sum", group)[0, 0].item(), total)
        gathered = functional.all_gather_tensor(mine[:1], 0, group)
        self.assertEqual(gathered[:, 0].tolist(), [rank + 1.0 for rank in range(SIZE)])
        scattered = functional.reduce_scatter_tensor(mine, "sum", 0, group)
        self.assertEqual(scattered.tolist(), [[total, total]])
        swapped = functional.all_to_all_single(mine, None, None, group)
        self.assertEqual(swapped[:, 0].tolist(), [rank + 1.0 for rank in range(SIZE)])
        self.assertEqual(functional.broadcast(mine, 0, group)[0, 0].item(), 1.0)

    def test_dtensor(self):
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor
        whole = torch.arange(24.0).reshape(6, 4)
        first = distribute_tensor(whole, self.mesh, [Shard(0)])
        second = distribute_tensor(whole.t().contiguous(), self.mesh, [Replicate()])
        product = first @ second
        torch.testing.assert_close(product.full_tensor(), whole @ whole.t())
        torch.testing.assert_close(first.redistribute(self.mesh, [Shard(1)]).full_tensor(), whole)
        self.assertEqual(first.sum().full_tensor().item(), whole.sum().item())

    def test_fsdp2_trains_as_one_process(self):
        from torch.distributed.fsdp import fully_shard

        def model():
            torch.manual_seed(3)
            return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(),
                                       torch.nn.Linear(16, 6)).double()
        generator = torch.Generator().manual_seed(4)
        inputs = torch.randn(4, SIZE, 5, 6, generator=generator, dtype=torch.float64)
        alone, sharded = model(), model()
        for layer in sharded:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=self.mesh)
        fully_shard(sharded, mesh=self.mesh)
        for net, take in ((alone, slice(None)), (sharded, slice(RANK, RANK + 1))):
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for batch in inputs:
                optimizer.zero_grad()
                net(batch[take]).square().mean().backward()
                optimizer.step()
        for whole, shard in zip(alone.parameters(), sharded.parameters()):
            torch.testing.assert_close(shard.full_tensor(), whole)


    def test_a_checkpoint_is_read_by_other_shards(self):
        import torch.distributed.checkpoint as checkpoint
        from torch.distributed.tensor import Shard, distribute_tensor, zeros
        whole = torch.arange(70.0).reshape(7, 10)
        folders = [tempfile.mkdtemp() if RANK == 0 else None]
        dist.broadcast_object_list(folders, 0)
        state = {"shards": distribute_tensor(whole, self.mesh, [Shard(0)]), "alike": whole + 1,
                 "steps": 5}
        writers = [lambda path: checkpoint.save(state, checkpoint_id=path)]
        if in_cpp():  # PyTorch asks groups in Python for a backend by device, which these lack.
            writers.append(lambda path: checkpoint.async_save(state, checkpoint_id=path).result())
        for turn, write in enumerate(writers):
            path = os.path.join(folders[0], str(turn))
            write(path)
            read = {"shards": zeros(7, 10, device_mesh=self.mesh, placements=[Shard(1)]),
                    "alike": torch.zeros(7, 10), "steps": 0}
            checkpoint.load(read, checkpoint_id=path)
            torch.testing.assert_close(read["shards"].full_tensor(), whole)
            torch.testing.assert_close(read["alike"], whole + 1)
            self.assertEqual(read["steps"], 5)
        dist.barrier()
        if RANK == 0:
            shutil.rmtree(folders[0])


def in_cpp():
    return not isinstance(dist.distributed_c10d._get_default_group(),
                          tutti.torch.distributed.ProcessGroupTutti)


class OnlyInCpp(unittest.TestCase):
    def setUp(self):
        if not in_cpp():
            self.skipTest("the backend in Python does not have it")

    def sparse(self, dense_dims=0):
        """Returns this rank's sparse tensor: rank r brings r values, of which some share their place."""
        count = RANK
        indices = torch.tensor([[0] * count, [i // 2 for i in range(count)]],
                               dtype=torch.int64).reshape(2, count)
        values = torch.full((count, *[2] * dense_dims), RANK + 1.0)
        return torch.sparse_coo_tensor(indices, values, (2, 3, *[2] * dense_dims),
                                       check_invariants=True)

    def test_sparse_sums(self):
        for dense_dims in (0, 1):
            tensor = self.sparse(dense_dims)
            total = tensor.to_dense()
            dist.all_reduce(total)
            for asynchronous in (False, True):
                mine = tensor.clone()
                work = dist.all_reduce(mine, async_op=asynchronous)
                if asynchronous:
                    work.wait()
                self.assertTrue(mine.is_sparse and mine.is_coalesced())
                torch.testing.assert_close(mine.to_dense(), total)

    def test_sparse_refusals(self):
        with self.assertRaisesRegex(ValueError, "SUM only"):
            dist.all_reduce(self.sparse(), op=dist.ReduceOp.MAX)
        if SIZE > 1:
            with self.assertRaisesRegex(ValueError, "another type or other sizes"):
                dist.all_reduce(torch.zeros(2 + RANK, 2).to_sparse())
        dist.barrier()

    def test_sparse_gradients(self):
        """DistributedDataParallel reduces the gradient of a sparse embedding so."""
        torch.manual_seed(5)
        layer = torch.nn.Embedding(10, 3, sparse=True)
        model = torch.nn.parallel.DistributedDataParallel(layer)
        model(torch.tensor([RANK, 7])).sum().backward()
        expected = torch.zeros(10, 3)
        for rank in range(SIZE):
            expected[rank] += 1 / SIZE
            expected[7] += 1 / SIZE
        torch.testing.assert_close(layer.weight.grad.to_dense(), expected)

    def test_profiler_shows_operations(self):
        tensor = torch.ones(4)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            dist.all_reduce(tensor)
            work = dist.broadcast(tensor, 0, async_op=True)
            work.wait()
        names = {event.name for event in profile.events()}
        self.assertLessEqual({"tutti:all_reduce", "tutti:broadcast"}, names)

    def trace(self, function):
        """Returns the entries of the profiler's trace of a function that have a name and a duration."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            function()
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.json")
            profile.export_chrome_trace(path)
            with open(path, encoding="utf-8") as file:
                return [event for event in json.load(file)["traceEvents"] if event.get("dur") is not None]

    def test_profiler_names_the_group(self):
        group = dist.new_group(list(range(SIZE)), group_desc="mine")
        events = self.trace(lambda: dist.all_reduce(torch.ones(4), group=group))
        (entry,) = [event["args"] for event in events if event["name"] == "record_param_comms"]
        self.assertEqual((entry["Process Group Name"], entry["Process Group Description"],
                          entry["Collective name"], entry["In msg nelems"], entry["dtype"], entry["Group size"]),
                         (group.group_name, "mine", "all_reduce", 4, "Float", SIZE))

    @unittest.skipIf(SIZE == 1, "a message needs two ranks")
    def test_profiler_has_an_entry_for_a_batch(self):
        up, down, made = (RANK + 1) % SIZE, (RANK - 1) % SIZE, torch.empty(1000)

        def swap():
            for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(1000), up),
                                                dist.P2POp(dist.irecv, made, down)]):
                work.wait()
        swap()
        events = self.trace(swap)
        spans = {name: [(event["ts"], event["ts"] + event["dur"]) for event in events if event["name"] == name]
                 for name in ("tutti:coalesced", "tutti:send", "tutti:recv")}
        self.assertEqual([len(found) for found in spans.values()], [1, 1, 1], spans)
        (begin, end), *parts = (found[0] for found in spans.values())
        for part_begin, part_end in parts:
            self.assertTrue(begin <= part_begin and part_end <= end + 1, spans)  # in µs, rounded


if __name__ == "__main__":
    unittest.main()
