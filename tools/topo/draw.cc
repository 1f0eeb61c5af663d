// `tutti topo draw` draws the machine and its channels, as SVG or PNG.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "config/settings.h"
#include "topo/machine_picture.h"
#include "topo/png.h"
#include "topo/study.h"
#include "topology/known_channels.h"

namespace tutti::tools::topo {
namespace {

struct Wish {
  Source source;
  std::string output;
  std::string pattern = "ring";
  std::string title;
  double scale = 2;
};

Result<Picture> Draw(const Wish& wish) {
  TUTTI_ASSIGN(const Settings settings, ReadProcessSettings());
  const bool wants_channels = wish.pattern != "none";
  TUTTI_ASSIGN(const Study study,
               wants_channels ? LoadPart("draw", wish.source) : Load(wish.source));
  std::optional<topology::Channels> channels;
  if (wants_channels) {
    const topology::Pattern pattern =
        wish.pattern == "ring" ? topology::Pattern::kRing : topology::Pattern::kBalancedTree;
    TUTTI_ASSIGN(channels, topology::FindPattern(settings, study.graph, study.paths, pattern,
                                                 wish.source.hosts > 1));
  }
  std::string title = wish.title;
  if (title.empty()) {
    for (const std::filesystem::path file : wish.source.files)
      title += (title.empty() ? "" : " and ") + file.stem().string();
    if (title.empty()) title = "this host";
    if (wish.source.hosts > 1) title += fmt::format(", one of {} hosts", wish.source.hosts);
  }
  return DrawMachine(study.graph, study.paths, channels ? &*channels : nullptr, title);
}

Status Write(const Picture& picture, const Wish& wish) {
  if (wish.output.ends_with(".png")) return WritePng(picture, wish.scale, wish.output);
  const std::string svg = ToSvg(picture);
  if (wish.output.empty() || wish.output == "-") {
    fmt::print("{}", svg);
    return Status::Ok();
  }
  if (!wish.output.ends_with(".svg")) {
    return InvalidUsage("{}: a name that ends in .svg or .png was expected", wish.output);
  }
  std::ofstream file(wish.output, std::ios::binary | std::ios::trunc);
  file << svg;
  file.close();
  if (!file) return SystemError("{} could not be written", wish.output);
  return Status::Ok();
}

int RunDraw(const Wish& wish) {
  const Result<Picture> picture = Draw(wish);
  if (!picture.ok()) return Fail("draw", picture.status());
  const Status status = Write(*picture, wish);
  return status.ok() ? 0 : Fail("draw", status);
}

}  // namespace

Subcommand AddDraw(CLI::App& topo) {
  auto wish = std::make_shared<Wish>();
  CLI::App* const app =
      topo.add_subcommand("draw", "Draw the machine, its links and channels as SVG or PNG");
  AddSource(*app, &wish->source);
  app->add_option("-o,--output", wish->output, "a file.svg or file.png (default: SVG on stdout)");
  app->add_option("--channels", wish->pattern, "which channels to draw")
      ->check(CLI::IsMember({"ring", "tree", "none"}))
      ->capture_default_str();
  app->add_option("--title", wish->title, "the heading (default: the file's name)");
  app->add_option("--scale", wish->scale, "pixels of a PNG for each pixel of the SVG")
      ->check(CLI::Range(0.1, 10.0))
      ->capture_default_str();
  return {app, [wish] { return RunDraw(*wish); }};
}

}  // namespace tutti::tools::topo
