"""Workers of Horovod's own launcher on this package: started with the environment that its launcher
gives them, beside a store that speaks its HTTP protocol. Where TUTTI_TEST_HOROVOD names a checkout of
Horovod's repository, its launcher itself starts them too, by the checkout's Python code; nothing of
Horovod is built for that, but psutil, cloudpickle and PyYAML must be installed."""

import http.server
import json
import os
import subprocess
import sys
import threading
import unittest

from test_launch import PATIENCE_S, environment

WORKER = """
import json
import numpy as np
import tutti.numpy as hvd

hvd.init()
rank = hvd.rank()
total = hvd.allreduce(np.full(1000, rank + 1.0), op=hvd.Sum, name="total")
rows = hvd.allgather(np.full((rank + 1, 2), rank), name="rows")
result = [rank, hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size(),
          sorted(set(total.tolist())), rows[:, 0].tolist()]
hvd.shutdown()
print(json.dumps(result), flush=True)
"""

# Runs argv[1:] as four workers on what it takes for two hosts.
LAUNCHER = """
import json
import os
import sys
from horovod.runner import gloo_run
from horovod.runner.common.util.settings import Settings

settings = Settings(num_proc=4, hosts="localhost:2,127.0.0.1:2", verbose=0)
variables = {**os.environ, **json.loads(os.environ["TUTTI_TEST_WORKERS"])}
gloo_run.launch_gloo(sys.argv[1:], gloo_run._exec_command_fn(settings), settings, ["lo"], variables,
                     "127.0.0.1")
"""

# What every worker must find: four ranks on two hosts of two.
RESULTS = [[rank, 4, rank % 2, 2, rank // 2, 2, [10.0], [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]]
           for rank in range(4)]
SECRET = "gASVJAAAAAAAAABDIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4flC4="
HIERARCHICAL = {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1", "HOROVOD_HIERARCHICAL_ALLGATHER": "1"}


class Handler(http.server.BaseHTTPRequestHandler):
    """One request for a value of the store."""

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.values[self.path] = body
        self.answer(200)

    def do_GET(self):
        with self.server.lock:
            value = self.server.values.get(self.path)
        self.answer(404 if value is None else 200, value or b"")

    def do_DELETE(self):
        with self.server.lock:
            self.server.values.pop(self.path, None)
        self.answer(200)

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


class Store(http.server.ThreadingHTTPServer):
    """The launcher's store: PUT, GET and DELETE of /scope/key; 404 where there is no value."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock, self.values = threading.Lock(), {}


class Launcher(unittest.TestCase):
    def play(self, **variables):
        """Starts the workers as Horovod's launcher does, and returns what each of them found."""
        store = Store()
        self.addCleanup(store.server_close)
        thread = threading.Thread(target=store.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(store.shutdown)
        workers = [subprocess.Popen([sys.executable, "-c", WORKER], text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    env=environment(
            HOROVOD_HOSTNAME=f"host{rank // 2}", HOROVOD_RANK=rank, HOROVOD_SIZE=4,
            HOROVOD_LOCAL_RANK=rank % 2, HOROVOD_LOCAL_SIZE=2, HOROVOD_CROSS_RANK=rank // 2,
            HOROVOD_CROSS_SIZE=2, HOROVOD_GLOO_RENDEZVOUS_ADDR="127.0.0.1",
            HOROVOD_GLOO_RENDEZVOUS_PORT=store.server_port, HOROVOD_CONTROLLER="gloo",
            HOROVOD_CPU_OPERATIONS="gloo", HOROVOD_GLOO_IFACE="lo", NCCL_SOCKET_IFNAME="lo",
            HOROVOD_GLOO_TIMEOUT_SECONDS=PATIENCE_S, **variables)) for rank in range(4)]
        ends = [worker.communicate(timeout=2 * PATIENCE_S) for worker in workers]
        self.assertEqual([worker.returncode for worker in workers], [0] * 4, ends)
        return [json.loads(out) for out, _ in ends]

    def test_its_environment_and_its_store(self):
        self.assertEqual(self.play(TUTTI_COMM_KEY=SECRET), RESULTS)

    def test_hierarchical_operations(self):
        # Horovod gives this variable to workers on Spark and of elastic jobs.
        self.assertEqual(self.play(_HOROVOD_SECRET_KEY=SECRET, **HIERARCHICAL), RESULTS)

    def test_the_launcher_itself(self):
        checkout = os.environ.get("TUTTI_TEST_HOROVOD")
        if not checkout:
            self.skipTest("TUTTI_TEST_HOROVOD names no checkout of Horovod's repository")
        workers = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "TUTTI_COMM_KEY": SECRET,
                   **HIERARCHICAL}
        paths = os.pathsep.join([checkout, os.environ.get("TUTTI_TEST_HOROVOD_NEEDS", "")])
        run = subprocess.run(
            [sys.executable, "-c", LAUNCHER, sys.executable, "-c", WORKER], text=True,
            capture_output=True, timeout=4 * PATIENCE_S,
            env=environment(PYTHONPATH=paths, TUTTI_TEST_WORKERS=json.dumps(workers)))
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        results = sorted(json.loads(line.partition("<stdout>:")[2])
                         for line in run.stdout.splitlines() if "<stdout>:" in line)
        self.assertEqual(results, RESULTS, run.stdout + run.stderr)


if __name__ == "__main__":
    unittest.main()
