# SPDX-License-Identifier: Apache-2.0
"""This process as a worker of an elastic job of Horovod's own launcher: whenever the job begins
anew, the worker asks the launcher's store for its new rank. No byte from the store is unpickled or
run.

Horovod's launcher tells its workers of new hosts by pickled messages to a server of the workers,
which this package does not have: new hosts are used when the job next begins anew, after a failure.
"""

from __future__ import annotations

import os
import sys
from typing import Dict

# The order of the numbers in the store's answer.
_NUMBERS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
# The store answers when all remaining workers have asked, and new workers were started.
_ANSWER_S = 600.0
_LONGEST_ANSWER = 256


def is_there() -> bool:
    """Returns whether Horovod's launcher started this process as a worker of an elastic job."""
    return os.environ.get("HOROVOD_ELASTIC", "0") not in ("", "0") and \
        "TUTTI_ELASTIC_ADDR" not in os.environ and \
        bool(os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR"))


def parse_numbers(text: str) -> Dict[str, str]:
    """Returns the variables in an answer of the store. ValueError for other texts."""
    numbers = [int(word) for word in text.split(",")]
    if len(numbers) != len(_NUMBERS):
        raise ValueError(f"the launcher's store answers {text!r}, and not with "
                         f"{len(_NUMBERS)} numbers")
    return {f"HOROVOD_{name}": str(number) for name, number in zip(_NUMBERS, numbers)}


def renew_numbers() -> None:
    """Asks for the present rank of this process, and sets the variables of the rank. Ends the
    process where it has no rank any more. OSError without an answer of the launcher."""
    import http.client  # takes longer than all else of `import tutti`
    host = os.environ.get("HOROVOD_HOSTNAME", "localhost")
    slot = f"{host}:{os.environ.get('HOROVOD_LOCAL_RANK', '0')}"
    connection = http.client.HTTPConnection(
        os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"],
        int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]), timeout=_ANSWER_S)
    try:
        connection.request("GET", f"/rank_and_size/{slot}")
        answer = connection.getresponse()
        text = answer.read(_LONGEST_ANSWER).decode(errors="replace")
        if answer.status != 200:
            raise ConnectionError(f"the launcher's store knows no {slot} (status {answer.status})")
    except http.client.HTTPException as error:
        raise ConnectionError(f"the launcher's store gives no answer: {error!r}") from error
    finally:
        connection.close()
    numbers = parse_numbers(text)
    if int(numbers["HOROVOD_RANK"]) < 0:
        print(f"tutti: the worker {slot} is not needed any more, ending", file=sys.stderr)
        sys.exit(0)
    os.environ.update(numbers)
