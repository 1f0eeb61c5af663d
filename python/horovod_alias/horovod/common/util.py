# SPDX-License-Identifier: Apache-2.0
"""What scripts ask of Horovod's installation, and a few helpers of its own."""

import importlib
import importlib.util

from tutti import _basics


def extension_available(ext_base_name, verbose=False):
    """Whether the package's part for an array library can be used: that library is installed."""
    return ext_base_name in ("torch", "numpy") and \
        importlib.util.find_spec(ext_base_name) is not None


def check_extension(ext_name, ext_env_var=None, pkg_path=None, *args):
    """ImportError where extension_available says no; nothing is compiled for a library here."""
    name = ext_name.rsplit(".", 1)[-1]
    if not extension_available(name):
        raise ImportError(f"there is no part of Tutti for {name}, or {name} is not installed")


def gpu_available(ext_base_name, verbose=False):
    """Whether the array library sees a GPU."""
    if not extension_available(ext_base_name) or ext_base_name != "torch":
        return False
    return importlib.import_module("torch").cuda.is_available()


def mpi_built(verbose=False):
    """See tutti.torch.mpi_built; so do the next."""
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
    """Whether a number of ranks is a power of two (Tutti's Adasum does not ask)."""
    return num_rank != 0 and num_rank & (num_rank - 1) == 0


def split_list(items, num_parts):
    """The list in `num_parts` lists of lengths that differ by one at most, the longer first."""
    length, longer = divmod(len(items), num_parts)
    parts, begin = [], 0
    for part in range(num_parts):
        end = begin + length + (1 if part < longer else 0)
        parts.append(items[begin:end])
        begin = end
    return parts
