#include "coordinator/operations_plugin.h"

#include <dlfcn.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "base/log.h"
#include "coordinator/library_operations.h"

namespace tutti::coordinator {
namespace {

constexpr std::string_view kNcclPrefix = "nccl:";
constexpr std::string_view kTuttisOwn = "tutti";

// Looks for several libraries of a kind, of which at most one has started the process.
std::vector<std::string> LibrariesOf(const std::string& name) {
  if (name == "mpi") return {"libtutti_openmpi.so", "libtutti_mpich.so"};
  if (name == "gloo") return {"libtutti_gloo.so"};
  if (name == "ccl") return {"libtutti_ccl.so"};
  return {};
}

// Looks beside the library of this code, and in the loader's folders.
void* OpenLibrary(const std::string& file) {
  Dl_info self = {};
  if (dladdr(reinterpret_cast<const void*>(kPluginSymbol), &self) != 0 && self.dli_fname) {
    const std::string path = self.dli_fname;
    const size_t slash = path.rfind('/');
    if (slash != std::string::npos) {
      const std::string beside = path.substr(0, slash + 1) + file;
      if (void* const library = dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    }
  }
  return dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
}

// Libraries stay loaded: MPI ends with the process only.
Result<std::shared_ptr<OperationsPlugin>> OpenPlugin(const std::string& file) {
  void* const library = OpenLibrary(file);
  if (library == nullptr) return InvalidUsage("{} cannot be loaded: {}", file, dlerror());
  const auto entry = reinterpret_cast<PluginEntry>(dlsym(library, kPluginSymbol));
  OperationsPlugin* const plugin = entry == nullptr ? nullptr : entry(kPluginVersion);
  if (plugin == nullptr) return InvalidUsage("{} is no plugin of this version", file);
  return std::shared_ptr<OperationsPlugin>(plugin);
}

}  // namespace

std::string PlainName(std::string_view name) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t'; };
  while (!name.empty() && is_space(name.front())) name.remove_prefix(1);
  while (!name.empty() && is_space(name.back())) name.remove_suffix(1);
  std::string plain(name);
  for (char& c : plain) {
    if (c == ':' || c == '/') break;
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return plain;
}

std::vector<std::string> NamesIn(const std::string& list) {
  std::vector<std::string> names;
  std::istringstream text(list);
  for (std::string name; std::getline(text, name, ',');) names.push_back(PlainName(name));
  return names;
}

Status MayLoad(const std::string& name, std::string_view variable, const std::string& own) {
  const std::vector<std::string> names = NamesIn(own);
  if (!name.starts_with(kNcclPrefix) || std::find(names.begin(), names.end(), name) != names.end())
    return Status::Ok();
  return InvalidUsage(
      "{} of this rank's environment does not name {}, and a rank loads no library that another "
      "rank names; set {} alike on all ranks",
      variable, name, variable);
}

Status MayCarryPlain(bool encrypt, const std::string& name, const std::string& list) {
  const std::vector<std::string> names = NamesIn(list);
  const bool has_tutti = std::find(names.begin(), names.end(), kTuttisOwn) != names.end();
  if (!encrypt || !has_tutti) return Status::Ok();
  return InvalidUsage(
      "TUTTI_ENCRYPT is set, and only Tutti's own operations encrypt; a list without tutti insists "
      "on {}",
      name);
}

void WarnOfPlain(std::string_view variable, std::string_view plugin) {
  TUTTI_WARN(
      "TUTTI_ENCRYPT is set, but {} asks for {}, which sends data and names of tensors without "
      "encryption; leave {} unset to have them encrypted",
      variable, plugin, variable);
}

Result<std::shared_ptr<OperationsPlugin>> FindViablePlugin(const std::string& name, int rank,
                                                           int num_ranks) {
  if (name.starts_with(kNcclPrefix)) {
    return LoadNcclPlugin(name.substr(kNcclPrefix.size()));
  }
  const std::vector<std::string> files = LibrariesOf(name);
  if (files.empty()) {
    return InvalidUsage("there is no \"{}\": tutti, mpi, gloo, ccl and nccl:LIBRARY there are",
                        name);
  }
  std::string reasons;
  for (const std::string& file : files) {
    auto plugin = OpenPlugin(file);
    Status status = plugin.ok() ? (*plugin)->Viable(rank, num_ranks) : plugin.status();
    if (status.ok()) return plugin;
    reasons += (reasons.empty() ? "" : "; ") + std::string(status.message());
  }
  return InvalidUsage("{}", reasons);
}

Result<PluginChoice> ChoosePlugin(const std::string& list, int rank, int num_ranks,
                                  const GatherTexts& gather, const FindPluginFor& find) {
  PluginChoice choice;
  for (const std::string& name : NamesIn(list)) {
    if (name == kTuttisOwn) return choice;
    auto found = find(name, rank, num_ranks);
    // Ranks compare the plugins they found, and the names in their lists, because all must use the
    // same plugin.
    const std::string mine = found.ok()
                                 ? fmt::format("{} {}", name, (*found)->name())
                                 : fmt::format("- rank {}: {}", rank, found.status().message());
    TUTTI_ASSIGN(const std::vector<std::string> all, gather(mine));
    // The rank's own text comes back in the form in which all ranks get texts.
    const std::string& own = all[static_cast<size_t>(rank)];
    std::string missing;
    for (const std::string& theirs : all) {
      if (theirs != own && missing.empty()) missing = theirs;
    }
    if (!found.ok()) missing = own;
    if (missing.empty()) {
      choice.plugin = std::move(*found);
      return choice;
    }
    choice.why += fmt::format(
        "{}{} ({})", choice.why.empty() ? "" : ", ", name,
        missing.starts_with("- ") ? missing.substr(2) : "the ranks found different ones");
  }
  return choice;
}

}  // namespace tutti::coordinator
