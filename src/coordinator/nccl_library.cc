#include "coordinator/nccl_library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <string_view>

namespace tutti::coordinator {
namespace {

constexpr std::string_view kFile = "libnccl.so.2";
// Where distributions, CUDA's installers and their images put libraries.
constexpr const char* kFolders[] = {"/usr/lib/x86_64-linux-gnu",
                                    "/usr/lib/aarch64-linux-gnu",
                                    "/usr/lib64",
                                    "/usr/lib",
                                    "/usr/local/lib",
                                    "/usr/local/cuda/lib64",
                                    "/opt/cuda/lib64"};

// A library loaded in this way looks its own functions up first, because it may call further
// functions of nccl.h, and Tutti's have the same names. The address sanitizer refuses to load
// libraries in this way.
#ifdef __SANITIZE_ADDRESS__
constexpr int kOwnFunctionsFirst = 0;
#else
constexpr int kOwnFunctionsFirst = RTLD_DEEPBIND;
#endif

// No other library has this function.
constexpr char kTuttiFunction[] = "tuttiCommInitRankOn";

template <typename Function>
void Look(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

// Returns the file in which an address lies; "" where it is unknown.
std::string FileOf(const void* address) {
  Dl_info info = {};
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

int NoteLoaded(dl_phdr_info* info, size_t, void* arg) {
  const std::string_view path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  const size_t slash = path.rfind('/');
  if (slash != std::string_view::npos && path.substr(slash + 1).starts_with(kFile)) {
    static_cast<std::vector<std::string>*>(arg)->emplace_back(path);
  }
  return 0;
}

// Returns the loader's folders, LD_LIBRARY_PATH before all. The loader itself takes the first file
// of a name, which may be Tutti's.
std::vector<std::string> LoadersFolders() {
  std::vector<std::string> folders;
  void* const program = dlopen(nullptr, RTLD_NOW);
  Dl_serinfo size = {};
  if (program == nullptr || dlinfo(program, RTLD_DI_SERINFOSIZE, &size) != 0) return folders;
  std::vector<std::max_align_t> room(size.dls_size / sizeof(std::max_align_t) + 1);
  auto* const info = reinterpret_cast<Dl_serinfo*>(room.data());
  info->dls_size = size.dls_size;
  info->dls_cnt = size.dls_cnt;
  if (dlinfo(program, RTLD_DI_SERINFO, info) != 0) return folders;
  const Dl_serpath* const paths = info->dls_serpath;
  for (unsigned i = 0; i < info->dls_cnt; ++i) folders.emplace_back(paths[i].dls_name);
  return folders;
}

bool IsThere(const std::string& path) { return std::ifstream(path).good(); }

}  // namespace

NcclFunctions OwnNcclFunctions() {
  NcclFunctions f;
#define TUTTI_TAKE(name) f.name = &::name;
  TUTTI_NCCL_FUNCTIONS(TUTTI_TAKE)
  TUTTI_NCCL_GPU_FUNCTIONS(TUTTI_TAKE)
#undef TUTTI_TAKE
  return f;
}

Result<std::shared_ptr<const NcclLibrary>> NcclLibrary::Load(const std::string& file) {
  void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | kOwnFunctionsFirst);
  if (handle == nullptr) return InvalidUsage("{} cannot be loaded: {}", file, dlerror());
  const std::shared_ptr<NcclLibrary> library(new NcclLibrary);
  NcclFunctions& f = library->functions_;
#define TUTTI_LOOK(name) Look(handle, #name, f.name);
  TUTTI_NCCL_FUNCTIONS(TUTTI_LOOK)
  TUTTI_NCCL_GPU_FUNCTIONS(TUTTI_LOOK)
#undef TUTTI_LOOK
#define TUTTI_CHECK(name)                                                                    \
  if (f.name == nullptr) {                                                                   \
    return InvalidUsage("{} is no NCCL, or one that is too old: it has no {}", file, #name); \
  }
  TUTTI_NCCL_FUNCTIONS(TUTTI_CHECK)
#undef TUTTI_CHECK
  library->is_tutti_ = dlsym(handle, kTuttiFunction) != nullptr;
  library->path_ = FileOf(reinterpret_cast<const void*>(f.ncclCommInitRank));
  if (f.ncclGetVersion != nullptr && f.ncclGetVersion(&library->version_) != ncclSuccess) {
    library->version_ = 0;
  }
  return std::shared_ptr<const NcclLibrary>(library);
}

Status NcclLibrary::ServesGpus() const {
#define TUTTI_CHECK(name)                                                                         \
  if (functions_.name == nullptr) {                                                               \
    return InvalidUsage("{} ({}) has no {}: NCCL 2.14 or later is needed", path_, Name(), #name); \
  }
  TUTTI_NCCL_GPU_FUNCTIONS(TUTTI_CHECK)
#undef TUTTI_CHECK
  return Status::Ok();
}

std::string NcclLibrary::Name() const {
  if (version_ == 0) return "an NCCL of unknown version";
  // Up to 2.8 the number had another form.
  const int major = version_ >= 10000 ? version_ / 10000 : version_ / 1000;
  const int minor = version_ >= 10000 ? version_ / 100 % 100 : version_ / 100 % 10;
  return fmt::format("NCCL {}.{}.{}", major, minor, version_ % 100);
}

std::vector<std::string> NcclCandidates() {
  std::vector<std::string> files;
  dl_iterate_phdr(NoteLoaded, &files);
  files.emplace_back(kFile);
  for (const std::string& folder : LoadersFolders()) {
    files.push_back(fmt::format("{}/{}", folder, kFile));
  }
  for (const char* const folder : kFolders) files.push_back(fmt::format("{}/{}", folder, kFile));
  return files;
}

Result<std::shared_ptr<const NcclLibrary>> FindNcclForGpus(
    const std::string& named, const std::vector<std::string>& candidates) {
  if (!named.empty()) {
    TUTTI_ASSIGN(auto library, NcclLibrary::Load(named));
    if (library->is_tutti()) {
      return InvalidUsage(
          "TUTTI_NCCL_LIBRARY names {}, which is Tutti's own library under NCCL's name; leave it "
          "to \"tutti\", or name another's",
          named);
    }
    TUTTI_TRY(library->ServesGpus());
    return library;
  }
  std::string reasons;
  std::vector<std::string> seen;
  for (const std::string& file : candidates) {
    // A path without a file is passed over in silence; the loader's message explains the failure of
    // a bare name.
    const bool path = file.find('/') != std::string::npos;
    if (path && !IsThere(file)) continue;
    auto library = NcclLibrary::Load(file);
    Status status = library.ok() ? (*library)->ServesGpus() : library.status();
    const std::string found = library.ok() ? (*library)->path() : file;
    if (std::find(seen.begin(), seen.end(), found) != seen.end()) continue;
    seen.push_back(found);
    if (status.ok() && (*library)->is_tutti()) {
      status = InvalidUsage("{} is Tutti's own", found);
    }
    if (status.ok()) return library;
    reasons += fmt::format("{}{}", reasons.empty() ? "" : "; ", status.message());
  }
  return InvalidUsage(
      "no {} but Tutti's was found among what is loaded, where the loader looks and in {} ({}); "
      "TUTTI_NCCL_LIBRARY=PATH names one",
      kFile, fmt::join(kFolders, ", "), reasons.empty() ? "there is none" : reasons);
}

}  // namespace tutti::coordinator
