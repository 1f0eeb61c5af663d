"""tutti.torch.elastic on every rank of a job whose ranks all live, and Horovod's name."""

import random
import unittest

import torch

import tutti.torch as hvd
from tutti.torch import elastic


def setUpModule():
    torch.set_num_threads(1)
    hvd.init()


def tearDownModule():
    hvd.shutdown()


class Sampler(unittest.TestCase):
    def test_no_sample_is_lost_or_doubled(self):
        data = list(range(12 * hvd.size()))
        sampler = elastic.ElasticSampler(data, shuffle=True, seed=3)
        first = [sampler.get_indices(i, 2) for i in range(2)]
        for i in range(2):
            sampler.record_batch(i, 2)
        state = elastic.TorchState(sampler=sampler)
        state.sync()
        self.assertEqual(len(sampler.processed_indices), 4 * hvd.size())
        mine = [i for batch in first for i in batch] + list(sampler)
        everything = [i for part in hvd.allgather_object(mine) for i in part]
        self.assertEqual(sorted(everything), data)
        sampler.set_epoch(1)
        self.assertEqual(len(sampler), 12)

    def test_uneven(self):
        sampler = elastic.ElasticSampler(list(range(hvd.size() + 1)), shuffle=False)
        parts = hvd.allgather_object(list(sampler))
        self.assertEqual({len(part) for part in parts}, {2})
        self.assertEqual({i for part in parts for i in part}, set(range(hvd.size() + 1)))


    def test_batches_are_counted_on_after_a_restore(self):
        data = list(range(12 * hvd.size()))
        for counted_on in (False, True):
            sampler = elastic.ElasticSampler(data, shuffle=False)
            state = elastic.TorchState(sampler=sampler)
            done = []
            for batch in range(4):
                done += sampler.get_indices(batch, 2)
                sampler.record_batch(batch, 2)
            state.commit()
            state.restore()
            self.assertEqual(len(sampler.indices), 4)
            for batch, _ in enumerate(range(2), 4 if counted_on else 0):
                done += sampler.get_indices(batch, 2)
                sampler.record_batch(batch, 2)
            state.commit()
            everything = [i for part in hvd.allgather_object(done) for i in part]
            self.assertEqual(sorted(everything), data)
            self.assertEqual(len(sampler.processed_indices), len(data))
            with self.assertWarnsRegex(UserWarning, "notes nothing: this pass has 4 samples"):
                sampler.record_batch(9, 2)

    def test_indices_of_any_kind(self):
        for indices in (torch.tensor([0, 1]), (i for i in (0, 1)), [0, 1]):
            sampler = elastic.ElasticSampler(list(range(4)), shuffle=False)
            sampler.record_indices(indices)
            sampler.reset()
            self.assertEqual(sampler.remaining_indices, [2, 3])
            self.assertEqual(sampler.unshared().tolist(), [0, 1])


    def test_horovods_attributes(self):
        sampler = elastic.ElasticSampler(list(range(2 * hvd.size())), shuffle=False)
        self.assertEqual((sampler.rank, sampler.num_replicas), (hvd.rank(), hvd.size()))
        # What is left is dealt out when a pass begins.
        sampler.remaining_indices = list(range(hvd.size()))
        self.assertEqual(list(sampler), [hvd.rank()])
        self.assertEqual((sampler.indices, len(sampler)), ([hvd.rank()], 1))


    def test_a_state_of_horovods(self):
        sampler = elastic.ElasticSampler(list(range(10)), shuffle=False)
        sampler.load_state_dict({"epoch": 2, "processed_num": 4})
        self.assertEqual((sampler.epoch, sampler.processed_num), (2, 4))
        self.assertEqual(sampler.remaining_indices, [4, 5, 6, 7, 8, 9])
        self.assertEqual(sampler.state_dict()["processed_num"], 4)
        order = list(range(10))
        random.Random(3 + 2).shuffle(order)
        sampler = elastic.ElasticSampler(list(range(10)), seed=3)
        sampler.load_state_dict({"epoch": 2, "processed_num": 4})
        self.assertEqual(sampler.processed_indices, set(order[:4]))


