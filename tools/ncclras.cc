// ncclras: asks a job for its state by NCCL's RAS protocol (docs/ras.md), and prints the answer.
// The options, the output and the exit status are those of NCCL's program of this name, so the
// program serves the jobs of either library. Uses no part of Tutti.

#include <getopt.h>
#include <netdb.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "nccl.h"

namespace {

constexpr const char* kHost = "localhost";
constexpr const char* kPort = "28028";
constexpr int kProtocol = 2;
// A server waits this long for other hosts unless it is told otherwise, and a little longer for the
// collection as a whole.
constexpr int kServerSeconds = 5, kExtraSeconds = 5;
// The greeting takes a moment. A process that is stopped does not greet, and the next connection
// leads to another process of the job.
constexpr int kGreetingSeconds = 1, kMostAttempts = 20;

struct Options {
  const char* host = kHost;
  const char* port = kPort;
  const char* format = nullptr;
  const char* groups = nullptr;  // of events
  int timeout = -1;              // seconds; -1: not said
  bool verbose = false;
  bool monitor = false;
};

void PrintUsage(const char* program) {
  fprintf(stderr,
          "Usage: %s [OPTION]...\n"
          "Ask a running job for its state, through the RAS of NCCL or Tutti.\n\n"
          "  -f, --format=FORMAT     text (the default) or json\n"
          "  -h, --host=HOST         where a process of the job runs (default: %s)\n"
          "  -m, --monitor[=GROUPS]  stay, and print events: lifecycle (the default), trace, all\n"
          "  -p, --port=PORT         the port in NCCL_RAS_ADDR of the job (default: %s)\n"
          "  -t, --timeout=SECONDS   how long the job waits for its other hosts (default: %d;\n"
          "                          0: as long as need be)\n"
          "  -v, --verbose           list the ranks of larger groups, too\n"
          "      --help              print this help and exit\n"
          "      --version           print the version and exit\n",
          program, kHost, kPort, kServerSeconds);
}

int WholeSeconds(const char* text) {
  char* end = nullptr;
  const long seconds = strtol(text, &end, 10);
  if (*text != '\0' && *end == '\0' && seconds >= 0 && seconds <= 86400)
    return static_cast<int>(seconds);
  fprintf(stderr, "Invalid timeout: %s\n", text);
  exit(1);
}

Options ReadOptions(int argc, char** argv) {
  const std::array<option, 9> names = {{{"format", required_argument, nullptr, 'f'},
                                        {"help", no_argument, nullptr, 'e'},
                                        {"host", required_argument, nullptr, 'h'},
                                        {"monitor", optional_argument, nullptr, 'm'},
                                        {"port", required_argument, nullptr, 'p'},
                                        {"timeout", required_argument, nullptr, 't'},
                                        {"verbose", no_argument, nullptr, 'v'},
                                        {"version", no_argument, nullptr, 'r'},
                                        {}}};
  Options options;
  for (int c; (c = getopt_long(argc, argv, "f:h:m::p:t:v", names.data(), nullptr)) != -1;) {
    if (c == 'f') options.format = optarg;
    if (c == 'h') options.host = optarg;
    if (c == 'm') options.monitor = true, options.groups = optarg;
    if (c == 'p') options.port = optarg;
    if (c == 't') options.timeout = WholeSeconds(optarg);
    if (c == 'v') options.verbose = true;
    if (c == 'r') {
      fprintf(stderr, "NCCL RAS client version %d.%d.%d (Tutti)\n", NCCL_MAJOR, NCCL_MINOR,
              NCCL_PATCH);
      exit(0);
    }
    if (c != 'e' && c != '?') continue;
    PrintUsage(argv[0]);
    exit(c == 'e' ? 0 : 1);
  }
  if (options.format != nullptr && strcasecmp(options.format, "text") != 0 &&
      strcasecmp(options.format, "json") != 0) {
    fprintf(stderr, "Invalid format: %s (must be text or json)\n", options.format);
    exit(1);
  }
  return options;
}

// A connection to a process of the job. Functions that fail have said why on standard error.
class Connection {
 public:
  Connection() = default;
  ~Connection() {
    if (fd_ >= 0) close(fd_);
  }
  Connection(Connection&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool Open(const Options& options) {
    addrinfo hints = {}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (const int error = getaddrinfo(options.host, options.port, &hints, &found); error != 0) {
      fprintf(stderr, "%s:%s: %s\n", options.host, options.port, gai_strerror(error));
      return false;
    }
    int error = 0;
    for (const addrinfo* one = found; one != nullptr && fd_ < 0; one = one->ai_next) {
      fd_ = socket(one->ai_family, one->ai_socktype, one->ai_protocol);
      if (fd_ < 0) continue;
      SetTimeout(options.timeout == 0 ? 0 : kGreetingSeconds);
      if (connect(fd_, one->ai_addr, one->ai_addrlen) == 0) continue;
      error = errno == EINPROGRESS ? ETIMEDOUT : errno;  // SO_SNDTIMEO has ended the attempt.
      close(fd_);
      fd_ = -1;
    }
    freeaddrinfo(found);
    if (fd_ < 0)
      fprintf(stderr,
              "Connecting to %s:%s: %s. Does a job run there, and is NCCL_RAS_ADDR of the job this "
              "address?\n",
              options.host, options.port, strerror(error));
    return fd_ >= 0;
  }

  // Bounds every wait; 0: no bound.
  void SetTimeout(int seconds) const {
    const timeval time = {.tv_sec = seconds, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time));
  }

