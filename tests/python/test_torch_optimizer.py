"""What DistributedOptimizer does beside reducing gradients, on every rank of a job of any size."""

import gc
import unittest
import warnings
import weakref

import torch
import torch.nn.functional as F

import tutti.torch as hvd
from test_torch_training import batch_of, make_model, setUpModule, tearDownModule  # noqa: F401


def sgd(parameters, lr=0.1):
    return torch.optim.SGD(parameters, lr=lr)


def adasum(vectors):
    """The scalar rule, in the tree of the ranks."""
    vectors = [vector.clone() for vector in vectors]
    core = 1 << (len(vectors).bit_length() - 1)

    def pair(a, b):
        dot, square_a, square_b = (a * b).sum(), (a * a).sum(), (b * b).sum()
        return a * (1 - dot / (2 * square_a)) + b * (1 - dot / (2 * square_b))
    for i in range(len(vectors) - core):
        vectors[i] = pair(vectors[i], vectors[core + i])
    distance = 1
    while distance < core:
        for i in range(0, core, 2 * distance):
            vectors[i] = pair(vectors[i], vectors[i + distance])
        distance *= 2
    return vectors[0]


def loss_of(model, rank, step, part=slice(None)):
    x, y = batch_of(rank, step)
    return F.cross_entropy(model(x[part]), y[part])


class Case(unittest.TestCase):
    def assert_same(self, first, second):
        for a, b in zip(first.parameters(), second.parameters()):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)

    def assert_mean_step(self, model, step=0, lr=0.1):
        """`model` is make_model() after one step of SGD with all ranks' batches."""
        alone = make_model()
        (sum(loss_of(alone, r, step) for r in range(hvd.size())) / hvd.size()).backward()
        sgd(alone.parameters(), lr).step()
        self.assert_same(model, alone)


class Adasum(Case):
    def expected(self, model, step):
        """Where one step of all ranks, each with its batch, leads from `model`."""
        ends = []
        for rank in range(hvd.size()):
            alone = make_model()
            alone.load_state_dict(model.state_dict())
            loss_of(alone, rank, step).backward()
            sgd(alone.parameters()).step()
            ends.append(list(alone.parameters()))
        return [p.detach() + adasum([end[i].detach() - p.detach() for end in ends])
                for i, p in enumerate(model.parameters())]

    def train(self, passes, by_closure=False):
        model = make_model()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(),
                                             op=hvd.Adasum, backward_passes_per_step=passes)

        def backward(step):
            optimizer.zero_grad()
            rows = 4 // passes
            for i in range(passes):
                (loss_of(model, hvd.rank(), step, slice(i * rows, (i + 1) * rows)) / passes).backward()
            return 0.0
        for step in range(3):
            wanted = self.expected(model, step)
            if by_closure:
                optimizer.step(lambda: backward(step))
            else:
                backward(step)
                optimizer.step()
            for p, end in zip(model.parameters(), wanted):
                torch.testing.assert_close(p.detach(), end, rtol=1e-9, atol=1e-9)

    def test_steps_are_combined(self):
        self.train(1)

    def test_every_step_steps_however_many_passes(self):
        self.train(2)
        self.train(4)

    def test_closures(self):
        self.train(1, by_closure=True)

    def test_assertions(self):
        if hvd.size() == 1:
            self.skipTest("alone nothing is combined")
        model = make_model()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(),
                                             op=hvd.Adasum)
        loss_of(model, hvd.rank(), 0).backward()
        with self.assertRaisesRegex(AssertionError, "zero_grad"):
            optimizer.zero_grad()
        with self.assertRaisesRegex(AssertionError, "backward_passes_per_step"):
            loss_of(model, hvd.rank(), 0).backward()
        optimizer.step()
        optimizer.zero_grad()
        with self.assertRaisesRegex(AssertionError, "skip_synchronize"):
            with optimizer.skip_synchronize():
                pass


