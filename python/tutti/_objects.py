# SPDX-License-Identifier: Apache-2.0
"""Turns Python objects into bytes for other ranks, by pickle, or by cloudpickle where pickle cannot
(lambdas, classes of functions and notebooks) and cloudpickle is installed. Unpickling runs code,
and ranks must therefore trust one another.

In place of an object that cannot be pickled a sentence with the reason travels, because the ranks
that wait for the object must learn the reason. The first byte tells objects and sentences apart.
"""

from __future__ import annotations

import functools
import importlib
import io
import pickle
from typing import Any, Callable, List, Optional

_OBJECT, _SENTENCE = b"\0", b"\1"


@functools.lru_cache(maxsize=None)
def pickler() -> Any:
    """Returns the module cloudpickle where it is installed, else pickle."""
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return pickle


def _dump(module: Any, obj: Any) -> bytearray:
    buffer = io.BytesIO(_OBJECT)
    buffer.seek(1)
    module.dump(obj, buffer, pickle.HIGHEST_PROTOCOL)
    return bytearray(buffer.getbuffer())


def encode(obj: Any, rank: int) -> bytearray:
    """Returns the bytes for the object of this rank. Never raises."""
    try:
        return _dump(pickle, obj)
    except Exception as error:
        failure = error
    if pickler() is not pickle:
        # cloudpickle sends by value objects that pickle only knows by name. cloudpickle is tried
        # second, because a class that all ranks have would arrive as another class.
        try:
            return _dump(pickler(), obj)
        except Exception as error:
            failure = error
    hint = "" if pickler() is not pickle else " (cloudpickle, once installed, may be able to)"
    sentence = f"the {type(obj).__name__} of rank {rank} cannot be pickled: " \
               f"{type(failure).__name__}: {failure}{hint}"
    return bytearray(_SENTENCE + sentence.encode(errors="replace"))


def decode(data: Any) -> Any:
    """Returns the object. ValueError with the sender's sentence for an object that could not be
    sent."""
    view = memoryview(data)
    if bytes(view[:1]) == _SENTENCE:
        raise ValueError(bytes(view[1:]).decode(errors="replace"))
    return pickle.loads(view[1:])


def broadcast(obj: Any, rank: int, root: int,
              move: Callable[[Optional[bytearray]], Any]) -> Any:
    """Returns the root's object. `move` returns the bytes of the root on all ranks; the other ranks
    pass None."""
    data = encode(obj, rank) if rank == root else None
    came = move(data)
    if data is not None and data[:1] == _OBJECT:
        return obj
    return decode(came if data is None else data)


def allgather(obj: Any, rank: int, move: Callable[[bytearray], List[Any]]) -> List[Any]:
    """Returns all ranks' objects, by rank. `move` returns the bytes of all ranks."""
    return [decode(part) for part in move(encode(obj, rank))]