  bool Send(const std::string& line) const {
    for (size_t sent = 0; sent < line.size();) {
      const ssize_t now = send(fd_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
      if (now < 0 && errno != EINTR) return false;
      if (now > 0) sent += static_cast<size_t>(now);
    }
    return true;
  }

  // Returns a line with its end; nothing where the connection ended first.
  std::optional<std::string> ReceiveLine() const {
    std::string line;
    for (char c = 0; c != '\n'; line += c)
      if (Receive(&c, 1) != 1) return {};
    return line;
  }

  // Prints everything until the other end closes the connection. Returns whether there was
  // anything.
  bool PrintAll() const {
    std::array<char, 65536> bytes;
    for (bool any = false;; any = true) {
      const ssize_t got = Receive(bytes.data(), bytes.size());
      if (got == 0 && !any) fprintf(stderr, "The connection ended without an answer\n");
      if (got <= 0) return got == 0 && any;
      if (fwrite(bytes.data(), 1, static_cast<size_t>(got), stdout) != static_cast<size_t>(got) ||
          fflush(stdout) != 0) {
        perror("writing the answer");
        return false;
      }
    }
  }

 private:
  ssize_t Receive(char* bytes, size_t size) const {
    ssize_t got = 0;
    do {
      got = recv(fd_, bytes, size, 0);
    } while (got < 0 && errno == EINTR);
    if (got < 0) perror("receiving the answer");
    return got;
  }

  int fd_ = -1;
};

// Returns whether the server has answered OK to a command.
bool Command(const Connection& connection, const std::string& line) {
  const std::optional<std::string> answer =
      connection.Send(line) ? connection.ReceiveLine() : std::nullopt;
  if (!answer) return false;
  if (strcasecmp(answer->c_str(), "OK\n") == 0) return true;
  fprintf(stderr, "Unexpected answer: %s", answer->c_str());
  return false;
}

// Returns a connection to a process that greets.
std::optional<Connection> Greet(const Options& options) {
  constexpr std::string_view kGreeting = "SERVER PROTOCOL ";
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    Connection connection;
    if (!connection.Open(options)) return {};
    std::optional<std::string> answer;
    if (connection.Send("CLIENT PROTOCOL " + std::to_string(kProtocol) + "\n"))
      answer = connection.ReceiveLine();
    if (!answer) {
      fprintf(stderr, "The process did not answer; retrying...\n");
      continue;
    }
    if (strncasecmp(answer->c_str(), kGreeting.data(), kGreeting.size()) != 0) {
      fprintf(stderr, "Unexpected answer: %s", answer->c_str());
      return {};
    }
    if (atoi(answer->c_str() + kGreeting.size()) != kProtocol)
      fprintf(stderr, "The job speaks another version of the protocol: %s", answer->c_str());
    return connection;
  }
  return {};
}

bool Run(const Options& options) {
  const std::optional<Connection> connection = Greet(options);
  if (!connection) return false;
  if (options.timeout >= 0 &&
      !Command(*connection, "TIMEOUT " + std::to_string(options.timeout) + "\n"))
    return false;
  if (options.format != nullptr &&
      !Command(*connection, std::string("SET FORMAT ") + options.format + "\n"))
    return false;
  const int seconds = options.timeout > 0 ? options.timeout : kServerSeconds;
  connection->SetTimeout(options.timeout == 0 ? 0 : kGreetingSeconds + seconds + kExtraSeconds);
  if (!options.monitor)
    return connection->Send(options.verbose ? "VERBOSE STATUS\n" : "STATUS\n") &&
           connection->PrintAll();
  std::string command = "MONITOR";
  if (options.groups != nullptr) command += std::string(" ") + options.groups;
  if (!Command(*connection, command + "\n")) return false;
  connection->SetTimeout(0);
  fprintf(stderr, "RAS Monitor Mode - watching for peer changes (Ctrl+C to exit)...\n");
  return connection->PrintAll();
}

}  // namespace

int main(int argc, char** argv) { return Run(ReadOptions(argc, argv)) ? 0 : 1; }
