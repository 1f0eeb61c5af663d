"""Training with tutti.torch gives what one process gives, on every rank of a job of any size."""

import copy
import unittest

import torch
import torch.nn.functional as F

import tutti.torch as hvd
from tutti._basics import job


def setUpModule():
    torch.set_num_threads(1)
    hvd.init()


def tearDownModule():
    hvd.shutdown()


def make_model(seed=7):
    torch.manual_seed(seed)
    layers = torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
    return torch.nn.Sequential(*layers).double()


def batch_of(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    return x, x[:, :3].argmax(1)


def train_alone(make_optimizer, steps, seed=7):
    """All ranks' batches in one process."""
    model = make_model(seed)
    optimizer = make_optimizer(model.parameters())
    for step in range(steps):
        optimizer.zero_grad()
        xs, ys = zip(*[batch_of(r, step) for r in range(hvd.size())])
        F.cross_entropy(model(torch.cat(xs)), torch.cat(ys)).backward()
        optimizer.step()
    return model


def train(make_optimizer, steps, **options):
    model = make_model()
    optimizer = hvd.DistributedOptimizer(make_optimizer(model.parameters()),
                                         model.named_parameters(), **options)
    for step in range(steps):
        optimizer.zero_grad()
        x, y = batch_of(hvd.rank(), step)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


OPTIMIZERS = (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
              lambda p: torch.optim.Adam(p, lr=0.01))


class DistributedOptimizer(unittest.TestCase):
    def assert_same(self, first, second, tolerance=1e-9):
        for a, b in zip(first.parameters(), second.parameters()):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)

    def test_as_in_one_process(self):
        for make in OPTIMIZERS:
            alone = train_alone(make, 6)
            self.assert_same(train(make, 6), alone)
            self.assert_same(train(make, 6, num_groups=2), alone)
            self.assert_same(train(make, 6, gradient_predivide_factor=2.0), alone)
            self.assert_same(train(make, 6, compression=hvd.Compression.fp16), alone, 0.03)

    def test_it_is_the_users_class(self):
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)
        optimizer = hvd.DistributedOptimizer(inner)
        self.assertIsInstance(optimizer, torch.optim.SGD)
        x, y = batch_of(hvd.rank(), 0)
        F.cross_entropy(model(x), y).backward()
        inner_grad = model[0].weight.grad.clone()
        optimizer.step()
        if hvd.size() > 1:
            self.assertFalse(torch.equal(inner_grad, model[0].weight.grad))
        scheduler.step()
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.05)

    def test_passes_add_up(self):
        model = make_model()
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                             model.named_parameters(), backward_passes_per_step=2)
        x, y = batch_of(hvd.rank(), 0)
        (F.cross_entropy(model(x[:2]), y[:2]) / 2).backward()
        (F.cross_entropy(model(x[2:]), y[2:]) / 2).backward()
        optimizer.step()
        self.assert_same(model, train_alone(lambda p: torch.optim.SGD(p, lr=0.1), 1))
        if hvd.size() == 1:
            return  # alone it is not counted
        optimizer.set_backward_passes_per_step(1)
        F.cross_entropy(model(x), y).backward()
        with self.assertRaisesRegex(AssertionError, "backward_passes_per_step"):
            F.cross_entropy(model(x), y).backward()
        with self.assertRaisesRegex(AssertionError, "zero_grad"):
            optimizer.zero_grad()
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()

    def test_parameters_without_a_gradient(self):
        used, idle = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([used, idle], lr=1.0))
        # Each rank leaves another one out, but the last brings both.
        loss = used.sum() if hvd.rank() % 2 == 0 else idle.sum()
        loss.backward()
        optimizer.step()
        even = (hvd.size() + 1) // 2
        torch.testing.assert_close(used.detach(), torch.full((2,), 1 - even / hvd.size()))
        torch.testing.assert_close(idle.detach(), torch.full((3,), even / hvd.size()))

    def test_sparse_gradients(self):
        for as_dense in (False, True):
            torch.manual_seed(1)
            table = torch.nn.Embedding(5, 2, sparse=True)
            before = table.weight.detach().clone()
            optimizer = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0),
                                                 table.named_parameters(), sparse_as_dense=as_dense)
            table(torch.tensor([hvd.rank()])).sum().backward()
            optimizer.step()
            moved = before - table.weight.detach()
            expected = [[1 / hvd.size() if i < hvd.size() else 0.0] * 2 for i in range(5)]
            torch.testing.assert_close(moved, torch.tensor(expected))

    def test_refusals(self):
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        named = list(model.named_parameters())
        for sentence, arguments in (
                ("names these twice: 0.weight", dict(named_parameters=named + named[:1])),
                ("lacks 1 of the optimizer's 4", dict(named_parameters=named[:-1])),
                ("pairs of name and parameter", dict(named_parameters=[p for _, p in named])),
                ("op=Average only", dict(op=hvd.Sum, gradient_predivide_factor=2.0)),
                ("backward_passes_per_step", dict(backward_passes_per_step=0)),
                ("stands in two groups", dict(groups=[[named[0][1]], [named[0][1]]]))):
            with self.assertRaisesRegex(ValueError, sentence):
                hvd.DistributedOptimizer(inner, **arguments)