class HorovodsState(unittest.TestCase):
    """Programs with states of their own, made as Horovod has them."""

    def test_a_subclass_of_state(self):
        class Mine(elastic.State):
            def __init__(self, bcast_object, get_rank):
                super().__init__(bcast_object, get_rank)
                self.value = self.kept = get_rank()

            def save(self):
                self.kept = self.value

            def restore(self):
                self.value = self.kept

            def sync(self):
                self.value = self.kept = self._bcast_object((self._rank(), self.value))

        state = Mine(bcast_object=hvd.broadcast_object, get_rank=hvd.rank)

        @elastic.run
        def train(state):
            if state.value == (0, 0):
                state.value = "lost"
                raise hvd.HorovodInternalError("as if")
            return state.value
        # Restored, and synchronised once more: a pair in a pair.
        self.assertEqual(train(state), (0, (0, 0)))
        state.commit()
        self.assertEqual(elastic.State()._bcast_object(hvd.rank()), 0)

    def test_an_object_state(self):
        state = elastic.ObjectState(hvd.broadcast_object, hvd.rank, epoch=hvd.rank())
        state.sync()
        self.assertEqual((state.epoch, state._saved), (0, {"epoch": 0}))

    def test_one_rank_is_told_of_hosts(self):
        for state in (elastic.ObjectState(epoch=1), elastic.TorchState(epoch=1)):
            # Programs written for Horovod wait for their state's queue to fill.
            self.assertTrue(state._host_messages.empty())
            if hvd.rank() == hvd.size() - 1:
                state.on_hosts_updated(12.5, 1)
                self.assertFalse(state._host_messages.empty())
            for call in (state.commit, state.check_host_updates):
                with self.assertRaises(hvd.HostsUpdatedInterrupt):
                    call()
                if hvd.rank() == 0:
                    state.on_hosts_updated(13.5)
            with self.assertRaises(hvd.HostsUpdatedInterrupt):
                state.commit()
            self.assertTrue(state._host_messages.empty())
            state.commit()

    def test_handlers(self):
        from tutti.torch.elastic.state import (ModelStateHandler, StateHandler,
                                               get_handler_registry, set_handler_registry)

        class Counter:
            def __init__(self, count):
                self.count = count

        class CounterHandler(StateHandler):
            def __init__(self, value):
                super().__init__(value)
                self.save()

            def save(self):
                self.saved = self.value.count

            def restore(self):
                self.value.count = self.saved

            def sync(self):
                self.value.count = self.saved = hvd.broadcast_object(self.value.count,
                                                                     self.root_rank)

        class Loud(ModelStateHandler):
            synced = 0

            def sync(self):
                super().sync()
                Loud.synced += 1

        before = get_handler_registry()
        self.assertEqual(len(before), 3)
        self.addCleanup(set_handler_registry, before)
        set_handler_registry([(Counter, CounterHandler), (torch.nn.Linear, Loud), *before])
        counter, model = Counter(hvd.rank()), torch.nn.Linear(1, 1)
        with torch.no_grad():
            model.weight.fill_(float(hvd.rank()))
        state = elastic.TorchState(model=model, counter=counter)
        counter.count = 50
        state.restore()
        self.assertEqual(counter.count, hvd.rank())
        state.sync()
        self.assertEqual((counter.count, model.weight.item(), Loud.synced), (0, 0.0, 1))
        state.counter = Counter(7)
        state.counter.count = 8
        state.restore()
        self.assertEqual(state.counter.count, 7)