class WhoTakesPart(Case):
    def test_a_rank_outside_the_set_steps_by_itself(self):
        if hvd.size() < 3:
            self.skipTest("needs ranks in the set and one outside")
        pair = hvd.add_process_set([0, 1])
        for op in (hvd.Average, hvd.Adasum):
            model = make_model()
            optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(),
                                                 op=op, process_set=pair)
            for step in range(2):
                optimizer.zero_grad()
                loss_of(model, hvd.rank(), step).backward()
                optimizer.step()
            first = hvd.allgather(model[0].weight.detach()[None])
            self.assertTrue(torch.equal(first[0], first[1]))
            alone = make_model()
            reference = sgd(alone.parameters())
            for step in range(2):
                reference.zero_grad()
                loss_of(alone, hvd.rank(), step).backward()
                reference.step()
            if hvd.rank() >= 2:
                self.assert_same(model, alone)
        hvd.remove_process_set(pair)

    def test_a_rank_alone_is_left_alone(self):
        if hvd.size() > 1:
            self.skipTest("there are others")
        model, passes = make_model(), 3
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()))
        for _ in range(passes):  # as Horovod allows it there
            (loss_of(model, 0, 0) / passes).backward()
        optimizer.step()
        self.assert_mean_step(model)

    def test_sync_batch_norm_in_a_set(self):
        if hvd.size() < 3:
            self.skipTest("needs ranks in the set and one outside")
        pair = hvd.add_process_set([0, 1])
        if pair.included():
            together, alone = hvd.SyncBatchNorm(2, process_set=pair).double(), torch.nn.BatchNorm1d(2)
            rows = [batch_of(r, 0)[0][:, :2] for r in range(2)]
            torch.testing.assert_close(together(rows[hvd.rank()]),
                                       alone.double()(torch.cat(rows))[4 * hvd.rank():][:4])
        hvd.remove_process_set(pair)

    def test_joined_ranks_bring_zeros(self):
        model = make_model()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
        # Rank r has r + 1 batches, as data that does not come out even.
        for step in range(hvd.rank() + 1):
            optimizer.zero_grad()
            loss_of(model, hvd.rank(), step).backward()
            optimizer.step()
        self.assertEqual(hvd.join(), hvd.size() - 1)
        alone = make_model()
        reference = sgd(alone.parameters())
        for step in range(hvd.size()):
            reference.zero_grad()
            here = [loss_of(alone, r, step) for r in range(step, hvd.size())]
            (sum(here) / hvd.size()).backward()
            reference.step()
        if hvd.rank() == hvd.size() - 1:
            self.assert_same(model, alone)


class Groups(Case):
    def test_numbers_and_lists(self):
        for groups in (1, 2, 99, "lists", "with an empty one"):
            model = make_model()
            parameters = list(model.parameters())
            if groups == "lists":
                groups = [parameters[:1], parameters[1:3]]
            elif groups == "with an empty one":
                groups = [parameters, []]
            optimizer = hvd.DistributedOptimizer(sgd(parameters), model.named_parameters(),
                                                 groups=groups)
            loss_of(model, hvd.rank(), 0).backward()
            optimizer.step()
            self.assert_mean_step(model)

    def test_a_number_is_the_number_of_groups(self):
        from tutti.torch._reducer import _groups
        parameters = [torch.nn.Parameter(torch.ones(1)) for _ in range(6)]
        for count, sizes in ((1, [6]), (4, [2, 2, 1, 1]), (5, [2, 1, 1, 1, 1]), (9, [1] * 6)):
            made = _groups(parameters, 0, count)
            self.assertEqual([len(group) for group in made], sizes)
            self.assertTrue(all(p is q for p, q in zip(sum(made, []), parameters)))

    def test_two_optimizers_at_once(self):
        models = [make_model(), make_model()]
        optimizers = [
            hvd.DistributedOptimizer(sgd(m.parameters()), m.named_parameters(prefix=str(i)), groups=1)
            for i, m in enumerate(models)]
        sum(loss_of(m, hvd.rank(), 0) for m in models).backward()
        for model, optimizer in zip(models, optimizers):
            optimizer.step()
            self.assert_mean_step(model)


