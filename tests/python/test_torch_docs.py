"""What docs/ shows in Python runs, on every rank of a job of any size.

A block is found by a line of its own; what the text around it takes for granted comes before it, and
what has to be true then comes behind it.
"""

import os
import re
import unittest

import torch

import tutti.torch

DOCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs")

MODEL = """
import torch
torch.set_num_threads(1)
data = torch.utils.data.TensorDataset(torch.arange(8.0)[:, None], torch.arange(8.0)[:, None])
model = torch.nn.Linear(1, 1)
"""

# File, a line of the block, what comes before, what comes behind.
BLOCKS = [
    ("python.md", "# was: import horovod.torch as hvd", MODEL, """
for x, y in loader:
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
mean = hvd.allreduce(loss, name="loss")
assert mean.isfinite() and optimizer.param_groups[0]["lr"] == 0.01 * hvd.size()
alike = hvd.allgather(model.weight.detach())
assert (alike == alike[0]).all(), alike
"""),
    ("python.md", "torch.cuda.set_device(hvd.local_rank())", MODEL + """
import tutti.torch as hvd
hvd.init()
""", "assert next(model.parameters()).is_cuda"),
    ("python.md", 'mean = hvd.allreduce(np.arange(4.0), name="x")', "", """
assert mean.tolist() == [0, 1, 2, 3]
assert rows.shape == (hvd.size() * (hvd.size() + 1) // 2, 2)
"""),
    ("python.md", "comm = tutti.Communicator.world()", "", """
assert total.tolist() == [hvd.size()] * 3
comm.destroy()
"""),
    ("python.md", 'torch.distributed.init_process_group("tutti")', "import torch, tutti.torch.distributed", """
tensor = torch.ones(2)
torch.distributed.all_reduce(tensor)
assert tensor.tolist() == [torch.distributed.get_world_size()] * 2
torch.distributed.destroy_process_group()
"""),
    ("elastic.md", "@hvd.elastic.run", MODEL + """
import tutti.torch as hvd
hvd.init()
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
sampler = hvd.elastic.ElasticSampler(data)
batches, size = 2, 1
""", "assert state.epoch == 89 and len(sampler) == -(-8 // hvd.size())"),
]


def blocks(name):
    with open(os.path.join(DOCS, name), encoding="utf-8") as file:
        return re.findall(r"^```python\n(.*?)^```", file.read(), re.MULTILINE | re.DOTALL)


class Snippets(unittest.TestCase):
    def run_block(self, index):
        name, line, before, behind = BLOCKS[index]
        found = [block for block in blocks(name) if line in block]
        self.assertEqual(len(found), 1, line)
        space = {"__name__": "snippet"}
        for part, text in (("before", before), (name, found[0]), ("behind", behind)):
            exec(compile(text, f"{line} ({part})", "exec"), space)

    def tearDown(self):
        tutti.torch.shutdown()

    def test_none_is_left_out(self):
        for name in sorted({block[0] for block in BLOCKS}):
            wanted = [line for file, line, _, _ in BLOCKS if file == name]
            for block in blocks(name):
                if "import tensorflow" in block:
                    continue  # test_tensorflow.py runs it
                if "enable_reconfigure" in block:
                    continue  # test_torch_reconfigure.py runs python/examples/ddp_reconfigure.py
                self.assertEqual(sum(line in block for line in wanted), 1, block)


def _add(index):
    def test(self):
        if "cuda" in BLOCKS[index][1] and not torch.cuda.is_available():
            self.skipTest("there is no GPU")
        self.run_block(index)
    setattr(Snippets, f"test_block_{index}", test)


for number in range(len(BLOCKS)):
    _add(number)

if __name__ == "__main__":
    unittest.main()
