"""tutti.tensorflow, on every rank of a job of any size, eagerly and in graphs of tf.function."""

import os
import re
import tempfile
import unittest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import checks  # noqa: E402
import tutti.tensorflow as hvd  # noqa: E402

TYPES = (tf.uint8, tf.int8, tf.uint16, tf.int16, tf.int32, tf.int64, tf.uint32, tf.uint64,
         tf.float16, tf.float32, tf.float64, tf.bfloat16)


def setUpModule():
    tf.get_logger().setLevel("ERROR")  # it warns of functions that are traced again
    hvd.init()


def tearDownModule():
    hvd.shutdown()


def of_rank(rank, shape, dtype=tf.float32):
    """What `rank` brings: different on every rank and in every element."""
    count = int(np.prod(shape))
    return tf.cast(tf.reshape(tf.range(count) % 7 + rank + 1, shape), dtype)


def sum_of_ranks(shape, dtype=tf.float32):
    parts = [of_rank(rank, shape, tf.float64) for rank in range(hvd.size())]
    return tf.cast(tf.add_n(parts), dtype)


def both_ways(function):
    """Returns the function itself, and as a graph."""
    return function, tf.function(function)


class Case(unittest.TestCase):
    def assert_same(self, got, want):
        got, want = np.asarray(got), np.asarray(want)
        self.assertEqual((got.dtype, got.shape), (want.dtype, want.shape))
        self.assertEqual(got.tolist(), want.tolist())

    def assert_close(self, got, want):
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5, atol=1e-6)


