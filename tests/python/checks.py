"""What tutti.numpy and tutti.torch have in common, checked through either (`api`)."""

import threading


def objects(test, api):
    """Objects that pickle refuses travel by cloudpickle where it is there; what nothing can pickle is
    one sentence on all ranks."""
    class Local:
        def __init__(self):
            self.where = api.rank()

    last = api.size() - 1
    lock = threading.Lock()
    wrong = {"object": lock}
    sentences = []
    for call in (lambda: api.broadcast_object(wrong if api.rank() == last else None, last),
                 lambda: api.allgather_object(wrong if api.rank() == last else 5)):
        with test.assertRaises(ValueError) as caught:
            call()
        sentences.append(str(caught.exception))
        test.assertRegex(sentences[-1], f"the dict of rank {last} cannot be pickled: .*lock")
    test.assertEqual(api.allgather_object(sentences), [sentences] * api.size())
    try:
        import cloudpickle  # noqa: F401
    except ImportError:
        with test.assertRaisesRegex(ValueError, "rank 0 cannot be pickled.*cloudpickle, once"):
            api.broadcast_object(lambda: 1, 0)
        return
    test.assertEqual(api.broadcast_object(lambda: last, last)(), last)
    test.assertEqual([made.where for made in api.allgather_object(Local())],
                     list(range(api.size())))
