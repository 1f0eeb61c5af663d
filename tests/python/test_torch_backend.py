"""Which form of the torch.distributed backend a job gets: the one in C++, compiled once, or the one in
Python, which says why; starts the ranks itself. And what only the one in C++ has."""

import os
import stat
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

from tutti import _torch_cache, _torch_compile
from tutti.torch import _native

SCRIPT = """
import inspect, sys, torch, torch.distributed as dist
import tutti.torch.distributed as tutti

dist.init_process_group("tutti")
group = dist.distributed_c10d._get_default_group()
in_python = isinstance(group, tutti.ProcessGroupTutti)
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert tensor.tolist() == [dist.get_world_size()] * 3
if not in_python:
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(0.5))
    assert tensor.tolist() == [size * size / 2] * 3, tensor
    # Blocks of other sizes: rank r gets r + 1 elements.
    mine = torch.empty(rank + 1)
    dist.reduce_scatter(mine, [torch.full((r + 1,), float(r)) for r in range(size)])
    assert mine.tolist() == [float(rank * size)] * (rank + 1), mine
    peers = [dist.P2POp(dist.isend, torch.full((2,), float(rank)), 1 - rank),
             dist.P2POp(dist.irecv, mine := torch.empty(2), 1 - rank)]
    for work in dist.batch_isend_irecv(peers):
        work.wait()
    assert mine.tolist() == [1.0 - rank] * 2, mine
    # What PyTorch calls on the ranks outside a new group where the job has a device of its own.
    group.bound_device_id = torch.device("cpu", 0)
    find = dist.distributed_c10d._get_split_source
    source = find(group, *["tutti"] * (len(inspect.signature(find).parameters) - 1))  # 2.15: the backend's name
    source.perform_nocolor_split(group.bound_device_id)
    group.bound_device_id = None
    works = dist.all_reduce(tensor, async_op=True)
    assert works.get_future().wait()[0] is not None
sys.stdout.write("form: python\\n" if in_python else "form: cpp\\n")  # One piece: ranks share the pipe.
dist.destroy_process_group()
"""

# A rank waits for one that does not come, in a group whose time-out is short.
TIMEOUT = """
import sys
from datetime import timedelta
import torch, torch.distributed as dist
import tutti.torch.distributed

dist.init_process_group("tutti")
group = dist.new_group(timeout=timedelta(seconds=1))
if dist.get_rank() == 0:
    try:
        dist.all_reduce(torch.ones(1), group=group)
    except RuntimeError as error:
        sys.stdout.write(f"it says: {error}\\n")
dist.barrier()
dist.destroy_process_group()
"""

# A program that asks for Gloo by name, and does what PyTorch allows of Gloo alone.
# PyTorch's own Gloo, which is there for comparison, was once seen to abort when it ended ("terminate
# called without an active exception"), so that its ranks end without it.
GLOO = """
import os, sys
from tutti import _torch_autoload
_torch_autoload.load()  # which PyTorch does where the package is installed
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
tensor = torch.ones(3)
dist.all_reduce(tensor)
assert dist.get_backend() == "gloo" and tensor.tolist() == [2.0] * 3
assert isinstance(backend, dist.distributed_c10d.ProcessGroupGloo)
dist.monitored_barrier()
one = dist.new_group([0, 1], backend="gloo")
gathered = [None, None]
dist.all_gather_object(gathered, {"rank": rank}, group=one)
assert gathered == [{"rank": 0}, {"rank": 1}]
mixed = dist.new_group(backend="cpu:gloo")
dist.broadcast(tensor, 1, group=mixed)
dist.barrier()
sys.stdout.write(f"form: {backend.name()}\\n")
if backend.name() == "gloo":
    sys.stdout.flush()
    os._exit(0)
dist.destroy_process_group()
"""


