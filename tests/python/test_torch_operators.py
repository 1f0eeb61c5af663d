"""Every operator of the torch.distributed backend with every type, on every rank of a job of any
size, against Python's own arithmetic, and against Gloo where Gloo has the reduction."""

import functools
import operator
import os
import unittest
import warnings

import torch
import torch.distributed as dist

import tutti.torch.distributed  # registers the backend

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

OPERATORS = {name: getattr(dist.ReduceOp, name)
             for name in ("SUM", "PRODUCT", "MAX", "MIN", "AVG", "BAND", "BOR", "BXOR")}
PAIRWISE = {"SUM": operator.add, "PRODUCT": operator.mul, "MAX": max, "MIN": min,
            "BAND": operator.and_, "BOR": operator.or_, "BXOR": operator.xor}
BITWISE = ("BAND", "BOR", "BXOR")
WHOLE = {name: getattr(torch, name) for name in
         ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
         if hasattr(torch, name)}
FLOATS = {name: getattr(torch, name) for name in
          ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
          if hasattr(torch, name)}
COMPLEX = {name: getattr(torch, name) for name in ("complex32", "complex64", "complex128")}
TYPES = {**WHOLE, **FLOATS, **COMPLEX, "bool": torch.bool}


def setUpModule():
    global GLOO
    warnings.filterwarnings("ignore", "ComplexHalf")
    torch.set_num_threads(1)
    dist.init_process_group("tutti")
    GLOO = dist.new_group(backend="gloo")


def tearDownModule():
    dist.destroy_process_group()


def values(name, rank, count):
    """What a rank gives: small enough that floating point is exact, with all bits where bits
    matter."""
    if name in WHOLE:
        bits = torch.empty((), dtype=WHOLE[name]).element_size() * 8
        mask = (1 << bits) - 1
        signed = not name.startswith("uint")
        return [wrapped(((i + 1) * 0x9E3779B97F4A7C15 >> (rank + 3)) & mask, bits, signed)
                for i in range(count)]
    if name in COMPLEX:
        return [complex(1 + (i + rank) % 2, (i * (rank + 1)) % 3 - 1) for i in range(count)]
    if name == "bool":
        return [(i >> rank) % 2 == 1 for i in range(count)]
    return [float(1 + (i * 3 + rank) % 2) for i in range(count)]


def wrapped(value, bits, signed):
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def expected(name, op, column):
    """Reduces one element's values of all ranks."""
    if name == "bool":
        folded = functools.reduce(PAIRWISE[op], (int(value) for value in column))
        return bool(folded % 2) if op == "BXOR" else folded > 0
    if op == "AVG":
        # The sum of 16-bit integers is one of 32 bits. A quotient of whole numbers is cut off.
        total = sum(column) if name.endswith("int16") else expected(name, "SUM", column)
        whole = abs(total) // SIZE * (1 if total >= 0 else -1) if name in WHOLE else None
        return total / SIZE if whole is None else whole
    folded = functools.reduce(PAIRWISE[op], column)
    if name in WHOLE:
        return wrapped(folded, torch.empty((), dtype=WHOLE[name]).element_size() * 8,
                       not name.startswith("uint"))
    return folded


def reduces(name, op):
    if name in COMPLEX:
        return op in ("SUM", "AVG")
    return op not in (BITWISE if name in FLOATS else ("AVG",) if name == "bool" else ())


def tensor_of(name, numbers):
    # PyTorch makes tensors of some types only from others.
    if name.startswith("uint") and name != "uint8":
        bits = torch.empty((), dtype=TYPES[name]).element_size() * 8
        signed = [wrapped(number, bits, True) for number in numbers]
        return torch.tensor(signed, dtype=getattr(torch, f"int{bits}")).view(TYPES[name])
    if name == "complex32":
        return torch.tensor(numbers, dtype=torch.complex64).to(torch.complex32)
    if name in FLOATS:
        return torch.tensor(numbers).to(TYPES[name])
    return torch.tensor(numbers, dtype=TYPES[name])