class Operations(Case):
    def test_allreduce_of_every_type(self):
        for dtype in TYPES:
            mine = of_rank(hvd.rank(), [3, 2], dtype)
            for reduce in both_ways(lambda tensor: hvd.allreduce(tensor, op=hvd.Sum)):
                self.assert_same(reduce(mine), sum_of_ranks([3, 2], dtype))

    def test_allreduce_averages_by_default_and_scales(self):
        mine = of_rank(hvd.rank(), [5])
        self.assert_close(hvd.allreduce(mine), sum_of_ranks([5]) / hvd.size())
        self.assert_close(hvd.allreduce(mine, average=False, name="sum"), sum_of_ranks([5]))
        self.assert_close(hvd.allreduce(mine, op=hvd.Sum, prescale_factor=2, postscale_factor=3.5),
                          sum_of_ranks([5]) * 7)
        self.assert_same(hvd.allreduce(tf.constant(4.0)), tf.constant(4.0))
        self.assert_same(hvd.allreduce(mine, op=hvd.Max), of_rank(hvd.size() - 1, [5]))

    def test_variables_and_compression(self):
        variable = tf.Variable(of_rank(hvd.rank(), [4]))
        self.assert_close(hvd.allreduce(variable, op=hvd.Sum), sum_of_ranks([4]))
        for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
            self.assert_close(hvd.allreduce(variable, op=hvd.Sum, compression=compression),
                              sum_of_ranks([4]))

        class Negative:
            @staticmethod
            def compress(tensor):
                return -tensor, None

            @staticmethod
            def decompress(tensor, ctx):
                return -tensor
        self.assert_close(hvd.allreduce(variable, op=hvd.Sum, compression=Negative),
                          sum_of_ranks([4]))

    def test_groups(self):
        tensors = [of_rank(hvd.rank(), [i + 1]) for i in range(4)]
        for reduce in both_ways(lambda *given: hvd.grouped_allreduce(list(given), op=hvd.Sum)):
            for i, got in enumerate(reduce(*tensors)):
                self.assert_same(got, sum_of_ranks([i + 1]))
        self.assertEqual(hvd.grouped_allreduce([]), [])
        for got, tensor in zip(hvd.grouped_allgather(tensors), tensors):
            self.assertEqual(got.shape[0], tensor.shape[0] * hvd.size())

    def test_slices_are_gathered(self):
        rank, size = hvd.rank(), hvd.size()
        mine = tf.IndexedSlices(tf.fill([1, 2], float(rank + 1)), tf.constant([rank]),
                                tf.constant([size, 2]))
        for op in (hvd.Sum, hvd.Average):
            got = tf.convert_to_tensor(hvd.allreduce(mine, op=op))
            want = np.arange(1, size + 1).repeat(2).reshape(size, 2)
            self.assert_close(got, want / (size if op == hvd.Average else 1))
        with self.assertRaises(NotImplementedError):
            hvd.allreduce(mine, op=hvd.Adasum)

    def test_allgather_of_uneven_rows(self):
        rank, size = hvd.rank(), hvd.size()
        want = np.concatenate([np.full([r + 1, 2], r) for r in range(size)])
        for gather in both_ways(hvd.allgather):
            self.assert_same(gather(tf.fill([rank + 1, 2], tf.constant(rank, tf.int64))), want)

    def test_broadcast(self):
        for root in range(hvd.size()):
            for send in both_ways(lambda tensor: hvd.broadcast(tensor, root)):
                self.assert_same(send(of_rank(hvd.rank(), [2, 2])), of_rank(root, [2, 2]))
        variables = [tf.Variable(of_rank(hvd.rank(), [n])) for n in (1, 3)]
        hvd.broadcast_variables(variables, root_rank=hvd.size() - 1)
        for variable, n in zip(variables, (1, 3)):
            self.assert_same(variable, of_rank(hvd.size() - 1, [n]))

    def test_alltoall(self):
        rank, size = hvd.rank(), hvd.size()
        splits = tf.constant([rank + 1] * size)
        mine = tf.fill([(rank + 1) * size], rank)
        want = np.concatenate([np.full(r + 1, r, np.int32) for r in range(size)])
        for exchange in both_ways(hvd.alltoall):
            rows, received = exchange(mine, splits)
            self.assert_same(rows, want)
            self.assertEqual(received.numpy().tolist(), list(range(1, size + 1)))
        self.assertEqual(hvd.alltoall(tf.fill([size], rank)).numpy().tolist(), list(range(size)))

    def test_reducescatter(self):
        size, rank = hvd.size(), hvd.rank()
        for scatter in both_ways(lambda tensor: hvd.reducescatter(tensor, op=hvd.Sum)):
            got = scatter(of_rank(rank, [2 * size, 3]))
            self.assert_same(got, sum_of_ranks([2 * size, 3])[2 * rank:2 * rank + 2])
        first, second = hvd.grouped_reducescatter([of_rank(rank, [size]), of_rank(rank, [size, 2])])
        self.assertEqual((first.shape, second.shape), ((1,), (1, 2)))

    def test_numbers_are_told_when_a_graph_runs(self):
        for op, want in ((hvd.rank_op, hvd.rank()), (hvd.local_rank_op, hvd.local_rank()),
                         (hvd.size_op, hvd.size()), (hvd.local_size_op, hvd.local_size()),
                         (hvd.process_set_included_op, 1)):
            for tell in both_ways(lambda: op()):
                self.assertEqual(int(tell()), want)

    def test_objects(self):
        checks.objects(self, hvd)

    def test_join(self):
        self.assertIn(int(hvd.join()), range(hvd.size()))

    def test_what_is_wrong_is_said(self):
        with self.assertRaises(ValueError):
            hvd.allreduce(tf.constant(["text"]))
        if hvd.size() > 1:
            with self.assertRaises(hvd.HorovodInternalError):
                hvd.allreduce(tf.zeros([hvd.rank() + 1]), name="uneven")


