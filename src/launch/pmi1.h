#pragma once

// Implements a client of PMI-1, the line protocol between the launchers MPICH's hydra and Slurm and
// their processes. PMI-1 needs no library: the launcher leaves a connected socket, PMI_FD.
//
//   cmd=put kvsname=… key=… value=…\n        cmd=put_result rc=0 msg=success\n
//   cmd=barrier_in\n                         cmd=barrier_out rc=0\n
//   cmd=get kvsname=… key=…\n                cmd=get_result rc=0 msg=success value=…\n
//
// Use from one thread. The owner calls Finalize before the process ends; otherwise hydra takes the
// process for crashed.

#include <map>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace tutti::launch {

// The fields of a line, by name.
using Pmi1Fields = std::map<std::string, std::string, std::less<>>;

// Reads "name=value" words with blanks between them. Words without "=" are left out; of two words
// with the same name the first counts.
Pmi1Fields ParsePmi1Line(std::string_view line);

class Pmi1Client {
 public:
  // Takes the socket that the launcher left (PMI_FD) and introduces this process.
  static Result<Pmi1Client> Connect(int fd, Deadline deadline);
  // Does the same over a connected socket.
  static Result<Pmi1Client> Start(UniqueFd fd, Deadline deadline);

  // Stores a value, which may hold letters, digits and most punctuation, but no blank and no end of
  // line. REQUIRES: value.size() <= max_value()
  Status Put(std::string_view key, std::string_view value, Deadline deadline);
  // Returns when every process of the job has called Barrier; values of earlier Puts can then be
  // read.
  Status Barrier(Deadline deadline);
  Result<std::string> Get(std::string_view key, Deadline deadline);
  Status Finalize(Deadline deadline);

  size_t max_value() const { return max_value_; }

 private:
  using Fields = Pmi1Fields;

  explicit Pmi1Client(UniqueFd fd) : fd_(std::move(fd)) {}
  Status Introduce(Deadline deadline);
  // Sends a line and reads the answer, whose command must be `answer` and whose rc, if any, 0.
  Result<Fields> Ask(std::string line, std::string_view answer, Deadline deadline);
  Result<Fields> ReadLine(Deadline deadline);

  UniqueFd fd_;
  std::string pending_;  // bytes after the last whole line
  std::string space_;    // name of the job's key-value space
  size_t max_value_ = 0;
};

}  // namespace tutti::launch
