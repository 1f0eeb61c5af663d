# SPDX-License-Identifier: Apache-2.0
"""The mean and the variance of numbers that are spread over the ranks.

    tutti run -n 4 python3 mean_numpy.py
"""

import numpy as np

import tutti.numpy as hvd

hvd.init()
# Every rank has a different number of values.
mine = np.arange(10.0 * hvd.rank(), 10.0 * hvd.rank() + 3 + hvd.rank())

count, total, squares = hvd.allreduce(
    np.array([mine.size, mine.sum(), (mine**2).sum()]), op=hvd.Sum, name="moments")
mean, variance = total / count, squares / count - (total / count)**2

everything = hvd.allgather(mine, name="numbers")
assert np.isclose(mean, everything.mean()) and np.isclose(variance, everything.var())
if hvd.rank() == 0:
    print(f"{everything.size} numbers on {hvd.size()} ranks: mean {mean:g}, variance {variance:g}")
hvd.shutdown()