class Gradients(Case):
    def check(self, function, mine, want):
        for way in both_ways(lambda tensor: function(tensor)):
            with tf.GradientTape() as tape:
                tape.watch(mine)
                loss = tf.reduce_sum(way(mine))
            self.assert_close(tape.gradient(loss, mine), want)

    def test_of_operations(self):
        rank, size = hvd.rank(), hvd.size()
        mine = of_rank(rank, [size, 2])
        ones = np.ones([size, 2])
        self.check(lambda tensor: hvd.allreduce(tensor, op=hvd.Sum), mine, ones * size)
        self.check(lambda tensor: hvd.allreduce(tensor), mine, ones)
        self.check(lambda tensor: hvd.allreduce(tensor, op=hvd.Sum, postscale_factor=2.0), mine,
                   ones * size * 2)
        self.check(lambda tensor: hvd.allgather(tensor) * (rank + 1.0), mine,
                   ones * (size + 1) / 2)
        self.check(lambda tensor: hvd.broadcast(tensor, 0), mine, ones if rank == 0 else ones * 0)
        self.check(hvd.alltoall, mine, ones)
        self.check(lambda tensor: hvd.alltoall(tensor, tf.ones([size], tf.int32))[0], mine, ones)
        self.check(lambda tensor: hvd.reducescatter(tensor, op=hvd.Sum), mine, ones * size)
        self.check(lambda tensor: tf.add_n(hvd.grouped_allreduce([tensor, tensor])), mine, ones * 2)

    def test_of_rows_that_differ(self):
        rank, size = hvd.rank(), hvd.size()
        mine = of_rank(rank, [rank + 1])
        weights = tf.range(size * (size + 1) // 2, dtype=tf.float32)
        begin = rank * (rank + 1) // 2
        self.check(lambda tensor: hvd.allgather(tensor) * weights, mine,
                   weights[begin:begin + rank + 1])


class Tape(Case):
    def step(self, wrap, weights):
        inputs = tf.fill([3], float(hvd.rank() + 1))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weights[0] * inputs) + tf.reduce_sum(weights[1])
        return wrap(tape).gradient(loss, weights)

    def test_gradients_are_averaged(self):
        weights = [tf.Variable(tf.ones([3])), tf.Variable(2.0), tf.Variable(5.0)]
        mean = (hvd.size() + 1) / 2
        for options in ({}, {"gradient_predivide_factor": 2.0},
                        {"compression": hvd.Compression.fp16}):
            for step in both_ways(lambda: self.step(
                    lambda tape: hvd.DistributedGradientTape(tape, **options), weights)[:2]):
                first, second = step()
                self.assert_close(first, np.full(3, mean))
                self.assert_close(second, 1.0)
        self.assertIsNone(self.step(hvd.DistributedGradientTape, weights)[2])
        first, *_ = self.step(lambda tape: hvd.DistributedGradientTape(tape, op=hvd.Sum), weights)
        self.assert_close(first, np.full(3, mean * hvd.size()))

    def test_it_records_when_it_is_entered(self):
        weight = tf.Variable(3.0)
        with hvd.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
            loss = weight * weight * float(hvd.rank())
        for _ in range(2):
            self.assert_close(tape.gradient(loss, weight), 3.0 * (hvd.size() - 1))
        self.assertIsInstance(tape, tf.GradientTape)

    def test_local_sources_stay(self):
        weights = [tf.Variable(tf.ones([3])), tf.Variable(2.0)]

        def wrap(tape):
            made = hvd.DistributedGradientTape(tape)
            made.register_local_source(weights[0])
            return made
        first, second = self.step(wrap, weights)
        self.assert_close(first, np.full(3, (hvd.rank() + 1) / hvd.size()))
        self.assert_close(second, 1.0)

    def test_slices(self):
        table = tf.Variable(tf.ones([hvd.size() + 1, 2]))
        for dense in (False, True):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, [hvd.rank(), hvd.size()]))
            made = hvd.DistributedGradientTape(tape, sparse_as_dense=dense).gradient(loss, table)
            want = np.full([hvd.size() + 1, 2], 1 / hvd.size())
            want[-1] = 1
            self.assert_close(tf.convert_to_tensor(made), want)


