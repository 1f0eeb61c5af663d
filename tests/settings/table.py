"""How each setting is proven: by a probe, by a test elsewhere, or not at all, with the reason.

A probe is a run of two ranks of a kind with the setting, and a run without it. `see` is found in the text of the first run
alone, `hide` in that of the second alone (observe.py). A pair of values is one value for each rank.
"""

import dataclasses

import acts

HOSTS, MESH, CHANNELS, COORDINATOR = ("hosts",), ("mesh",), ("channels",), ("coordinator",)
GPUS, BETWEEN, ALL = MESH + CHANNELS, HOSTS + CHANNELS, HOSTS + MESH + CHANNELS


@dataclasses.dataclass(frozen=True)
class Probe:
    setting: str
    value: object
    kinds: tuple
    see: str = ""
    hide: str = ""
    otherwise: object = None  # the setting's value in the run without it; None: not set
    base: tuple = ()  # variables of both runs
    act: object = acts.plain


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    setting: str
    kinds: tuple
    file: str
    test: str  # a text of the file, such as the name of a test
    named_in: str  # the file of the test that names the setting


@dataclasses.dataclass(frozen=True)
class Unproven:
    setting: str
    kinds: tuple
    reason: str


PROBES, ELSEWHERE, UNPROVEN = [], [], []


def probe(setting, value, kinds, see="", hide="", otherwise=None, act=acts.plain, **base):
    PROBES.append(Probe(setting, value, kinds, see, hide, otherwise, tuple(sorted(base.items())), act))


def elsewhere(kinds, file, test, *settings, named_in=None):
    ELSEWHERE.extend(Elsewhere(setting, kinds, file, test, named_in or file) for setting in settings)


def unproven(kinds, reason, *settings):
    UNPROVEN.extend(Unproven(setting, kinds, reason) for setting in settings)


def without(name, variables):
    return {key: value for key, value in variables.items() if key != name}


# What joins hosts, or GPUs of several hosts: sockets, or NICs of the stand-in for libibverbs.
TWO_AND_ONE = ("a", "a", "b")
APART = {"NCCL_HOSTID": ("a", "b")}
VERBS = {**APART, "TUTTI_IBVERBS": "{verbs}", "FAKE_VERBS": "fake0=10.77.0.1"}
TWO_NICS = {**VERBS, "FAKE_VERBS": "fake0=10.77.0.1,fake1=10.77.0.2"}
TWO_PORTS = {**VERBS, "FAKE_VERBS": "fake0=10.77.0.1/10.77.0.2"}
# GPUs without the bounds that keep the stand-in small.
UNBOUND = {"NCCL_MAX_CTAS": "", "TUTTI_GPU_CHANNELS": "", "TUTTI_FAKE_MULTIPROCESSORS": "16"}

# Log.
probe("NCCL_DEBUG", "WARN", ALL, hide=" tutti INFO ")
probe("NCCL_DEBUG_SUBSYS", "INIT", ALL, hide="rank 0 of 2 listens at")
probe("NCCL_DEBUG_FILE", "{tmp}/other.%p", ALL, see=r"file other\.\d+\n")
probe("TUTTI_PRINT_INIT_TIMES", "1", ALL, see="init of 2 ranks: register [0-9.]+ ms")

# Seen from outside.
probe("TUTTI_OBSERVE", "0", ALL, hide="the board of this process is")
probe("TUTTI_OBSERVE_DIR", "{tmp}/boards", ALL, see="the board of this process is .*/boards/")
probe("TUTTI_OBSERVE_SIGNAL", "SIGUSR2", ALL, see="a signal asks: the state of this process", act=acts.signalled)
probe("TUTTI_FIND_SLOW_RANKS", "0", HOSTS, hide="is slow: in the last", act=acts.one_slow)
probe("NCCL_RAS_ENABLE", "0", ALL, hide="RAS listens for clients at")
probe("NCCL_RAS_ADDR", "127.0.0.1:{port}", HOSTS, see='"cuda_dev": -1,(?s:.*)"AllReduce": [12],', act=acts.polled)
probe("NCCL_RAS_ADDR", "127.0.0.1:{port}", GPUS, see='"cuda_dev": 1,(?s:.*)"AllReduce": [12],', act=acts.polled)
elsewhere(ALL, "src/ras/server_test.cc", "TheFactorMakesItWaitLonger", "NCCL_RAS_TIMEOUT_FACTOR")

