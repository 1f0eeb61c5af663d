"""The package under PyTorch's own launcher; starts the ranks itself."""

import os
import subprocess
import sys
import unittest

import torch

import ports

RANKS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ranks.py")

# Each agent is a host to the ranks that it starts, though both run on this one.
PLACES = """
import numpy as np
import tutti.numpy as hvd
hvd.init()
places = hvd.allgather_object((hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()))
assert places == [(0, 2, 0, 2), (1, 2, 0, 2), (0, 2, 1, 2), (1, 2, 1, 2)], places
assert hvd.allreduce(np.ones(1), op=hvd.Sum)[0] == 4
print("a rank has ended well")
"""


def torchrun(*arguments, **environment):
    return subprocess.Popen([sys.executable, "-m", "torch.distributed.run", *arguments],
                            env=dict(os.environ, **environment), stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


@unittest.skipIf(int(torch.__version__.split(".")[0]) < 2, "PyTorch is older than 2.0")
class Torchrun(unittest.TestCase):
    def finish(self, *agents):
        outputs = [agent.communicate(timeout=240)[0] for agent in agents]
        self.assertEqual([agent.returncode for agent in agents], [0] * len(agents),
                         "\n".join(outputs))
        return "".join(outputs)

    def test_suites_on_one_machine(self):
        for suite, ranks in (("test_numpy", 3), ("test_torch.Collectives.test_moves", 2)):
            agent = torchrun("--standalone", "--nproc_per_node", str(ranks), RANKS, suite)
            self.assertEqual(self.finish(agent).count("\nOK"), ranks)

    def test_two_agents(self):
        port = ports.hold(self)
        path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"tutti-places-{os.getpid()}.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(PLACES)
        self.addCleanup(os.remove, path)
        agents = [torchrun("--nnodes", "2", "--node_rank", str(node), "--nproc_per_node", "2",
                           "--master_addr", "127.0.0.1", "--master_port", str(port), path,
                           TUTTI_COMM_KEY="a secret of 32 bytes for a test.")
                  for node in range(2)]
        self.assertEqual(self.finish(*agents).count("a rank has ended well"), 4)


if __name__ == "__main__":
    unittest.main()
