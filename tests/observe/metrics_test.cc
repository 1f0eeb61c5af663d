// `tutti metrics` beside a job: the text, the file for node_exporter, the server among garbage
// clients, and the dashboard, which reads the same names.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "conformance/processes.h"
#include "observe/board_folder.h"
#include "sys/tcp.h"

namespace tutti::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = 2;
constexpr int kDone = kFirstFreeMark;

WaitLimits Limits() { return {Deadline::AfterSeconds(30), nullptr}; }

// Two ranks that have run three collectives. Rank 0 waits in a fourth.
class MetricsTest : public ::testing::Test {
 protected:
  MetricsTest()
      : ranks_(kRanks, [](int rank, Board& board) {
          ncclComm_t comm = Join(rank, kRanks, board);
          std::vector<float> data(1000);
          for (int i = 0; i < 4 - rank; ++i) {
            if (i == 3) board.Set(kDone, 1);
            ncclAllReduce(data.data(), data.data(), data.size(), ncclFloat32, ncclSum, comm,
                          nullptr);
          }
          for (;;) pause();
        }) {}
  void SetUp() override {
    ASSERT_TRUE(ranks_.board().Await(kDone, 1));
    ASSERT_TRUE(boards_.AwaitHeldUp(1));
  }
  static Outcome Metrics(const std::string& arguments) {
    return RunCommand(TUTTI_PROGRAM " metrics " + arguments);
  }

  const BoardFolder boards_;
  RankProcesses ranks_;
};

// Returns the names of samples, or of lines of --list.
std::set<std::string> NamesOf(const std::string& text) {
  std::set<std::string> names;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (!line.starts_with('#')) names.insert(line.substr(0, line.find_first_of("{ ")));
  return names;
}

// Returns the value of the only sample with these parts; -1 without such a sample.
double ValueOf(const std::string& text, const std::string& name, const std::string& label) {
  std::istringstream lines(text);
  double value = -1;
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(name + "{") && line.find(label) != std::string::npos)
      value = std::stod(line.substr(line.find("} ") + 2));
  return value;
}