# Rendezvous and bootstrap.
probe("NCCL_COMM_ID", "127.0.0.1:{port}", ALL, see="its root is at 127.0.0.1:{port}", TUTTI_COMM_KEY="a key of three words")
probe("TUTTI_COMM_KEY", "a key of three words", ALL, hide="(id|init) 5.*without a secret", NCCL_COMM_ID="0.0.0.0:{port}")
probe("TUTTI_INSECURE", "1", ALL, hide="(id|init) 5.*without a secret", NCCL_COMM_ID="0.0.0.0:{port}")
probe("NCCL_SOCKET_IFNAME", "nosuch0", ALL, see="(id|init) [1-9].*nosuch0")
probe("NCCL_OOB_NET_IFNAME", "nosuch0", ALL, see="(id|init) [1-9].*nosuch0")
probe("NCCL_SOCKET_FAMILY", "AF_INET6", ALL, see=r"listens at \[::1\]", NCCL_SOCKET_IFNAME="lo")
probe("TUTTI_PORT_RANGE", "28700-28999", ALL, see=r"rank 0 of 2 listens at \S+:28[789]\d\d;")
probe("TUTTI_INIT_TIMEOUT_S", "0.1", ALL, see="init 6? ?.*0.1 s", otherwise="0.3", act=acts.alone)
probe("TUTTI_HOST_TIMEOUT_S", "60", ALL, see="probes after 12 s", act=acts.idle_limits)
elsewhere(ALL, "src/bootstrap/bootstrap_test.cc", "SpreadsOutArrivalsAboveTheThreshold", "NCCL_UID_STAGGER_THRESHOLD",
          "NCCL_UID_STAGGER_RATE")
probe("NCCL_HOSTID", ("x", "y"), HOSTS + MESH, see='"hosts": ?2')
probe("NCCL_HOSTID", ("z", "z"), CHANNELS, see='"hosts": ?1', otherwise=("a", "b"))

# Communicators.
probe("NCCL_COMM_BLOCKING", "0", ALL, see="init 7")
probe("TUTTI_TIMEOUT_S", "0.3", HOSTS, see="TUTTI_TIMEOUT_S", act=acts.one_lags)
elsewhere(ALL, "tests/faults/death_test.cc", "OfTheMajorityEndsTheRestWithAQuorum", "TUTTI_QUORUM")
probe("NCCL_CHECK_POINTERS", "1", HOSTS, see="wild 4", act=acts.wild)
probe("NCCL_CHECK_POINTERS", "1", GPUS, see="wild 4 .*the end of", act=acts.wild)
probe("TUTTI_BACKEND", "host", HOSTS, see='"shm"', otherwise="cuda")
probe("TUTTI_BACKEND", "cuda", GPUS, see="CUDA device", otherwise="host")

# Transports.
probe("NCCL_P2P_DISABLE", "1", HOSTS, see="cannot read the memory of")
probe("NCCL_P2P_DISABLE", "1", MESH, see="by shared host memory")
probe("NCCL_P2P_DISABLE", "1", CHANNELS, see="shared host memory within a host", NCCL_HOSTID=TWO_AND_ONE)
probe("TUTTI_CMA_DISABLE", "1", HOSTS, see="cannot read the memory of")
probe("NCCL_SHM_DISABLE", "1", HOSTS, see='"Socket"')
probe("NCCL_SHM_DISABLE", "1", MESH, see="rings over", NCCL_P2P_DISABLE="1")
probe("NCCL_SHM_DISABLE", "1", CHANNELS, see="nothing within a host", NCCL_P2P_DISABLE="1", NCCL_HOSTID=TWO_AND_ONE)
probe("NCCL_NET", "Socket", BETWEEN, see="net Socket carries data", **VERBS)
probe("NCCL_NET_PLUGIN", "{plugins}/libnccl-net-example.so", BETWEEN, see="net: plugin .* is", **APART)
probe("NCCL_NET_PLUGIN", "{plugins}/libnccl-tuner-example_v7.so", MESH, see="tuner plugin .* advises")
probe("NCCL_TUNER_PLUGIN", "{plugins}/libnccl-tuner-example_v7.so", ALL, see="tuner plugin .* advises")
probe("NCCL_PROFILER_PLUGIN", "{plugins}/libnccl-profiler-example_v7.so", HOSTS, see="profiler plugin .* is")
probe("NCCL_ENV_PLUGIN", "{plugins}/libnccl-env-example_v2.so", ALL, see="environment plugin .* is")
probe("NCCL_SOCKET_NTHREADS", "3", BETWEEN, see=", 3 helper threads", **APART)
probe("NCCL_NSOCKS_PERTHREAD", "5", BETWEEN, see="[^0-9]5 data sockets", **APART)

