"""A rank that uses the library by ctypes, as a victim and as an attacker: an attacker that runs the library itself
speaks every version of the protocol."""

import ctypes

FLOAT, SUM, ID_BYTES = 7, 0, 128
COUNT = 1000


class LaunchInfo(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("rank", ctypes.c_int), ("nranks", ctypes.c_int),
                ("local_rank", ctypes.c_int), ("local_size", ctypes.c_int), ("one_machine", ctypes.c_int),
                ("timeout_s", ctypes.c_double), ("launcher", ctypes.c_char * 64),
                ("rendezvous", ctypes.c_char * 256)]


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * ID_BYTES)]


class Refused(Exception):
    """A call of the library failed; the text is the library's sentence."""


def load(path):
    library = ctypes.CDLL(str(path))
    library.ncclGetLastError.restype = ctypes.c_char_p
    library.tuttiLaunchLastError.restype = ctypes.c_char_p
    return library


class Rank:
    """A rank of the job that the environment describes."""

    def __init__(self, library):
        self.library, self.launch, self.info = library, ctypes.c_void_p(), LaunchInfo(ctypes.sizeof(LaunchInfo))
        self.comm = ctypes.c_void_p()

    def _launch(self, result):
        if result != 0:
            raise Refused((self.library.tuttiLaunchLastError() or b"").decode(errors="replace"))

    def _call(self, result):
        if result != 0:
            raise Refused((self.library.ncclGetLastError(self.comm) or b"").decode(errors="replace"))

    def read_environment(self):
        self._launch(self.library.tuttiLaunchRead(ctypes.byref(self.launch), 0))
        self._launch(self.library.tuttiLaunchDescribe(self.launch, ctypes.byref(self.info)))

    def meet(self, value=b""):
        """Returns the value of rank 0."""
        received, size = ctypes.create_string_buffer(65536), ctypes.c_size_t()
        self._launch(self.library.tuttiLaunchMeet(self.launch, value, ctypes.c_size_t(len(value)), received,
                                                  ctypes.c_size_t(65536), ctypes.byref(size), ctypes.c_double(0)))
        return received.raw[:size.value]

    def make_id(self):
        unique = UniqueId()
        self._call(self.library.ncclGetUniqueId(ctypes.byref(unique)))
        return bytes(unique)

    def join(self, unique, rank, count):
        given = UniqueId()
        ctypes.memmove(ctypes.byref(given), unique, ID_BYTES)
        self._call(self.library.ncclCommInitRank(ctypes.byref(self.comm), count, given, rank))

    def sum(self, number):
        """Returns what a sum over all ranks of COUNT equal floats gives, when all floats of the result are equal."""
        data = (ctypes.c_float * COUNT)(*([number] * COUNT))
        self._call(self.library.ncclAllReduce(data, data, ctypes.c_size_t(COUNT), FLOAT, SUM, self.comm, None))
        return data[0] if all(one == data[0] for one in data) else list(data)


def take_part(talk, library, number):
    """The body of a process: a rank of a launched job that sums `number`. Tells ("id", id) once the ranks have met,
    then ("sum", result); or ("refused", sentence) of the call that failed."""
    rank = Rank(library)
    try:
        rank.read_environment()
        unique = rank.meet(rank.make_id() if rank.info.rank == 0 else b"")
        talk.send(("id", unique))
        rank.join(unique, rank.info.rank, rank.info.nranks)
        talk.send(("sum", rank.sum(number)))
        talk.recv()
    except Refused as refusal:
        talk.send(("refused", str(refusal)))


def take_part_with_id(talk, library, unique, rank, count, number):
    """The body of a process that has the id by other means; `unique` None makes an id and tells it."""
    one = Rank(library)
    try:
        if unique is None:
            unique = one.make_id()
            talk.send(("id", unique))
        one.join(unique, rank, count)
        talk.send(("sum", one.sum(number)))
        talk.recv()
    except Refused as refusal:
        talk.send(("refused", str(refusal)))