TEST_F(MetricsTest, WritesTheFormatOfPrometheus) {
  const Outcome outcome = Metrics("--once");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const std::regex sample(
      R"(([a-z_0-9]+)\{([a-z_0-9]+="([^"\\]|\\.)*"(,[a-z_0-9]+="([^"\\]|\\.)*")*)\} [-+.0-9e]+)");
  const std::regex comment(R"(# (HELP [a-z_0-9]+ .+|TYPE [a-z_0-9]+ (counter|gauge)))");
  std::istringstream lines(outcome.output);
  for (std::string line; std::getline(lines, line);)
    EXPECT_TRUE(std::regex_match(line, line[0] == '#' ? comment : sample)) << line;
  const std::string& text = outcome.output;
  EXPECT_EQ(ValueOf(text, "tutti_jobs", "version"), 1);
  EXPECT_EQ(ValueOf(text, "tutti_collectives_total", "rank=\"0\""), 4);
  EXPECT_EQ(ValueOf(text, "tutti_collectives_done_total", "rank=\"0\""), 3);
  EXPECT_EQ(ValueOf(text, "tutti_collectives_behind", "rank=\"1\""), 1);
  EXPECT_EQ(ValueOf(text, "tutti_collectives_behind", "rank=\"0\""), 0);
  EXPECT_EQ(ValueOf(text, "tutti_collective_mean_bytes", "rank=\"1\""), 4000);
  EXPECT_EQ(ValueOf(text, "tutti_processes", "state=\"running\""), kRanks);
  EXPECT_EQ(ValueOf(text, "tutti_communicator_stopped", "rank=\"1\""), 0);
  EXPECT_GT(ValueOf(text, "tutti_waiting_seconds", "rank=\"0\""), 0);
  EXPECT_EQ(ValueOf(text, "tutti_waiting_seconds", "rank=\"1\""), 0);
}

TEST_F(MetricsTest, ReplacesTheFileOfTheTextfileCollector) {
  const std::string file = boards_.path() + "/tutti.prom";
  for (int i = 0; i < 2; ++i) {
    const Outcome outcome = Metrics("--once --output " + file);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_EQ(outcome.output, "");
  }
  std::ifstream stream(file);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  EXPECT_EQ(ValueOf(text, "tutti_collectives_total", "rank=\"1\""), 3);
  const Outcome wrong = Metrics("--once --output /no/such/folder/file");
  EXPECT_EQ(wrong.status, 1);
  EXPECT_THAT(wrong.output, HasSubstr("/no/such/folder/file"));
  EXPECT_EQ(std::ranges::count(wrong.output, '\n'), 1);
}

// A server that runs until the end of this object.
class Server {
 public:
  Server() {
    std::array<int, 2> ends;
    if (pipe(ends.data()) != 0 || (pid_ = fork()) < 0) std::abort();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      execl(TUTTI_PROGRAM, TUTTI_PROGRAM, "metrics", "--listen", "127.0.0.1:0", nullptr);
      _exit(127);
    }
    close(ends[1]);
    FILE* const out = fdopen(ends[0], "r");
    int port = 0;
    if (fscanf(out, "serves http://127.0.0.1:%d/metrics", &port) != 1) std::abort();
    fclose(out);
    port_ = static_cast<uint16_t>(port);
  }
  ~Server() {
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  pid_t pid() const { return pid_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  UniqueFd Connect() const {
    Result<UniqueFd> fd = tutti::Connect(*ParseSocketAddress(address()), Limits());
    return fd.ok() ? std::move(*fd) : UniqueFd();
  }
  // Sends bytes and returns all that comes.
  std::string Ask(const std::string& bytes) const {
    const UniqueFd fd = Connect();
    if (!fd.valid() || !SendAll(fd.get(), std::as_bytes(std::span(bytes)), Limits()).ok())
      return "";
    std::string answer;
    std::array<char, 4096> buffer;
    // Sockets of Connect do not block.
    fcntl(fd.get(), F_SETFL, 0);
    while (const ssize_t got = read(fd.get(), buffer.data(), buffer.size())) {
      if (got < 0) break;
      answer.append(buffer.data(), static_cast<size_t>(got));
    }
    return answer;
  }

 private:
  pid_t pid_ = 0;
  uint16_t port_ = 0;
};

TEST_F(MetricsTest, ServesAmongGarbageAndManyConnections) {
  const Server server;
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: here\r\nAccept: */*\r\n\r\n";
  const std::string answer = server.Ask(request);
  EXPECT_THAT(answer, AllOf(HasSubstr("HTTP/1.1 200 OK"),
                            HasSubstr("Content-Type: text/plain; version=0.0.4"),
                            HasSubstr("tutti_collectives_total{")));
  EXPECT_THAT(server.Ask("GET /nothing HTTP/1.1\r\n\r\n"), HasSubstr(" 404 "));
  EXPECT_THAT(server.Ask("GET / HTTP/1.1\r\n\r\n"), HasSubstr("/metrics"));
  EXPECT_THAT(server.Ask("PUT /metrics HTTP/1.1\r\nContent-Length: 1\r\n\r\nx"),
              HasSubstr(" 400 "));
  EXPECT_THAT(server.Ask(std::string(100'000, '\xff')), Not(HasSubstr(" 200 ")));
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 400; ++i) silent.push_back(server.Connect());
  EXPECT_THAT(server.Ask(request), HasSubstr("tutti_collectives_total{"));
  const Outcome second = Metrics("--listen " + server.address());
  EXPECT_EQ(second.status, 1);
  EXPECT_THAT(second.output, HasSubstr(server.address()));
  EXPECT_EQ(std::ranges::count(second.output, '\n'), 1) << second.output;
}

// As under nohup, and in the background of a shell without job control.
TEST_F(MetricsTest, LeavesSignalsAloneThatAreIgnoredAtTheStart) {
  signal(SIGHUP, SIG_IGN);
  signal(SIGINT, SIG_IGN);
  const Server server;
  signal(SIGHUP, SIG_DFL);
  signal(SIGINT, SIG_DFL);
  kill(server.pid(), SIGHUP);
  kill(server.pid(), SIGINT);
  EXPECT_THAT(server.Ask("GET /metrics HTTP/1.1\r\n\r\n"), HasSubstr(" 200 "));
}

// Every name of the dashboard is the name of a metric. Slow ranks have metrics only while ranks are
// slow; `tutti metrics --list` knows all.
TEST(DashboardTest, ReadsOnlyNamesThatExist) {
  const Outcome list = RunCommand(TUTTI_PROGRAM " metrics --list");
  ASSERT_EQ(list.status, 0) << list.output;
  const std::set<std::string> known = NamesOf(list.output);
  std::ifstream file(DASHBOARD);
  const nlohmann::json dashboard = nlohmann::json::parse(file);
  std::set<std::string> read;
  std::string texts;
  for (const nlohmann::json& panel : dashboard.at("panels"))
    for (const nlohmann::json& target : panel.at("targets"))
      texts += target.at("expr").get<std::string>() + "\n";
  for (const nlohmann::json& variable : dashboard.at("templating").at("list"))
    texts += variable.at("query").get<std::string>() + "\n";
  const std::regex name("(tutti|nccl)_[a-z_0-9]+");
  for (std::sregex_iterator it(texts.begin(), texts.end(), name), end; it != end; ++it)
    read.insert(it->str());
  EXPECT_GT(read.size(), 5u);
  for (const std::string& one : read) EXPECT_TRUE(known.contains(one)) << one;
}

TEST_F(MetricsTest, HasNoNameThatTheListLacks) {
  const std::set<std::string> known = NamesOf(RunCommand(TUTTI_PROGRAM " metrics --list").output);
  for (const std::string& one : NamesOf(Metrics("--once").output))
    EXPECT_TRUE(known.contains(one)) << one;
}

}  // namespace
}  // namespace tutti::testing
