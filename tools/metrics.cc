// `tutti metrics` serves what the boards of this machine say to Prometheus, or writes it once for
// node_exporter's textfile collector.

#include "observe/metrics.h"

#include <signal.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "base/file.h"
#include "launch/http_server.h"
#include "observe/signals.h"
#include "subcommands.h"

namespace tutti::tools {
namespace {

// A flood of requests reads the boards no more often than this.
constexpr auto kReadEvery = std::chrono::milliseconds(500);

struct MetricsOptions {
  std::string listen = "127.0.0.1:9477";
  std::string output;
  bool once = false;
  bool list = false;
};

std::string TextNow() {
  const char* const job = std::getenv("SLURM_JOB_ID");
  return MetricsText(ReadJobs(), job != nullptr ? job : "");
}

int Fail(const Status& why) {
  fmt::print(stderr, "tutti metrics: {}\n", why.message());
  return kExitFailure;
}

// Answers clients; used by the server's thread.
class Page {
 public:
  using Text = std::shared_ptr<const std::string>;

  Text Answer(const launch::HttpRequest& request) {
    if (request.method != "GET") return Encode({400});
    const std::string path = request.path.substr(0, request.path.find('?'));
    if (path == "/") return Encode({200, "the metrics are at /metrics\n", "text/plain"});
    if (path != "/metrics") return Encode({404});
    const auto now = std::chrono::steady_clock::now();
    if (text_ == nullptr || now - read_at_ >= kReadEvery) {
      text_ = Encode({200, TextNow(), std::string(kMetricsType)});
      read_at_ = now;
    }
    return text_;
  }

 private:
  static Text Encode(const launch::HttpResponse& response) {
    return std::make_shared<const std::string>(launch::EncodeHttpResponse(response));
  }

  Text text_;
  std::chrono::steady_clock::time_point read_at_;
};

// Serves until SIGINT, SIGTERM or SIGHUP. nohup has SIGHUP ignored, and a shell SIGINT of a program
// in the background.
int Serve(const std::string& at) {
  sigset_t ends;
  sigemptyset(&ends);
  for (const int number : {SIGINT, SIGTERM, SIGHUP})
    if (!IsIgnored(number)) sigaddset(&ends, number);
  // Before threads begin, which inherit the mask.
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  const Result<SocketAddress> address = ParseSocketAddress(at);
  if (!address.ok()) return Fail(address.status());
  const auto page = std::make_shared<Page>();
  const auto server = launch::HttpServer::Create(
      *address, "tutti metrics", [page](const auto& request) { return page->Answer(request); });
  if (!server.ok()) return Fail(server.status());
  SocketAddress shown = *address;
  shown.port = (*server)->port();
  fmt::print("serves http://{}/metrics\n", shown.ToString());
  std::fflush(stdout);
  int number = 0;
  sigwait(&ends, &number);
  return 0;
}

int List() {
  for (const Metric& metric : AllMetrics())
    fmt::print("{} {} {}\n", metric.name, metric.type, metric.help);
  return 0;
}

int WriteOnce(const std::string& output) {
  const std::string text = TextNow();
  if (!output.empty()) {
    const Status written = ReplaceFile(output, text);
    return written.ok() ? 0 : Fail(written);
  }
  const bool whole =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  return whole ? 0 : Fail(SystemError("standard output takes no more"));
}

}  // namespace

Subcommand AddMetrics(CLI::App& program) {
  const auto options = std::make_shared<MetricsOptions>();
  CLI::App* const app = program.add_subcommand(
      "metrics", "Serve counters of your jobs on this machine to Prometheus, or write them once");
  app->add_option("--listen", options->listen,
                  "the address to serve at, as ADDRESS:PORT (default 127.0.0.1:9477)");
  CLI::Option* const once =
      app->add_flag("--once", options->once, "write the metrics once, and serve nothing");
  app->add_flag("--list", options->list, "print the name, type and meaning of each metric");
  app->add_option("--output", options->output,
                  "with --once: the file to replace, for node_exporter's textfile collector")
      ->needs(once);
  return {app, [options] {
            if (options->list) return List();
            return options->once ? WriteOnce(options->output) : Serve(options->listen);
          }};
}

}  // namespace tutti::tools
