// `tutti info` prints the version of a library with NCCL's interface and the functions of the
// library.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "library.h"
#include "subcommands.h"

namespace tutti::tools {
namespace {

int InfoMain(const std::string& name) {
  const Result<NcclLibrary> library = NcclLibrary::Load(FindLibrary(name));
  if (!library.ok()) {
    fmt::print(stderr, "tutti info: {}\n", library.status().message());
    return kExitFailure;
  }
  fmt::print("{}\n{}\n", library.value().Version(), library.value().path());
  const NcclFunctions& functions = library.value().functions();
  const auto show = [](const char* prefix, const char* function, bool there) {
    fmt::print("  {:<8} {}{}\n", there ? "has" : "lacks", prefix, function);
  };
#define X(function) show("nccl", #function, functions.function != nullptr);
  TUTTI_TOOLS_REQUIRED_FUNCTIONS(X)
  TUTTI_TOOLS_OPTIONAL_FUNCTIONS(X)
#undef X
#define X(function) show("tutti", #function, functions.tutti##function != nullptr);
  TUTTI_TOOLS_OWN_FUNCTIONS(X)
#undef X
  return 0;
}

}  // namespace

Subcommand AddInfo(CLI::App& program) {
  auto name = std::make_shared<std::string>();
  CLI::App* const app =
      program.add_subcommand("info", "Say what a library is and which functions it has");
  app->add_option("--library", *name,
                  "library with NCCL's interface (default: this build's libtutti)");
  return {app, [name] { return InfoMain(*name); }};
}

}  // namespace tutti::tools
