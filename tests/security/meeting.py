"""Attacks on the meeting of the ranks by a user who knows what everybody may know: the launcher's variables, the port,
the job's number, the unique id."""

import rank as ranks
import stage as stages
from outcome import Outcome, attack

VICTIMS_NUMBER, FOREIGN_NUMBER, OWN_NUMBER = 1234.5, 1.0, 2.0
# Data must go over sockets, as between two hosts: the users of this machine share no memory.
SOCKETS = {"TUTTI_BACKEND": "host", "NCCL_SHM_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"}
PATIENT = {"TUTTI_INIT_TIMEOUT_S": "12"}
# An attacker stops after a time that is ample for an attack, and allows itself what the library warns of.
ATTACKERS = {"TUTTI_INIT_TIMEOUT_S": "1.5", "TUTTI_INSECURE": "1"}


def torchrun(rank, port, one_machine=True):
    place = ("127.0.0.1", str(rank), "2") if one_machine else (stages.OWN_ADDRESS, "0", "1")
    return {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": place[1], "LOCAL_WORLD_SIZE": place[2],
            "MASTER_ADDR": place[0], "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_RESTART_COUNT": "0", **SOCKETS}


def slurm(rank, job, nodes="1(x2)"):
    return {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": "0",
            "SLURM_STEP_NODELIST": stages.OWN_ADDRESS, "SLURM_NODEID": "0" if nodes == "2" else str(rank),
            "SLURM_LOCALID": str(rank) if nodes == "2" else "0", "SLURM_STEP_TASKS_PER_NODE": nodes, **SOCKETS}


def horovod(rank, **more):
    return {"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": "2", **SOCKETS, **more}


def start(stage, environment, number, **options):
    return stage.start(ranks.take_part, stage.library, number, environment={**PATIENT, **environment}, **options)


def start_attacker(stage, environment):
    return start(stage, {**environment, **ATTACKERS}, FOREIGN_NUMBER, user=stages.ATTACKER)


def _take_part_disguised(talk, library, number):
    stages.disguise_as(stages.VICTIM)
    ranks.take_part(talk, library, number)


def start_disguised(stage, environment):
    """Starts an attacker whose library believes to be the victims', and so finds the victims' local socket and key."""
    assert hasattr(stages.libc, "DisguiseAs"), "the build has no tests/security/security_disguise.so"
    return stage.start(_take_part_disguised, stage.library, FOREIGN_NUMBER, user=stages.ATTACKER,
                       environment={**PATIENT, **environment, **ATTACKERS})


def outcome_of(process):
    """Returns what a rank tells last: ("sum", number) or ("refused", sentence)."""
    heard = None
    while heard is None or heard[0] == "id":
        heard = process.hear()
        if heard is None:
            return ("refused", f"silent: {process.log()}")
    return heard


def expect_sum(process, number):
    outcome = outcome_of(process)
    assert outcome == ("sum", number), f"a right rank should have {number}: {outcome}\n{process.log()}"


def join_as(stage, environment_of, own_part_after):
    """The victim is rank 0, or both ranks where nobody may meet without a secret. The attacker is rank 1 before the
    right rank 1 comes."""
    victim = start(stage, environment_of(0), VICTIMS_NUMBER)
    attacker = start_attacker(stage, environment_of(1))
    stolen = outcome_of(attacker)
    if stolen == ("sum", VICTIMS_NUMBER + FOREIGN_NUMBER):
        return Outcome(True, f"another user is rank 1, and has read {VICTIMS_NUMBER} of rank 0")
    attacker.end()
    if own_part_after:
        friend = start(stage, environment_of(1), OWN_NUMBER)
        expect_sum(friend, VICTIMS_NUMBER + OWN_NUMBER)
        expect_sum(victim, VICTIMS_NUMBER + OWN_NUMBER)
        return Outcome(False, f"the attacker hears \"{stolen[1]}\", and the right rank 1 takes part")
    return expect_demand_for_secret(victim)


def expect_demand_for_secret(process):
    """A rank without a secret must not start, and must say what to set."""
    kind, sentence = outcome_of(process)
    assert kind == "refused" and "TUTTI_COMM_KEY" in sentence, f"a rank without a secret goes on: {kind} {sentence}"
    return Outcome(False, f"rank 0 does not start: \"{sentence}\"")


@attack("F1", "join a torchrun job of one machine by its variables")
def torchrun_of_one_machine(stage):
    port = stages.free_port()
    return join_as(stage, lambda rank: torchrun(rank, port), own_part_after=True)


@attack("F1", "join a torchrun job of several machines by its variables")
def torchrun_of_machines(stage):
    port = stages.free_port()
    return join_as(stage, lambda rank: torchrun(rank, port, one_machine=False), own_part_after=False)


@attack("F1", "join a Slurm step of several nodes by its number")
def slurm_step(stage):
    return join_as(stage, lambda rank: slurm(rank, 4242), own_part_after=False)