elsewhere(BETWEEN, "src/transport/net/socket/resume_test.cc", "TheSettingSaysHowLongItTries", "TUTTI_RESUME_TIMEOUT_S")
elsewhere(BETWEEN, "src/transport/net/socket/resume_test.cc", "DamageOnTheWayIsSentAgain", "TUTTI_CHECKSUM", "TUTTI_ENCRYPT",
          named_in="src/transport/testing/socket_net_pair.h")

# InfiniBand and RoCE.
probe("NCCL_IB_DISABLE", "1", BETWEEN, see="NCCL_IB_DISABLE is set", hide="net IB carries data", **VERBS)
probe("TUTTI_IBVERBS", "{verbs}", BETWEEN, see="net IB carries data", **APART, FAKE_VERBS="fake0=10.77.0.1")
probe("TUTTI_RDMACM", "{verbs}", BETWEEN, see="net IB carries data", otherwise="libno-such.so",
      **{**VERBS, "FAKE_VERBS": "fake0=iwarp"})
probe("NCCL_IB_HCA", "=fake1", BETWEEN, hide="net IB: device 0 is fake0", **TWO_NICS)
probe("NCCL_IB_MERGE_NICS", "0", BETWEEN, see="net IB: device 1 is fake0", **TWO_PORTS)
probe("NCCL_NET_MERGE_LEVEL", "LOC", BETWEEN, see="net IB: device 1 is fake0", **TWO_PORTS)
probe("NCCL_NET_FORCE_MERGE", "fake0,fake1", BETWEEN, hide="net IB: device 1 is fake1", **TWO_NICS)
probe("NCCL_IB_GID_INDEX", "3", BETWEEN, see="NCCL_IB_GID_INDEX is 3", hide="net IB carries data", **VERBS)
probe("NCCL_IB_ADDR_RANGE", "10.9.0.0/16", BETWEEN, see="NCCL_IB_ADDR_RANGE", hide="net IB carries data", **VERBS)
probe("NCCL_IB_TIMEOUT", "17", BETWEEN, see="queue pair: timeout 17,", **VERBS)
probe("NCCL_IB_RETRY_CNT", "3", BETWEEN, see="retry_cnt 3", **VERBS)
probe("NCCL_IB_PKEY", "1", BETWEEN, see="pkey_index 1", **VERBS)
probe("NCCL_IB_SL", "5", BETWEEN, see="queue pair: sl 5,", **VERBS)
probe("NCCL_IB_TC", "8", BETWEEN, see="traffic_class 8", **VERBS)
probe("NCCL_IB_FIFO_TC", "12", BETWEEN, see="traffic_class 12", **VERBS)
probe("NCCL_IB_QPS_PER_CONNECTION", "3", BETWEEN, see="by 3 queue pairs", **VERBS)
probe("NCCL_IB_USE_INLINE", "1", BETWEEN, see="post_send: 32 bytes, flags 0x[89a-f],", act=acts.short, **VERBS)
probe("TUTTI_IB_SEND_NOTICES", "1", BETWEEN, see="post_send: .*opcode 2", **VERBS)
probe("NCCL_IB_ADAPTIVE_ROUTING", "1", BETWEEN, see="post_send: 0 bytes.*opcode 1", act=acts.long, **VERBS)
probe("NCCL_IB_AR_THRESHOLD", "1G", BETWEEN, hide="post_send: 0 bytes.*opcode 1", act=acts.long,
      NCCL_IB_ADAPTIVE_ROUTING="1", **VERBS)
