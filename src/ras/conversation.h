#pragma once

// What a client of RAS says, and what is answered at once: NCCL's client protocol, version 2. A
// command is a line, ended by a line feed or by a carriage return and a line feed; upper and lower
// case are alike.
//
//   CLIENT PROTOCOL n              SERVER PROTOCOL 2
//   TIMEOUT seconds                OK            how long the answer may wait for other hosts
//   SET FORMAT text|json           OK
//   STATUS, VERBOSE STATUS         the answer, and the end of the connection
//   MONITOR [lifecycle,trace,all]  OK, and then a text for each event
//   anything else                  ERROR: and what is wrong
//
// A state machine without sockets. The loop of the server owns it.

#include <cstdint>
#include <string>
#include <string_view>

namespace tutti::ras {

class Conversation {
 public:
  // A line without an end is refused from this length on, as NCCL does.
  static constexpr size_t kMostLineBytes = 1024;

  enum class State {
    kTalking,  // further commands may come
    kStatus,   // the client awaits the answer of STATUS and says nothing more
    kOver,     // the client sent a line that is too long
  };

  // Takes bytes of the client and returns the bytes of the answer.
  std::string Take(std::string_view bytes);

  // Says whether there is room for a further monitoring client.
  void set_may_monitor(bool may) { may_monitor_ = may; }

  State state() const { return state_; }
  bool as_json() const { return as_json_; }
  bool verbose() const { return verbose_; }
  bool monitors() const { return monitors_; }       // wants events
  int64_t timeout_s() const { return timeout_s_; }  // 0: none; kDefaultTimeout: not said
  static constexpr int64_t kDefaultTimeout = -1;

 private:
  std::string Answer(std::string_view line);
  std::string AnswerMonitor(std::string_view groups);

  std::string line_;  // the begin of a line
  State state_ = State::kTalking;
  bool as_json_ = false;
  bool verbose_ = false;
  bool monitors_ = false;
  bool may_monitor_ = true;
  int64_t timeout_s_ = kDefaultTimeout;
};

}  // namespace tutti::ras