class Steps(Case):
    def test_a_closure_reduces_what_it_computes(self):
        model = make_model()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
        calls = []

        def closure():
            calls.append(1)
            optimizer.zero_grad()
            loss = loss_of(model, hvd.rank(), 0)
            loss.backward()
            return loss
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            loss = optimizer.step(closure)
        torch.testing.assert_close(loss, loss_of(make_model(), hvd.rank(), 0))
        self.assertEqual(len(calls), 1)
        self.assert_mean_step(model)

    def test_lbfgs_calls_it_more_than_once(self):
        models = [make_model(), make_model()]
        optimizers = [
            hvd.DistributedOptimizer(torch.optim.LBFGS(models[0].parameters(), max_iter=5),
                                     models[0].named_parameters()),
            torch.optim.LBFGS(models[1].parameters(), max_iter=5)]

        def closure(i):
            optimizers[i].zero_grad()
            ranks = [hvd.rank()] if i == 0 else range(hvd.size())
            loss = sum(loss_of(models[i], r, 0) for r in ranks) / len(ranks)
            loss.backward()
            # The optimizer compares losses, too.
            return hvd.allreduce(loss.detach(), name="loss") if i == 0 else loss
        for i in range(2):
            optimizers[i].step(lambda: closure(i))
        for a, b in zip(models[0].parameters(), models[1].parameters()):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)

    def test_step_after_synchronize_warns_in_horovods_words(self):
        model = make_model()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
        loss_of(model, hvd.rank(), 0).backward()
        optimizer.synchronize()
        with self.assertWarnsRegex(UserWarning, "optimizer.step\\(\\) called without "
                                                "optimizer.skip_synchronize\\(\\)"):
            optimizer.step()
        self.assertEqual(set(optimizer._parameter_names.values()),
                         {name for name, _ in model.named_parameters()})

    def test_clipping_and_schedulers(self):
        model, alone = make_model(), make_model()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
        reference = sgd(alone.parameters())
        schedulers = [torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=6)
                      for o in (optimizer, reference)]
        for step in range(5):
            optimizer.zero_grad()
            loss_of(model, hvd.rank(), step).backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            with optimizer.skip_synchronize():
                optimizer.step()
            reference.zero_grad()
            (sum(loss_of(alone, r, step) for r in range(hvd.size())) / hvd.size()).backward()
            torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.05)
            reference.step()
            for scheduler in schedulers:
                scheduler.step()
        self.assert_same(model, alone)
        self.assertEqual(optimizer.param_groups[0]["lr"], reference.param_groups[0]["lr"])

    def test_a_group_added_later(self):
        model = make_model()
        named = list(model.named_parameters())
        optimizer = hvd.DistributedOptimizer(sgd(model[0].parameters()), named)
        optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.1})
        loss_of(model, hvd.rank(), 0).backward()
        optimizer.step()
        self.assert_mean_step(model)
        other = hvd.DistributedOptimizer(sgd(model[0].parameters()), named[:2])
        with self.assertRaisesRegex(ValueError, "named_parameters lacks 2"):
            other.add_param_group({"params": model[2].parameters()})
        self.assertEqual(len(other.param_groups), 1)

    def test_a_failure_leaves_nothing_behind(self):
        if hvd.size() == 1:
            self.skipTest("one rank agrees with itself")
        first = torch.nn.Parameter(torch.ones(2 if hvd.rank() == 0 else 3))  # on which they disagree
        second = torch.nn.Parameter(torch.ones(4))
        optimizer = hvd.DistributedOptimizer(sgd([first, second]))
        for step in range(2):
            optimizer.zero_grad()
            (first.sum() + (second * (hvd.rank() + step)).sum()).backward()
            with self.assertRaisesRegex(hvd.HorovodInternalError, r"\(2\) on rank 0"):
                optimizer.step()
            # The other gradient was waited for all the same.
            self.assertEqual(second.grad.tolist(), [step + (hvd.size() - 1) / 2] * 4)


class OneAfterAnother(Case):
    """Optimizers on the same parameters."""

    def reference(self, steps):
        alone = make_model()
        for step, lr in enumerate(steps):
            optimizer = sgd(alone.parameters(), lr)
            optimizer.zero_grad()
            (sum(loss_of(alone, r, step) for r in range(hvd.size())) / hvd.size()).backward()
            optimizer.step()
        return alone

    def test_the_newest_reduces(self):
        for op in (hvd.Average, hvd.Adasum):  # of the first
            model = make_model()
            first = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), op=op)
            if op == hvd.Average:
                loss_of(model, hvd.rank(), 0).backward()
                first.step()
            second = hvd.DistributedOptimizer(sgd(model.parameters(), 0.2), model.named_parameters())
            begin = 1 if op == hvd.Average else 0
            for step in range(begin, 3):
                second.zero_grad()
                loss_of(model, hvd.rank(), step).backward()
                second.step()
            self.assert_same(model, self.reference([0.1] * begin + [0.2] * (3 - begin)))
            if op == hvd.Average and hvd.size() > 1:
                with self.assertRaisesRegex(ValueError, "made later has taken over"):
                    first.step()
                del second
                first.zero_grad()
                loss_of(model, hvd.rank(), 3).backward()
                first.step()
                self.assert_same(model, self.reference([0.1, 0.2, 0.2, 0.1]))

    def test_a_plain_one_afterwards(self):
        model, alone = make_model(), make_model()
        optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
        gone = weakref.ref(optimizer)
        gc.disable()  # ranks must not differ in when it goes
        try:
            del optimizer
            self.assertIsNone(gone())
        finally:
            gc.enable()
        for step in range(3):
            for m in (model, alone):
                optimizer = sgd(m.parameters())
                optimizer.zero_grad()
                loss_of(m, hvd.rank(), step).backward()
                optimizer.step()
        self.assert_same(model, alone)
        for p in model.parameters():
            self.assertFalse(getattr(p, "_post_accumulate_grad_hooks", None))

    def test_a_set_that_this_rank_is_not_in(self):
        if hvd.size() < 3:
            self.skipTest("needs ranks in the set and one outside")
        pair = hvd.add_process_set([0, 1])
        model = make_model()
        first = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
        second = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(),
                                          process_set=pair)
        for step in range(2):
            second.zero_grad()
            loss_of(model, hvd.rank(), step).backward()
            second.step()
        hvd.barrier()
        del first
        hvd.remove_process_set(pair)