probe("NCCL_IB_PCI_RELAXED_ORDERING", "0", BETWEEN, hide="reg_mr.*flags 0x100", **VERBS)
probe("NCCL_IB_RETURN_ASYNC_EVENTS", "0", BETWEEN, hide="asynchronous [1-9].*the device reported it", act=acts.long_job,
      FAKE_VERBS_FATAL_AFTER="40", TUTTI_RESUME_TIMEOUT_S="0", **VERBS)
elsewhere(CHANNELS, "tests/fakeverbs/gpu_direct", 'try "DMA-BUFs switched off"', "NCCL_DMABUF_ENABLE")
elsewhere(CHANNELS, "tests/fakeverbs/gpu_direct", 'try "flush switched off"', "NCCL_GDR_FLUSH_DISABLE")
elsewhere(CHANNELS, "tests/fakeverbs/gpu_direct", 'try "no reads"', "NCCL_NET_GDR_READ")
elsewhere(CHANNELS, "tests/fakeverbs/gpu_direct", 'try "a lower level"', "NCCL_NET_GDR_LEVEL")
elsewhere(CHANNELS, "tests/fakeverbs/gpu_direct", 'try "registered buffers, switched off"', "NCCL_LOCAL_REGISTER")
elsewhere(CHANNELS, "tests/fakeverbs/rails", 'alltoall "level 0"', "NCCL_P2P_PXN_LEVEL")
elsewhere(CHANNELS, "tests/fakeverbs/rails", 'alltoall "switched off"', "NCCL_PXN_DISABLE")

elsewhere(BETWEEN, "src/transport/net/verbs/merge_test.cc", "SettingsSayWhatIsMerged", "NCCL_IB_MERGE_VFS")
elsewhere(BETWEEN, "src/transport/net/verbs/choice_test.cc", "PrefersTheSecondVersionAndIpv4", "NCCL_IB_ROCE_VERSION_NUM")
elsewhere(BETWEEN, "src/transport/net/verbs/choice_test.cc", "PrefersAddressesThatAreNotLinkLocal", "NCCL_IB_ADDR_FAMILY")
probe("NCCL_GIN_IB_TC", "16", BETWEEN, see="traffic_class 16", act=acts.window, **VERBS)
probe("NCCL_IB_SPLIT_DATA_ON_QPS", "1", BETWEEN, hide=r"post_send: \d{6} bytes, flags 0x2, opcode 1", act=acts.long,
      NCCL_IB_QPS_PER_CONNECTION="2", **VERBS)

# Windows and GIN.
probe("NCCL_WIN_ENABLE", "0", ALL, see="there is no window.*NCCL_WIN_ENABLE", act=acts.window)
probe("NCCL_WIN_STRIDE", "4G", HOSTS, see="NCCL_WIN_STRIDE", act=acts.large_windows)
unproven(GPUS, "the stand-in for a driver takes minutes over windows of gigabytes", "NCCL_WIN_STRIDE")
probe("NCCL_LSA_TEAM_SIZE", "1", HOSTS + MESH, see="lsa_teams 2", act=acts.window)
probe("NCCL_GIN_ENABLE", "0", ALL, hide="gin_type [1-9]", act=acts.window)
probe("NCCL_GIN_PLUGIN", "{plugins}/libnccl-gin-example_v13.so", BETWEEN, see="carries one-sided operations\n", act=acts.window,
      **APART)
probe("NCCL_GIN_PLUGIN", "{plugins}/libnccl-gin-example_v13.so", MESH, see="carries one-sided operations\n", act=acts.window,
      NCCL_LSA_TEAM_SIZE="1")
probe("NCCL_RMA_PLUGIN", "{plugins}/libnccl-gin-example_v14.so", BETWEEN, see="carries one-sided operations\n", act=acts.window,
      **APART)
probe("NCCL_RMA_PLUGIN", "{plugins}/libnccl-gin-example_v14.so", MESH, see="carries one-sided operations\n", act=acts.window,
      NCCL_LSA_TEAM_SIZE="1")