def same(first, second):
    return torch.equal(bytes_of(first), bytes_of(second))


def bytes_of(tensor):
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor.contiguous().view(-1).view(torch.uint8)


class Operators(unittest.TestCase):
    def cases(self, count, types=tuple(TYPES)):
        for name in types:
            for op in OPERATORS:
                if reduces(name, op):
                    ranks = [values(name, rank, count) for rank in range(SIZE)]
                    wanted = [expected(name, op, column) for column in zip(*ranks)]
                    yield name, OPERATORS[op], ranks[RANK], wanted

    def close(self, name, op, made, wanted):
        if name.startswith("float8") and op == dist.ReduceOp.AVG:  # 1 / SIZE has few bits.
            torch.testing.assert_close(made.float(), wanted.float(), rtol=0.25, atol=0)
        elif name not in FLOATS and name not in COMPLEX or name.startswith("float8"):
            self.assertTrue(same(made, wanted), (name, op, made, wanted))
        else:
            part = torch.view_as_real if name in COMPLEX else torch.clone
            torch.testing.assert_close(part(made), part(wanted),
                                       msg=lambda message: f"{name}, {op}: {message}")

    def test_all_reduce(self):
        for name, op, mine, wanted in self.cases(67):
            tensor = tensor_of(name, mine)
            dist.all_reduce(tensor, op=op)
            self.close(name, op, tensor, tensor_of(name, wanted))

    def test_large_ones_in_order(self):
        # Parts of unequal size, and a second operation on what the first one leaves.
        for name, op, mine, wanted in self.cases(35001, ("int16", "int32")):
            tensor = tensor_of(name, mine)
            first = dist.all_reduce(tensor, op=op, async_op=True)
            second = dist.all_reduce(tensor, op=dist.ReduceOp.MAX, async_op=True)
            second.wait()
            self.assertTrue(first.is_completed())
            self.close(name, op, tensor, tensor_of(name, wanted))

    def test_reduce(self):
        for root in {0, SIZE - 1}:
            for name, op, mine, wanted in self.cases(9):
                tensor = tensor_of(name, mine)
                dist.reduce(tensor, root, op=op)
                self.close(name, op, tensor, tensor_of(name, wanted if RANK == root else mine))

    def test_reduce_scatter(self):
        scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
        for name, op, mine, wanted in self.cases(SIZE * 5):
            target = tensor_of(name, mine[:5])
            scatter(target, tensor_of(name, mine), op=op)
            self.close(name, op, target, tensor_of(name, wanted[RANK * 5:RANK * 5 + 5]))
            work = dist.reduce_scatter(target, list(tensor_of(name, mine).split(5)), op=op,
                                       async_op=True)
            work.wait()
            self.close(name, op, target, tensor_of(name, wanted[RANK * 5:RANK * 5 + 5]))

    def test_as_gloo(self):
        compared = 0
        for name, op, mine, _ in self.cases(33):
            tensor, other = tensor_of(name, mine), tensor_of(name, mine)
            try:
                dist.all_reduce(other, op=op, group=GLOO)
            except (RuntimeError, ValueError):
                continue  # Gloo does not have this one, on any rank.
            if name == "bool" and op in (OPERATORS["SUM"], OPERATORS["PRODUCT"]):
                other = other.view(torch.uint8) > 0  # Gloo counts.
            dist.all_reduce(tensor, op=op)
            self.close(name, op, tensor, other)
            compared += 1
        self.assertGreaterEqual(compared, 20)

    def test_what_is_refused(self):
        for name in TYPES:
            for op in OPERATORS:
                if not reduces(name, op):
                    with self.subTest(type=name, op=op), \
                            self.assertRaisesRegex((ValueError, RuntimeError),
                                                   "does not (reduce|support) "):
                        dist.all_reduce(tensor_of(name, values(name, RANK, 3)), op=OPERATORS[op])


if __name__ == "__main__":
    unittest.main()