class Keras(Case):
    @classmethod
    def setUpClass(cls):
        try:
            import keras
            import tutti.tensorflow.keras as of_keras
        except ImportError as error:
            raise unittest.SkipTest(str(error))
        if keras.backend.backend() != "tensorflow":
            raise unittest.SkipTest(f"Keras works on {keras.backend.backend()}")
        cls.keras, cls.hvd = keras, of_keras

    def model(self, optimizer, eagerly=False):
        keras = self.keras
        kernel = keras.initializers.Constant(0.1 * (hvd.rank() + 1))
        model = keras.Sequential([keras.layers.Input((2,)),
                                  keras.layers.Dense(1, kernel_initializer=kernel)])
        model.compile(optimizer=optimizer, loss="mse", run_eagerly=eagerly)
        return model

    def data(self, rank):
        x = np.random.default_rng(rank).normal(size=(8, 2)).astype(np.float32)
        return x, (x @ np.array([[2.0], [-1.0]], np.float32) + rank).astype(np.float32)

    def test_fit_is_that_of_all_data(self):
        """Ranks that begin alike and average their gradients take the steps of one process that has
        all the data."""
        keras = self.keras
        alone = self.model(keras.optimizers.SGD(0.05))
        start = [np.full_like(weight, 0.1) for weight in alone.get_weights()]
        alone.set_weights(start)
        parts = [self.data(rank) for rank in range(hvd.size())]
        whole = [np.concatenate(part) for part in zip(*parts)]
        alone.fit(*whole, batch_size=len(whole[0]), epochs=3, verbose=0, shuffle=False)
        for eagerly in (False, True):
            model = self.model(self.hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), eagerly)
            model.set_weights(start)
            history = model.fit(*parts[hvd.rank()], batch_size=8, epochs=3, verbose=0,
                                callbacks=[self.hvd.callbacks.MetricAverageCallback()])
            for got, want in zip(model.get_weights(), alone.get_weights()):
                self.assert_close(got, want)
            self.assertEqual(len(set(hvd.allgather_object(history.history["loss"][-1]))), 1)

    def test_weights_and_state_are_broadcast(self):
        optimizer = self.hvd.DistributedOptimizer(self.keras.optimizers.Adam(0.01))
        model = self.model(optimizer)
        model.fit(*self.data(hvd.rank()), batch_size=4, epochs=1, verbose=0,
                  callbacks=[self.hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
        state = [weight.tolist() for weight in model.get_weights()]
        state += [np.asarray(variable).tolist() for variable in model.optimizer.variables]
        self.assertEqual(hvd.allgather_object(state), [state] * hvd.size())

    def test_passes_are_added_up(self):
        keras = self.keras
        for average in (False, True):
            for wrap in (lambda function: function, tf.function):
                weight = keras.Variable(10.0)
                optimizer = self.hvd.DistributedOptimizer(
                    keras.optimizers.SGD(1.0), backward_passes_per_step=2,
                    average_aggregated_gradients=average)
                run = wrap(lambda gradient: optimizer.apply([gradient], [weight]))
                mean = (hvd.size() + 1) / 2 * (1 if average else 2)
                for done in (0, 1, 1, 2):
                    run(tf.constant(hvd.rank() + 1.0))
                    self.assert_close(weight.value, 10.0 - mean * done)
                self.assertEqual(int(optimizer.iterations), 4)

    def test_a_saved_model_is_loaded_without_tutti(self):
        model = self.model(self.hvd.DistributedOptimizer(self.keras.optimizers.SGD(0.5)))
        model.fit(*self.data(hvd.rank()), batch_size=8, epochs=1, verbose=0)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.keras")
            model.save(path)
            loaded = self.keras.models.load_model(path)
        self.assertIs(type(loaded.optimizer), self.keras.optimizers.SGD)
        self.assertEqual(float(loaded.optimizer.learning_rate), 0.5)

    def test_values(self):
        self.assertEqual(self.hvd.allreduce(2.0), 2.0)
        self.assertEqual(self.hvd.broadcast([hvd.rank()], 0).tolist(), [0])

    def test_what_the_docs_show(self):
        docs = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs")
        with open(os.path.join(docs, "python.md"), encoding="utf-8") as file:
            blocks = re.findall(r"```python\n(.*?)```", file.read(), re.DOTALL)
        block, = [block for block in blocks if "import horovod.tensorflow as hvd" in block]
        optimizer = self.keras.optimizers.SGD(0.1)
        model = self.model(optimizer)
        inputs, labels = self.data(hvd.rank())
        exec(block, {"model": model, "optimizer": optimizer, "inputs": inputs, "labels": labels,
                     "loss_of": lambda made, want: tf.reduce_mean((made - want) ** 2)})
        weights = [weight.tolist() for weight in model.get_weights()]
        self.assertEqual(hvd.allgather_object(weights), [weights] * hvd.size())

    def test_the_alias(self):
        try:
            import horovod.tensorflow
            import horovod.tensorflow.keras
        except ImportError as error:
            self.skipTest(str(error))
        self.assertIs(horovod.tensorflow, hvd)
        self.assertIs(horovod.tensorflow.keras, self.hvd)


if __name__ == "__main__":
    unittest.main()