class State(unittest.TestCase):
    def test_a_model_and_an_optimizer_may_be_replaced(self):
        def filled(value):
            model = torch.nn.Linear(2, 1)
            with torch.no_grad():
                model.weight.fill_(value)
            return model, torch.optim.SGD(model.parameters(), lr=value)
        state = elastic.TorchState(*filled(1.0), epoch=0)
        state.model, state.optimizer = model, optimizer = filled(5.0)

        def change(value):
            with torch.no_grad():
                model.weight.fill_(value)
            optimizer.param_groups[0]["lr"] = value
        change(6.0)
        state.restore()  # to what it was when it came
        self.assertEqual((model.weight.tolist(), optimizer.param_groups[0]["lr"]), ([[5.0] * 2], 5.0))
        change(7.0 + hvd.rank())
        state.commit()
        change(9.0)
        state.restore()
        self.assertEqual(model.weight.tolist(), [[7.0 + hvd.rank()] * 2])
        state.sync()
        self.assertEqual((model.weight.tolist(), optimizer.param_groups[0]["lr"]), ([[7.0] * 2], 7.0))

    def test_without_a_model(self):
        state = elastic.TorchState(epoch=3)
        self.assertIsNone(state.model)
        self.assertIsNone(state.optimizer)
        state.sync()
        state.model = torch.nn.Linear(2, 1)
        state.save()
        with torch.no_grad():
            state.model.weight.add_(1)
        before = state.model.weight.clone()
        state.restore()
        self.assertFalse(torch.equal(state.model.weight, before))
        state.model = None
        state.restore()
        self.assertIsNone(state.model)

    def test_commit_restore_sync(self):
        model = torch.nn.Linear(2, 1)
        with torch.no_grad():
            model.weight.fill_(float(hvd.rank()))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (hvd.rank() + 1))
        state = elastic.TorchState(model=model, optimizer=optimizer, epoch=hvd.rank() + 5)
        state.sync()
        self.assertEqual((state.epoch, optimizer.param_groups[0]["lr"]), (5, 0.1))
        self.assertEqual(model.weight.tolist(), [[0.0, 0.0]])
        state.epoch = 9
        with torch.no_grad():
            model.weight.fill_(3.0)
        state.commit()
        state.epoch = 11
        with torch.no_grad():
            model.weight.fill_(4.0)
        state.restore()
        self.assertEqual((state.epoch, model.weight.tolist()), (9, [[3.0, 3.0]]))

    def test_a_death_in_sync_leaves_the_commit_whole(self):
        from tutti import elastic as plain
        from tutti.torch.elastic.state import (ModelStateHandler, get_handler_registry,
                                               set_handler_registry)

        class Kept(ModelStateHandler):
            pass
        before = get_handler_registry()
        self.addCleanup(set_handler_registry, before)
        set_handler_registry([(torch.nn.Bilinear, Kept), *before])

        def fill(state, value):
            state.batch = int(value)
            for model in (getattr(state, "model", None), getattr(state, "other", None)):
                if model is not None:
                    torch.nn.init.constant_(model.weight, value)
        for kind in (plain.ObjectState, elastic.ObjectState, elastic.TorchState):
            class Dying(kind):
                def _broadcast_object(self, *args):
                    raise hvd.HorovodInternalError("as if a rank had died")
            models = {} if kind is not elastic.TorchState else {
                "model": torch.nn.Linear(2, 1), "other": torch.nn.Bilinear(1, 1, 1)}
            state = Dying(batch=0, **models)
            fill(state, 10.0)
            state.commit()
            fill(state, 17.0)
            with self.assertRaises(hvd.HorovodInternalError):
                state.sync()
            state.restore()
            self.assertEqual(state.batch, 10)
            for model in models.values():
                self.assertEqual(model.weight.unique().tolist(), [10.0])

    def test_run_goes_on_after_a_failure(self):
        calls, resets = [], []
        state = elastic.ObjectState(step=0)
        state.register_reset_callbacks([lambda: resets.append(state.step)])

        @elastic.run
        def train(state):
            calls.append(state.step)
            while state.step < 6:
                shape = 2
                if state.step == 3 and len(calls) == 1:
                    state.commit()
                    state.step += 1  # not committed: lost
                    if hvd.size() == 1:
                        raise hvd.HorovodInternalError("as if")
                    shape = 2 + hvd.rank()  # the ranks disagree
                total = hvd.allreduce(torch.ones(shape), name=f"step{state.step}", op=hvd.Sum)
                self.assertEqual(total[0], hvd.size())
                state.step += 1
            return "done"

        self.assertEqual(train(state), "done")
        self.assertEqual((calls, resets), ([0, 3], [3]))

    def test_interrupt_keeps_the_state(self):
        state, calls = elastic.ObjectState(step=0), []

        @elastic.run
        def train(state):
            calls.append(state.step)
            if len(calls) == 1:
                state.step = 7
                raise hvd.HostsUpdatedInterrupt(skip_sync=True)
            return state.step

        self.assertEqual(train(state), 7)
        self.assertEqual(calls, [0, 7])


class Alias(unittest.TestCase):
    def test_horovods_name(self):
        import horovod.torch as alias
        from horovod.torch.mpi_ops import allreduce
        import horovod.torch.elastic as alias_elastic
        self.assertIs(alias, hvd)
        self.assertIs(allreduce, hvd.allreduce)
        self.assertIs(alias_elastic, elastic)
        from horovod.common.exceptions import HorovodInternalError
        from horovod.common.process_sets import ProcessSet
        from horovod.torch.elastic.state import TorchState
        self.assertIs(HorovodInternalError, hvd.HorovodInternalError)
        self.assertIs(ProcessSet, hvd.ProcessSet)
        self.assertIs(TorchState, elastic.TorchState)


if __name__ == "__main__":
    unittest.main()