@attack("F1", "be rank 0 of a torchrun job: listen first")
def false_rank_0(stage):
    port = stages.free_port()
    attacker = start_attacker(stage, torchrun(0, port))
    stages.await_true(lambda: stages.listens(port), 0.5)
    victim = start(stage, torchrun(1, port), VICTIMS_NUMBER)
    stolen = outcome_of(attacker)
    if stolen == ("sum", VICTIMS_NUMBER + FOREIGN_NUMBER):
        return Outcome(True, f"another user is rank 0, and has read {VICTIMS_NUMBER} of rank 1")
    friend = start(stage, torchrun(0, port), OWN_NUMBER)
    expect_sum(friend, VICTIMS_NUMBER + OWN_NUMBER)
    expect_sum(victim, VICTIMS_NUMBER + OWN_NUMBER)
    return Outcome(False, f"the attacker hears \"{stolen[1]}\", and the right rank 0 takes part")


@attack("-", "join a job of one machine at its local socket, with an altered library")
def local_socket(stage):
    victim = start(stage, slurm(0, 4244, nodes="2"), VICTIMS_NUMBER)
    attacker = start_disguised(stage, slurm(1, 4244, nodes="2"))
    stolen = outcome_of(attacker)
    friend = start(stage, slurm(1, 4244, nodes="2"), OWN_NUMBER)
    if stolen[0] == "sum":
        return Outcome(True, f"another user is rank 1, and has read {VICTIMS_NUMBER} of rank 0")
    expect_sum(friend, VICTIMS_NUMBER + OWN_NUMBER)
    expect_sum(victim, VICTIMS_NUMBER + OWN_NUMBER)
    return Outcome(False, f"the attacker hears \"{stolen[1]}\", and the right rank 1 takes part")


@attack("-", "be rank 0 of a job of one machine at its local socket, with an altered library")
def local_rank_0(stage):
    attacker = start_disguised(stage, slurm(0, 4245, nodes="2"))
    victim = start(stage, {**slurm(1, 4245, nodes="2"), "TUTTI_INIT_TIMEOUT_S": "1.5"}, VICTIMS_NUMBER)
    stolen = outcome_of(attacker)
    heard = outcome_of(victim)
    return Outcome("sum" in (stolen[0], heard[0]), f"the attacker hears \"{stolen[1]}\", rank 1 \"{heard[1]}\"")


def _take_part_with_id_disguised(talk, library, number):
    stages.disguise_as(stages.VICTIM)
    ranks.take_part_with_id(talk, library, None, 1, 2, number)


@attack("F12", "join a job of NCCL_COMM_ID by the port alone, with an altered library")
def fixed_id(stage):
    environment = {**SOCKETS, **PATIENT, "NCCL_COMM_ID": f"127.0.0.1:{stages.free_port()}"}
    victim = stage.start(ranks.take_part_with_id, stage.library, None, 0, 2, VICTIMS_NUMBER, environment=environment)
    heard = victim.hear()
    if heard[0] == "refused":
        assert "TUTTI_COMM_KEY" in heard[1], heard
        return Outcome(False, f"rank 0 does not start: \"{heard[1]}\"")
    attacker = stage.start(_take_part_with_id_disguised, stage.library, FOREIGN_NUMBER, user=stages.ATTACKER,
                           environment={**environment, **ATTACKERS})
    stolen = outcome_of(attacker)
    if stolen[0] == "sum":
        return Outcome(True, f"another user as rank 1: {stolen}")
    friend = stage.start(ranks.take_part_with_id, stage.library, None, 1, 2, OWN_NUMBER, environment=environment)
    expect_sum(friend, VICTIMS_NUMBER + OWN_NUMBER)
    return Outcome(False, f"the attacker hears \"{stolen[1]}\", and the right rank 1 takes part")


@attack("F3", "join a job with TUTTI_COMM_KEY by its id, without the key")
def id_without_key(stage):
    """The attacker has read the id in a store that anybody reads, as torch's is."""
    secret = {**SOCKETS, **PATIENT, "TUTTI_COMM_KEY": "only the ranks know this text"}
    victim = stage.start(ranks.take_part_with_id, stage.library, None, 0, 2, VICTIMS_NUMBER, environment=secret)
    kind, unique = victim.hear()
    assert kind == "id", unique
    # The flags of an id tell a rank without the secret to give up; an attacker takes the flags away.
    for taken in (unique, unique[:64] + bytes(4) + unique[68:]):
        attacker = stage.start(ranks.take_part_with_id, stage.library, taken, 1, 2, FOREIGN_NUMBER,
                               user=stages.ATTACKER, environment={**SOCKETS, **ATTACKERS})
        stolen = outcome_of(attacker)
        if stolen == ("sum", VICTIMS_NUMBER + FOREIGN_NUMBER):
            return Outcome(True, f"with the id alone another user is rank 1, and has read {VICTIMS_NUMBER}")
    friend = stage.start(ranks.take_part_with_id, stage.library, unique, 1, 2, OWN_NUMBER, environment=secret)
    expect_sum(friend, VICTIMS_NUMBER + OWN_NUMBER)
    return Outcome(False, f"the attacker hears \"{stolen[1]}\", and the right rank 1 takes part")