class Broadcasts(unittest.TestCase):
    def test_parameters_and_optimizer_state(self):
        model = make_model(seed=hvd.rank())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01 * (hvd.rank() + 1))
        if hvd.rank() == 0:  # the others have no state yet
            x, y = batch_of(0, 0)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.01)
        state = optimizer.state_dict()["state"][0]
        self.assertGreater(state["exp_avg"].abs().sum().item(), 0)
        everything = [p.detach().flatten() for p in model.parameters()] + \
            [state["exp_avg"].flatten(), state["exp_avg_sq"].flatten()]
        mine = torch.cat(everything)
        for other in hvd.allgather(mine[None]):
            self.assertTrue(torch.equal(other, mine))
        with self.assertRaisesRegex(ValueError, "LBFGS cannot be broadcast"):
            hvd.broadcast_optimizer_state(torch.optim.LBFGS(model.parameters()), 0)


    def test_an_optimizer_without_state_gets_gradients(self):
        fixed = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
        model = make_model()
        before = [p.detach().clone() for p in model.parameters()]
        inner = torch.optim.SGD([*model.parameters(), fixed], lr=0.5, weight_decay=0.1)
        optimizer = hvd.DistributedOptimizer(inner)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        self.assertIsNone(fixed.grad)
        for p, old in zip(model.parameters(), before):
            self.assertTrue(torch.equal(p.grad, torch.zeros_like(p)))
            self.assertTrue(torch.equal(p, old))  # no step was done

    def test_a_scheduler_made_before_the_wrapping(self):
        # It holds the plain optimizer, whose rate has to be the one that steps are made with.
        for make in (lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9),
                     lambda p: torch.optim.Adam(p, lr=0.5)):
            for op in (hvd.Average, hvd.Adasum):
                model = make_model()
                inner = make(model.parameters())
                scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)
                optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), op=op)
                hvd.broadcast_optimizer_state(optimizer, root_rank=0)
                for step in range(3):
                    optimizer.zero_grad()
                    x, y = batch_of(hvd.rank(), step)
                    F.cross_entropy(model(x), y).backward()
                    optimizer.step()
                    scheduler.step()
                rates = hvd.allgather_object((optimizer.param_groups[0]["lr"],
                                              inner.param_groups[0]["lr"]))
                self.assertEqual(rates, [(0.0625, 0.0625)] * hvd.size())
                mine = torch.cat([p.detach().flatten() for p in model.parameters()])
                for other in hvd.allgather(mine[None]):
                    self.assertTrue(torch.equal(other, mine))
                # What is loaded later reaches the scheduler's optimizer, too.
                state = copy.deepcopy(optimizer.state_dict())
                state["param_groups"][0]["lr"] = 0.25
                optimizer.load_state_dict(state)
                self.assertEqual(inner.param_groups[0]["lr"], 0.25)
                self.assertIs(inner.state, optimizer.state)

    def test_parameters_without_names(self):
        model = make_model(seed=hvd.rank())
        hvd.broadcast_parameters(list(model.parameters()), root_rank=0)
        for p, root in zip(model.parameters(), make_model(seed=0).parameters()):
            self.assertTrue(torch.equal(p, root))
        for wrong in (5, "text", torch.ones(1)):
            with self.assertRaisesRegex(ValueError, "params must be"):
                hvd.broadcast_parameters(wrong, root_rank=0)


class SyncBatchNorm(unittest.TestCase):
    def test_as_one_large_batch(self):
        # Uneven batches: rank r brings r + 2 rows.
        def rows(rank):
            generator = torch.Generator().manual_seed(rank)
            return torch.randn(rank + 2, 3, 4, generator=generator, dtype=torch.float64) * 3 + 100

        alone, together = torch.nn.BatchNorm1d(3).double(), hvd.SyncBatchNorm(3).double()
        whole = torch.cat([rows(r) for r in range(hvd.size())]).requires_grad_()
        weights = torch.linspace(0, 1, whole.numel(), dtype=torch.float64).reshape(whole.shape)
        (alone(whole)**2 * weights).sum().backward()

        begin = sum(r + 2 for r in range(hvd.rank()))
        mine = rows(hvd.rank()).requires_grad_()
        part = slice(begin, begin + mine.shape[0])
        output = together(mine)
        torch.testing.assert_close(output, copy.deepcopy(alone).train()(whole)[part])
        (output**2 * weights[part]).sum().backward()
        torch.testing.assert_close(mine.grad, whole.grad[part])
        torch.testing.assert_close(together.running_mean, alone.running_mean)
        torch.testing.assert_close(together.running_var, alone.running_var)
        together.eval()
        torch.testing.assert_close(together(mine), alone.eval()(mine))

    def test_what_was_agreed_on_is_remembered(self):
        if hvd.size() == 1:
            self.skipTest("nothing is agreed on alone")
        layers = [hvd.SyncBatchNorm(channels) for channels in (2, 3, 2)]

        def step():
            before = job().counter("tensors"), job().counter("cached")
            for layer in layers:
                layer(torch.ones(4, layer.num_features, requires_grad=True)).sum().backward()
            return job().counter("tensors") - before[0], job().counter("cached") - before[1]
        step()
        self.assertEqual(step(), (12, 12))

    def test_half_types_are_summed_in_float32(self):
        # More elements than float16 can count.
        for dtype, close in ((torch.float16, 2e-3), (torch.bfloat16, 2e-2)):
            values = torch.arange(70000, dtype=torch.float32).reshape(100, 1, 700) / 70000 + hvd.rank()
            alone, together = torch.nn.BatchNorm1d(1), hvd.SyncBatchNorm(1)
            whole = torch.cat([values - hvd.rank() + r for r in range(hvd.size())]).to(dtype)
            expected = alone(whole.float())[100 * hvd.rank():][:100]
            output = together(values.to(dtype))
            self.assertEqual(output.dtype, dtype)
            torch.testing.assert_close(output.float(), expected, atol=close, rtol=close)
            torch.testing.assert_close(together.running_var, alone.running_var, atol=1e-3, rtol=1e-3)


if __name__ == "__main__":
    unittest.main()
