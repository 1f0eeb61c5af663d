#pragma once

// Where the secret of a job comes from: the only place that knows the variables and the file. The
// secret is a text that all ranks of a job hold and nobody else knows. The settings (comm_key) and
// the meeting of ranks at launch use the same secret.
//
// Of the following sources, the first source with a secret counts:
//
//   TUTTI_COMM_KEY                          a person's text, or the random text of `tutti run`
//   OMPI_MCA_orte_precondition_transports   the random text of Open MPI 4 for the ranks of one mpirun
//   _HOROVOD_SECRET_KEY                     Horovod's random key on Spark and of elastic jobs: 32
//                                           bytes, pickled and in base64. The text serves as it is.
//   ~/.tutti/key                            the file of `tutti key`, the same on all hosts
//
// Slurm, MPICH, PMIx and Open MPI 5 give the ranks no secret.
//
// Open MPI 4 also sets its variable in MPI_Init: to a text of its own in each process that was
// started without a launcher, and under `srun --mpi=pmix` to the numbers of the job and the step,
// which anybody can guess. The variable therefore counts only where mpirun has set it: where the
// environment at the start of the program has it together with OMPI_COMM_WORLD_RANK, and the text's
// first number (hexadecimal, 64 bits) is not below 2^32, as the number of a job is. A program that
// overwrites the environment at its start (Python's setproctitle does) has no secret of Open MPI.
//
// Any thread may call these functions.

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "base/erased.h"
#include "base/status.h"
#include "config/settings.h"

namespace tutti {

// A shorter secret is refused, because a guesser would find the secret.
inline constexpr size_t kShortestSecretBytes = 8;

struct Secret {
  ErasedText text;     // empty: the job has no secret
  std::string source;  // the variable or the path of the file; empty without a secret
};

// Returns the variables with secrets, in the order in which they count. A program that starts a
// process without a rank removes the variables with secrets from the environment of the process.
std::span<const char* const> SecretVariables();

// Returns the environment that this process had when its program began (/proc/self/environ), and
// no variables where the file cannot be read.
Environment EnvironmentAtExec();

// Returns the secret of a process with `environment`. `at_exec` returns the environment with which
// the program began, and is called only where `environment` has Open MPI's variable. InvalidUsage
// for a secret of less than kShortestSecretBytes, and for a file that others may read or that
// belongs to another user.
Result<Secret> FindSecret(const Environment& environment,
                          const std::function<Environment()>& at_exec = EnvironmentAtExec);

// Returns InvalidUsage where `text`, from `source`, is too short for a secret.
Status CheckSecretLength(std::string_view text, std::string_view source);

// Returns the path of the file: ~/.tutti/key, or nothing where HOME is not set.
std::string SecretFilePath(const Environment& environment);

}  // namespace tutti