class Sparse(Case):
    def test_an_embedding_that_one_rank_does_not_use(self):
        table = torch.nn.Embedding(5, 2, sparse=True)
        torch.nn.init.zeros_(table.weight)
        optimizer = hvd.DistributedOptimizer(sgd(table.parameters(), 1.0), table.named_parameters())
        last = hvd.size() - 1
        for step in range(2):  # the last rank leaves it out in the second step
            optimizer.zero_grad()
            if step == 0 or hvd.rank() != last or last == 0:
                table(torch.tensor([hvd.rank()])).sum().backward()
            optimizer.step()
        moved = [-2 / hvd.size() if rank < max(last, 1) else -1 / hvd.size() if rank == last else 0.0
                 for rank in range(5)]
        torch.testing.assert_close(table.weight.detach()[:, 0], torch.tensor(moved))


    def test_sent_as_dense_it_is_sparse_again(self):
        """For optimizers that take sparse gradients only, or leave alone what has none."""
        makes = (lambda p: torch.optim.SparseAdam(list(p), lr=0.1),
                 lambda p: torch.optim.Adagrad(p, lr=0.1))
        for make in makes:
            for groups in (None, 1):
                tables = [torch.nn.Embedding(6, 2, sparse=True) for _ in range(2)]
                for table in tables:
                    torch.nn.init.ones_(table.weight)
                optimizer = hvd.DistributedOptimizer(make(tables[0].parameters()), groups=groups,
                                                     sparse_as_dense=True)
                alone = make(tables[1].parameters())
                for step in range(3):
                    optimizer.zero_grad()
                    if step != 1 or hvd.rank() == 0:  # the others leave it out once
                        (tables[0](torch.tensor([hvd.rank() + step % 2])) ** 2).sum().backward()
                    optimizer.step()
                    gradient = tables[0].weight.grad
                    self.assertTrue(gradient.is_sparse)
                    self.assertEqual(gradient.sparse_dim(), 1)
                    alone.zero_grad()
                    ranks = range(hvd.size() if step != 1 else 1)
                    (sum((tables[1](torch.tensor([r + step % 2])) ** 2).sum() for r in ranks)
                     / hvd.size()).backward()
                    alone.step()
                torch.testing.assert_close(tables[0].weight, tables[1].weight)


class Attributes(Case):
    def test_horovods(self):
        model = make_model()
        for op in (hvd.Average, hvd.Adasum):
            optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), op=op,
                                                 backward_passes_per_step=3)
            self.assertEqual((optimizer.op, optimizer.backward_passes_per_step), (op, 3))
            self.assertEqual(optimizer.gradient_predivide_factor, 1.0)
            self.assertIs(optimizer.process_set, hvd.global_process_set)
            self.assertFalse(optimizer.sparse_as_dense)
            optimizer.set_backward_passes_per_step(2)
            self.assertEqual(optimizer.backward_passes_per_step, 2)
            optimizer.backward_passes_per_step = 1
            loss_of(model, hvd.rank(), 0).backward()
            optimizer.step()  # it was the last pass

    def test_groups_count_more_than_num_groups(self):
        model = make_model()
        with self.assertWarnsRegex(DeprecationWarning, "num_groups is deprecated"):
            optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), groups=2, num_groups=4)
        loss_of(model, hvd.rank(), 0).backward()
        optimizer.step()
        self.assert_mean_step(model)
        self.assertLessEqual(len(optimizer._settings.groups), 2)


class Refusals(Case):
    def test_settings(self):
        model = make_model()
        for sentence, options in (
                ("is no ProcessSet", dict(process_set=None)),
                ("has not been added", dict(process_set=hvd.ProcessSet([0]))),
                ("gradient_predivide_factor=0", dict(gradient_predivide_factor=0)),
                ("op=Average only", dict(op=hvd.Sum, gradient_predivide_factor=2.0)),
                ("is no compressor", dict(compression="fp16")),
                ("no reduction operator 9", dict(op=9)),
                ("whole number above 0", dict(backward_passes_per_step=0)),
                ("whole number above 0", dict(backward_passes_per_step=1.5)),
                ("not be negative", dict(groups=-1)),
                ("not be negative", dict(num_groups=-1)),
                ("list of lists", dict(groups=[model[0].weight])),
                ("is not the optimizer's", dict(groups=[[torch.ones(1)]]))):
            with self.assertRaisesRegex(ValueError, sentence):
                hvd.DistributedOptimizer(sgd(model.parameters()), **options)


if __name__ == "__main__":
    unittest.main()