probe("NCCL_GIN_PROXY_QUEUE_SIZE", "32768", HOSTS, see=r"grown [2-9]\d MiB", act=acts.device_communicator)
probe("NCCL_GIN_PROXY_QUEUE_SIZE", "32768", GPUS, see=r"grown 1\d\d MiB", act=acts.device_communicator)
elsewhere(HOSTS, "tests/fakecard/direct_test.cc", "ItIsAskedForAndToldOf", "NCCL_GIN_TYPE")
elsewhere(HOSTS, "tests/fakecard/direct_test.cc", "AnErrorThatNobodyWaitsForIsFound", "NCCL_GIN_ERROR_QUERY_SEC")
elsewhere(HOSTS, "tests/fakecard/direct_test.cc", "QueuesAreAsLongAsIsAskedFor", "NCCL_GIN_GDAKI_QP_DEPTH")
elsewhere(HOSTS, "tests/fakecard/direct_test.cc", "OtherWaysToTellTheCardAreRefused", "NCCL_GIN_GDAKI_NIC_HANDLER")
elsewhere(HOSTS, "tests/fakecard/direct_test.cc", "SaysThatThereIsNoLibrary", "TUTTI_MLX5")
unproven(GPUS, "only kernels of hosts drive the stand-in for a card; GPUs need a card (tests/gpu)", "NCCL_GIN_TYPE",
         "NCCL_GIN_ERROR_QUERY_SEC", "NCCL_GIN_GDAKI_QP_DEPTH", "NCCL_GIN_GDAKI_NIC_HANDLER", "TUTTI_MLX5")

# GPUs.
probe("TUTTI_STRICT_TRANSPORT", "1", MESH, see="TUTTI_STRICT_TRANSPORT is set, and windows", TUTTI_FAKE_NO_PEER="1")
probe("TUTTI_STRICT_TRANSPORT", "1", CHANNELS, see="TUTTI_STRICT_TRANSPORT is set, and windows", TUTTI_FAKE_NO_PEER="1",
      NCCL_HOSTID=TWO_AND_ONE)
unproven(HOSTS, "ranks of a host share memory wherever the tests run (src/comm/reach_test.cc has the rule itself)",
         "TUTTI_STRICT_TRANSPORT")
unproven(CHANNELS, "how soon a busy proxy looks for new operations shows in times alone", "NCCL_PROGRESS_APPENDOP_FREQ")
probe("NCCL_BUFFSIZE", "64K", CHANNELS, see="slices of 8192 bytes")
probe("NCCL_CUMEM_ENABLE", "0", MESH, see="shared by CUDA IPC")
probe("NCCL_CUMEM_ENABLE", "0", CHANNELS, see="NCCL_CUMEM_ENABLE is 0 on a rank", act=acts.window)
probe("TUTTI_GPU_WINDOW", "1M", MESH, see="plan AllReduce of 10000000: .*chunks of 32468")
probe("NCCL_MIN_CTAS", "7", MESH, see="plan AllReduce of 1000: .* 7 blocks", **UNBOUND)
probe("NCCL_MAX_CTAS", "3", MESH, see="plan AllReduce of 10000000: .* 3 blocks", otherwise="",
      **without("NCCL_MAX_CTAS", UNBOUND))
