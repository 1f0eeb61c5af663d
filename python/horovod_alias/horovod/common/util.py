# SPDX-License-Identifier: Apache-2.0
"""Functions by which scripts ask about Horovod's installation, and a few of its helpers."""

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import warnings

from horovod.common.exceptions import HorovodVersionMismatchError, get_version_mismatch_message
from tutti import _basics

EXTENSIONS = ["torch"]

# Decorates a function without arguments so that it is called once.
_cache = functools.lru_cache(maxsize=None)


def extension_available(ext_base_name, verbose=False):
    """Returns whether the package's part for an array library can be used, which needs the
    library."""
    return ext_base_name in ("torch", "numpy") and \
        importlib.util.find_spec(ext_base_name) is not None


def check_extension(ext_name, ext_env_var=None, pkg_path=None, *args):
    """Raises ImportError where extension_available returns False."""
    name = ext_name.rsplit(".", 1)[-1]
    if not extension_available(name):
        raise ImportError(f"there is no part of Tutti for {name}, or {name} is not installed")


def gpu_available(ext_base_name, verbose=False):
    """Returns whether the array library sees a GPU."""
    if not extension_available(ext_base_name) or ext_base_name != "torch":
        return False
    return importlib.import_module("torch").cuda.is_available()


def mpi_built(verbose=False):
    """Returns tutti.torch.mpi_built(); the functions below call those of their names alike."""
    return _basics.mpi_built()


def gloo_built(verbose=False):
    return _basics.gloo_built()


def nccl_built(verbose=False):
    return bool(_basics.nccl_built())


def ddl_built(verbose=False):
    return _basics.ddl_built()


def ccl_built(verbose=False):
    return _basics.ccl_built()


def num_rank_is_power_2(num_rank):
    """Returns whether a number of ranks is a power of two, which Tutti's Adasum does not need."""
    return num_rank != 0 and num_rank & (num_rank - 1) == 0


def split_list(items, num_parts):
    """Splits the list into `num_parts` lists whose lengths differ by one at most, the longer
    first."""
    length, longer = divmod(len(items), num_parts)
    parts, begin = [], 0
    for part in range(num_parts):
        end = begin + length + (1 if part < longer else 0)
        parts.append(items[begin:end])
        begin = end
    return parts


@contextlib.contextmanager
def env(**variables):
    """Sets those variables of the environment that are not None, for the body of a `with`."""
    given = {name: value for name, value in variables.items() if value is not None}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def get_average_backwards_compatibility_fun(reduce_ops):
    """Returns a function of (op, average) that returns the operator of `reduce_ops` meant by
    both."""
    def choose(op, average):
        if average is not None and op is not None:
            raise ValueError("give either op or average, not both; average is the older name")
        if average is not None:
            warnings.warn("average is deprecated; use op", DeprecationWarning, stacklevel=2)
            return reduce_ops.Average if average else reduce_ops.Sum
        return reduce_ops.Average if op is None else op
    return choose


def check_installed_version(name, version, exception=None):
    """Warns, or with `exception` raises HorovodVersionMismatchError, where a library is installed
    in a version other than `version`. Nothing here is compiled for a version, and any version will
    do."""
    try:
        installed = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        installed = None
    if installed == version:
        return
    if exception is not None:
        raise HorovodVersionMismatchError(name, version, installed) from exception
    warnings.warn(get_version_mismatch_message(name, version, installed))


def is_iterable(value):
    """Returns whether iter(value) works."""
    try:
        iter(value)
    except TypeError:
        return False
    return True