@unittest.skipIf(_native._VERSION < _native._OLDEST, "the backend in C++ needs a newer PyTorch")
class Forms(unittest.TestCase):
    def forms(self, script=SCRIPT, **environment):
        """Returns what two ranks print."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "train.py")
            with open(path, "w", encoding="utf-8") as file:
                file.write(script)
            ended = subprocess.run([sys.executable, "-m", "tutti", "run", "-n", "2",
                                    sys.executable, path], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, timeout=400, check=False,
                                   env={**os.environ, **environment})
        self.assertEqual(ended.returncode, 0, ended.stdout)
        return ended.stdout

    def test_in_cpp(self):
        self.assertEqual(self.forms(TUTTI_TORCH_BACKEND="cpp").count("form: cpp"), 2)

    def test_the_groups_time_out(self):
        self.assertRegex(self.forms(TIMEOUT, TUTTI_TORCH_BACKEND="cpp"), r"it says: an operation came to the timeout of its group: communicator .*: rank 0 .* has waited 1\.\d s for rank 1")

    def test_in_gloos_place_when_asked_for(self):
        self.assertEqual(self.forms(GLOO).count("form: gloo"), 2)
        self.assertEqual(self.forms(GLOO, TUTTI_TORCH_GLOO="1").count("form: tutti"), 2)
        said = self.forms(GLOO, TUTTI_TORCH_GLOO="1", TUTTI_TORCH_BACKEND="python")
        self.assertEqual((said.count("form: gloo"), said.count("UserWarning")), (2, 1), said)

    def test_in_python_when_asked_for(self):
        said = self.forms(TUTTI_TORCH_BACKEND="python")
        self.assertEqual((said.count("form: python"), said.count("slower one")), (2, 0), said)

    def test_without_a_compiler(self):
        with tempfile.TemporaryDirectory() as empty:
            said = self.forms(TUTTI_CACHE_DIR=empty, CXX="no-such-compiler")
            self.assertEqual([name for name in os.listdir(empty) if not name.endswith(".lock")], [])
        self.assertEqual(said.count("form: python"), 2, said)
        self.assertEqual(said.count("there is no C++ compiler no-such-compiler"), 1, said)

    def test_without_a_place_to_keep_it(self):
        said = self.forms(TUTTI_CACHE_DIR=os.path.join(__file__, "below a file"))
        self.assertEqual((said.count("form: python"), said.count("because [Errno")), (2, 1), said)

    def test_a_folder_that_others_write_to(self):
        with tempfile.TemporaryDirectory() as shared:
            os.chmod(shared, 0o777)
            said = self.forms(TUTTI_CACHE_DIR=shared)
        self.assertEqual(said.count(f"others may write to {shared}"), 1, said)


@unittest.skipIf(_native._VERSION < _native._OLDEST, "the backend in C++ needs a newer PyTorch")
class Linking(unittest.TestCase):
    def test_against_the_library_of_cxx_that_is_loaded(self):
        """A compiler that would bring an archive of its own: two of these libraries do not mix."""
        with tempfile.TemporaryDirectory() as folder:
            made = os.path.join(folder, "made.so")
            with open(os.path.join(folder, "text.cc"), "w", encoding="utf-8") as source:
                source.write("#include <sstream>\n"
                             "std::string Text() { return (std::ostringstream() << 1ul).str(); }\n")
            with unittest.mock.patch.object(_torch_compile, "SOURCES", folder), \
                    unittest.mock.patch.dict(os.environ, {"CXX": "g++ -static-libstdc++"}):
                _native._compile(_native._include(), made)
            needed = subprocess.run(["readelf", "-d", made], stdout=subprocess.PIPE, check=True).stdout
            self.assertIn(b"libstdc++.so.6", needed)


class Cache(unittest.TestCase):
    def setUp(self):
        # Folders below a folder of this user in a sticky folder: nobody else may change them.
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.top = os.path.realpath(held.name)
        self.shared = os.path.join(self.top, "shared")
        os.mkdir(self.shared)
        os.chmod(self.shared, 0o777)

    def cache(self, *names):
        with unittest.mock.patch.dict(os.environ, TUTTI_CACHE_DIR=os.path.join(self.top, *names)):
            return _torch_cache.cache()

    def test_an_own_folder(self):
        self.assertEqual(self.cache("a", "b"), os.path.join(self.top, "a", "b"))

    def test_below_a_folder_that_others_write_to(self):
        with self.assertRaisesRegex(_torch_compile.Unavailable, f"others may write to {self.shared}$"):
            self.cache("shared", "own")

    def test_behind_a_link_in_a_folder_that_others_write_to(self):
        os.mkdir(os.path.join(self.top, "own"), 0o700)
        os.symlink(os.path.join(self.shared, "own"), os.path.join(self.top, "link"))
        os.mkdir(os.path.join(self.shared, "own"), 0o700)
        with self.assertRaisesRegex(_torch_compile.Unavailable, f"others may write to {self.shared}$"):
            self.cache("link")

    def test_a_sticky_folder_keeps_what_is_ones_own(self):
        os.chmod(self.shared, 0o1777)
        self.assertEqual(self.cache("shared", "own"), os.path.join(self.shared, "own"))

    def test_a_library_that_others_may_change(self):
        made = os.path.join(self.top, "made.so")
        with open(made, "w", encoding="utf-8"):
            pass
        _torch_cache.check_own(made, 0, stat.S_ISREG)
        os.symlink(made, os.path.join(self.top, "link.so"))
        with self.assertRaises(OSError):
            _torch_cache.check_own(os.path.join(self.top, "link.so"), 0, stat.S_ISREG)
        os.chmod(made, 0o666)
        with self.assertRaisesRegex(_torch_compile.Unavailable, "others may write"):
            _torch_cache.check_own(made, 0, stat.S_ISREG)
        os.chmod(made, 0o644)
        if os.geteuid() == 0:
            os.chown(made, 12345, -1)
            with self.assertRaisesRegex(_torch_compile.Unavailable, "others may write"):
                _torch_cache.check_own(made, 0, stat.S_ISREG)


class Choice(unittest.TestCase):
    def test_unknown_form(self):
        with unittest.mock.patch.dict(os.environ, TUTTI_TORCH_BACKEND="rust"), \
                self.assertRaisesRegex(ValueError, "rust"):
            _native._wanted()


if __name__ == "__main__":
    unittest.main()