probe("NCCL_MIN_NCHANNELS", "7", MESH, see="plan AllReduce of 1000: .* 7 blocks", **UNBOUND)
probe("NCCL_MAX_NCHANNELS", "3", MESH, see="plan AllReduce of 10000000: .* 3 blocks", **UNBOUND)
probe("NCCL_MIN_CTAS", "5", CHANNELS, see="rings over 5 channels", **UNBOUND)
probe("NCCL_MIN_NCHANNELS", "5", CHANNELS, see="rings over 5 channels", **UNBOUND)
probe("NCCL_MAX_CTAS", "3", CHANNELS, see="rings over 3 channels", otherwise="", NCCL_MIN_CTAS="6", TUTTI_GPU_CHANNELS="")
probe("NCCL_MAX_NCHANNELS", "3", CHANNELS, see="rings over 3 channels", NCCL_MIN_CTAS="6", **UNBOUND)
probe("TUTTI_GPU_TUNE", "step_us=0", MESH, see="plan AllReduce of 1000: ring")
probe("TUTTI_GPU_CHANNELS", "3", CHANNELS, see="rings over 3 channels", otherwise="2")
probe("NCCL_MULTI_RANK_GPU_ENABLE", "1", MESH, see="joined", act=acts.same_gpu)
probe("NCCL_MULTI_RANK_GPU_ENABLE", "1", CHANNELS, see="joined", act=acts.same_gpu, NCCL_HOSTID=("c", "c"),
      NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1")
probe("TUTTI_GPU_FAULT", "peer", MESH, see="cannot work in one another's windows in")
probe("NCCL_GRAPH_MIXING_SUPPORT", "0", GPUS, hide="nodes [3-9]", act=acts.graph)
probe("TUTTI_HUGE_PAGES", "0", HOSTS, see="advised 0 mappings", act=acts.memory_maps)
probe("TUTTI_HUGE_PAGES", "0", HOSTS, see="advised 0 mappings", act=acts.memory_maps, **APART)

probe("NCCL_BUFFSIZE", "64K", HOSTS, see="channel 0: chunks of 32 KB, slices of 8 KB", **APART)

# Topology.
MACHINE = "{here}/../fakegpu/four_gpus.xml"
probe("NCCL_TOPO_FILE", MACHINE, HOSTS, see="The machine is described by", **APART)
probe("NCCL_TOPO_FILE", MACHINE, CHANNELS, see="The machine is described by")
probe("NCCL_TOPO_DUMP_FILE", "{tmp}/machine.xml", ALL, see="file machine.xml\n<system")
probe("NCCL_TOPO_DUMP_FILE_RANK", "7", ALL, hide="file machine.xml\n<system", NCCL_TOPO_DUMP_FILE="{tmp}/machine.xml")
probe("NCCL_P2P_LEVEL", "LOC", MESH, see="by shared host memory")
probe("NCCL_P2P_LEVEL", "LOC", CHANNELS, see="shared host memory within a host", NCCL_HOSTID=TWO_AND_ONE)
probe("NCCL_GRAPH_FILE", "{here}/ring.xml", HOSTS, see="ring 0 2 1 ", NCCL_HOSTID=("a", "a", "a"))
probe("NCCL_GRAPH_FILE", "{here}/ring.xml", CHANNELS, see="the first is 0 2 1\n", NCCL_HOSTID=("a", "a", "a"),
      NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1")
probe("NCCL_GRAPH_DUMP_FILE", "{tmp}/graph.xml", ALL, see="file graph.xml\n<graphs")
probe("NCCL_GRAPH_DUMP_FILE_RANK", "7", ALL, hide="file graph.xml\n<graphs", NCCL_GRAPH_DUMP_FILE="{tmp}/graph.xml")
probe("NCCL_CROSS_NIC", "0", CHANNELS, see='crossnic="0"', NCCL_GRAPH_DUMP_FILE="{tmp}/graph.xml",
      NCCL_TOPO_FILE="{here}/two_nics.xml", **{**TWO_NICS, "NCCL_HOSTID": ("a", "a", "b", "b")})

elsewhere(CHANNELS, "src/topology/path_rules_test.cc", "RelaysToNics", "NCCL_NET_GDR_C2C", "NCCL_PXN_C2C")
elsewhere(CHANNELS, "src/topology/path_rules_test.cc", "NvlinkThroughAThirdGpu", "NCCL_NVB_DISABLE")
elsewhere(HOSTS, "tests/conformance/processes_test.cc", "CountsOnTheLatencyThatASettingGives", "TUTTI_NET_LATENCY_US")
unproven(HOSTS, "one ring leaves by another NIC only with the value 1, on machines that no test describes", "NCCL_CROSS_NIC")

# Algorithms and work.
probe("NCCL_ALGO", "tree", HOSTS, see="plan AllReduce of 100000: .*[Tt]ree")
probe("NCCL_ALGO", "ring", MESH, see="plan AllReduce of 1000: ring")
probe("NCCL_ALGO", "ring", CHANNELS, see="plan AllReduce of 1000: ring")
probe("NCCL_PROTO", "Simple", HOSTS, see="plan AllReduce of 1: .* OneShot Simple")
probe("NCCL_PROTO", "Simple", MESH, see="plan AllReduce of 1: .* by Simple")
THREE_HOSTS = {"NCCL_HOSTID": ("a", "b", "c")}
probe("TUTTI_DETERMINISTIC", "1", HOSTS, see="plan AllReduce of 100000: .*TwoShot", **THREE_HOSTS)
probe("TUTTI_DETERMINISTIC", "1", MESH, see="plan AllReduce of 10000000: two-shot", NCCL_HOSTID=("a", "a", "a"))
probe("TUTTI_DETERMINISTIC", "1", CHANNELS, see="plan AllReduce of 100000: rank-order", **THREE_HOSTS)
unproven(HOSTS, "waits spin longer or shorter, which only times show", "TUTTI_SPIN_US")

# The coordinator.
TUNE = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": "{tmp}/tune.csv", "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "0",
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "1", "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "6"}

probe("HOROVOD_FUSION_THRESHOLD", "0", COORDINATOR, see=r"counter batches (1[5-9]|2\d)", act=acts.coordinate)
probe("HOROVOD_CYCLE_TIME", "3.5", COORDINATOR, see=r"tune.csv\n(.*\n)?.*,3500.0,", act=acts.steps, **TUNE)
probe("HOROVOD_CACHE_CAPACITY", "0", COORDINATOR, see="counter cached 0\n", act=acts.coordinate)
elsewhere(COORDINATOR, "src/coordinator/operations_test.cc", "HierarchicalAllreduceAndAllgather",
          "HOROVOD_HIERARCHICAL_ALLREDUCE", "HOROVOD_HIERARCHICAL_ALLGATHER")
probe("HOROVOD_DISABLE_GROUP_FUSION", "1", COORDINATOR, see="counter batches 1\d\d\n", act=acts.group_and_tensor)
for name in ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"):
    probe(name, "nccl:/nowhere.so", COORDINATOR, see=f"{name} asks for", act=acts.coordinate)
for name in ("OPERATIONS", "ALLREDUCE", "ALLGATHER", "BROADCAST", "ALLTOALL", "REDUCESCATTER"):
    probe(f"HOROVOD_GPU_{name}", "nonsense", COORDINATOR, see=f"HOROVOD_GPU_{name} asks for", act=acts.coordinate,
          TUTTI_BACKEND="", NCCL_MAX_CTAS="2")
probe("TUTTI_NCCL_LIBRARY", "/nowhere.so", COORDINATOR, see="cannot be had.*/nowhere.so", act=acts.coordinate,
      TUTTI_BACKEND="", NCCL_MAX_CTAS="2", HOROVOD_GPU_OPERATIONS="nccl")
probe("HOROVOD_STALL_CHECK_TIME_SECONDS", "0.2", COORDINATOR, see="has waited for more than 0.2 s", act=acts.stall)
probe("HOROVOD_STALL_CHECK_DISABLE", "1", COORDINATOR, hide="has waited for more than 0.2 s", act=acts.stall,
      HOROVOD_STALL_CHECK_TIME_SECONDS="0.2")
probe("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "0.3", COORDINATOR, see="wait [1-9]", act=acts.stall,
      HOROVOD_STALL_CHECK_TIME_SECONDS="0.1")
probe("HOROVOD_TIMELINE", "{tmp}/timeline.json", COORDINATOR, see="file timeline.json\n", act=acts.coordinate)
probe("HOROVOD_TIMELINE_MARK_CYCLES", "1", COORDINATOR, see="CYCLE", act=acts.coordinate,
      HOROVOD_TIMELINE="{tmp}/timeline.json")
probe("HOROVOD_AUTOTUNE", "1", COORDINATOR, see="file tune.csv\n", act=acts.steps, **without("HOROVOD_AUTOTUNE", TUNE))
probe("HOROVOD_AUTOTUNE_LOG", "{tmp}/tune.csv", COORDINATOR, see="file tune.csv\n", act=acts.steps,
      **without("HOROVOD_AUTOTUNE_LOG", TUNE))
SIX_SAMPLES = r"file tune.csv\n(.*\n)?(\d+,[\d.]+,\d,\d,\d,[\d.]+\n){6}"
probe("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "38", COORDINATOR, hide=SIX_SAMPLES, otherwise="0", act=acts.steps,
      **without("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", TUNE))
probe("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "20", COORDINATOR, hide=SIX_SAMPLES, otherwise="1", act=acts.steps,
      **without("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", TUNE))
probe("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "2", COORDINATOR, hide=SIX_SAMPLES, otherwise="6", act=acts.steps,
      **without("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", TUNE))
unproven(COORDINATOR, "the search goes by measured times, so that two searches differ in any case",
         "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE")
