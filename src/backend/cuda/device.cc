#include "backend/cuda/device.h"

#include <algorithm>
#include <cstring>

#include "backend/cuda/device_code.h"
#include "base/hash.h"

namespace tutti::cuda {
namespace {

// Numbers of cuDeviceGetAttribute and cuFuncGetAttribute.
constexpr int kMultiprocessors = 16;
constexpr int kPciBusId = 33;
constexpr int kPciDeviceId = 34;
constexpr int kPciDomainId = 50;
constexpr int kComputeMajor = 75;
constexpr int kComputeMinor = 76;
constexpr int kNumRegisters = 4;
constexpr int kPtxVersion = 5;
// The number of the attribute of cuDeviceGetP2PAttribute for atomic operations over the link.
// NVLink carries atomic operations and PCIe does not.
constexpr int kNativeAtomics = 3;

constexpr int kOldestCompute = 80;
// Blocks that copy or compute, for each multiprocessor. Such blocks wait for no other block, hence
// more than fit at a time do no harm.
constexpr int kCopyBlocksEach = 4;
constexpr int kAdasumBlocksEach = 4;

// The attribute of cuLaunchKernelEx that lets a kernel begin before the end of its predecessor
// (programmatic stream serialization), its first compute capability, and the first driver that
// supports it in graphs too.
constexpr int kAttributeEarly = 6;
constexpr int kEarlyCompute = 90;
constexpr int kEarlyDriver = 12030;
// The attribute of a launch for an event that happens once all blocks of the kernel have begun
// (CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT), and its first driver.
constexpr int kAttributeBegun = 12;
constexpr int kBegunDriver = 12030;

// The part of a kernel's name for each DataType.
constexpr std::array<const char*, kNumDataTypes> kTypeNames = {
    "i8", "u8", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "bf16", "e4m3", "e5m2"};

// CUDA_ERROR_INVALID_VALUE and CUDA_ERROR_NOT_SUPPORTED.
constexpr int kInvalidValue = 1;
constexpr int kNotSupported = 801;

// Returns a PCI address as one number, which is never 0 (bit 48 is always set).
uint64_t PciAddress(int domain, int bus, int number) {
  return uint64_t{1} << 48 | static_cast<uint64_t>(domain) << 24 |
         static_cast<uint64_t>(bus) << 16 | static_cast<uint64_t>(number) << 8;
}

}  // namespace

// Uses the device's primary context, which it shares with the CUDA runtime. Pointers and streams of
// the program are therefore valid in it.
Result<std::unique_ptr<Device>> Device::Open(const Driver& driver, int ordinal) {
  if (ordinal < 0 || ordinal >= driver.num_devices())
    return InvalidArgument("{} is no CUDA device: this process sees {}", ordinal,
                           driver.num_devices());
  const RelaxedCapture relaxed(driver);
  std::unique_ptr<Device> device(new Device(driver, ordinal));
  TUTTI_TRY(device->Describe());
  device->pinned_ = std::make_unique<PinnedPool>(driver, device->context_);
  const ManagingScope scope(driver, device->context_);
  TUTTI_TRY(device->LoadKernels());
  return device;
}

// The pool frees its memory through the context, hence it ends before the context is released.
Device::~Device() {
  if (context_ == nullptr) return;
  pinned_.reset();
  {
    const ManagingScope scope(driver_, context_);
    for (const Module module : modules_) driver_.ModuleUnload(module);
  }
  driver_.PrimaryContextRelease(ordinal_);
}

Status Device::Describe() {
  const auto attribute = [&](int which, int* value) {
    return driver_.Check(driver_.DeviceGetAttribute(value, which, ordinal_),
                         fmt::format("asking CUDA device {} about itself", ordinal_));
  };
  char name[128] = {};
  TUTTI_TRY(driver_.Check(driver_.DeviceGetName(name, sizeof(name) - 1, ordinal_),
                          fmt::format("asking CUDA device {} for its name", ordinal_)));
  name_ = name;
  int major = 0, minor = 0, domain = 0, bus = 0, number = 0;
  TUTTI_TRY(attribute(kComputeMajor, &major));
  TUTTI_TRY(attribute(kComputeMinor, &minor));
  TUTTI_TRY(attribute(kMultiprocessors, &multiprocessors_));
  TUTTI_TRY(attribute(kPciDomainId, &domain));
  TUTTI_TRY(attribute(kPciBusId, &bus));
  TUTTI_TRY(attribute(kPciDeviceId, &number));
  pci_address_ = PciAddress(domain, bus, number);
  unsigned char uuid[16] = {};
  TUTTI_TRY(driver_.Check(driver_.DeviceGetUuid(uuid, ordinal_),
                          fmt::format("asking CUDA device {} for its UUID", ordinal_)));
  identity_ = Fnv1a::Of(std::string_view(reinterpret_cast<const char*>(uuid), sizeof(uuid)));
  if (10 * major + minor < kOldestCompute)
    return InvalidUsage("CUDA device {} ({}) has compute capability {}.{}, but 8.0 is needed",
                        ordinal_, name_, major, minor);
  knows_early_ = 10 * major + minor >= kEarlyCompute && driver_.version() >= kEarlyDriver;
  return driver_.Check(driver_.PrimaryContextRetain(&context_, ordinal_),
                       fmt::format("opening CUDA device {} ({})", ordinal_, name_));
}

bool Device::ReachesByNvlink(uint64_t pci_address, uint64_t identity) const {
  if (identity == identity_) return true;
  const std::string name = fmt::format("{:04x}:{:02x}:{:02x}.0", pci_address >> 24 & 0xffffff,
                                       pci_address >> 16 & 0xff, pci_address >> 8 & 0xff);
  int peer = 0, atomics = 0;
  // Parts of one GPU (MIG) do not reach one another.
  return pci_address != pci_address_ && driver_.DeviceGetByPciBusId(&peer, name.c_str()) == 0 &&
         driver_.DeviceGetP2PAttribute(&atomics, kNativeAtomics, ordinal_, peer) == 0 &&
         atomics != 0;
}

void Device::FreeLater(std::function<bool()> try_free) const {
  const MutexLock lock(late_mutex_);
  late_frees_.push_back(std::move(try_free));
}

void Device::TryLateFrees() const {
  std::vector<std::function<bool()>> tried;
  {
    const MutexLock lock(late_mutex_);
    tried.swap(late_frees_);
  }
  // A free may wait for a kernel. A free runs without the mutex, since other communicators must not
  // wait too.
  std::erase_if(tried, [](const auto& try_free) { return try_free(); });
  const MutexLock lock(late_mutex_);
  std::move(tried.begin(), tried.end(), std::back_inserter(late_frees_));
}

Status Device::LoadKernels() {
  if (DeviceImages().empty())
    return InvalidUsage(
        "this library was built without nvcc and has no code for GPUs; set TUTTI_BACKEND=host to "
        "use host memory, or build with -DTUTTI_CUDA=ON");
  for (const DeviceImage& image : DeviceImages()) {
    Module module = nullptr;
    TUTTI_TRY(driver_.Check(
        driver_.ModuleLoadData(&module, image.data),
        fmt::format("loading the kernels {} on CUDA device {} ({})", image.name, ordinal_, name_)));
    modules_.push_back(module);
  }
  TUTTI_TRY(FindFamily("ll", mesh_[static_cast<size_t>(Protocol::kLL)]));
  TUTTI_TRY(FindFamily("ll128", mesh_[static_cast<size_t>(Protocol::kLL128)]));
  TUTTI_TRY(FindFamily("simple", mesh_[static_cast<size_t>(Protocol::kSimple)]));
  TUTTI_TRY(FindFamily("ring", ring_));
  TUTTI_TRY(FindFamily("symmetric", symmetric_));
  TUTTI_ASSIGN(messages_, FindKernel("tutti_messages"));
  // Kernels that the driver compiled from PTX of an older generation do not wait for their turn,
  // hence they may not be started early.
  int code = 0;
  if (driver_.FunctionGetAttribute(&code, kPtxVersion, messages_) != 0 || code < kEarlyCompute)
    knows_early_ = false;
  TUTTI_ASSIGN(copies_, FindKernel("tutti_copies"));
  TUTTI_ASSIGN(flows_, FindKernel("tutti_flows"));
  TUTTI_ASSIGN(adasum_, FindKernel("tutti_adasum"));
  for (size_t t = 0; t < kTypeNames.size(); ++t) {
    TUTTI_ASSIGN(channel_.reductions[t],
                 FindKernel(fmt::format("tutti_{}_channel", kTypeNames[t])));
    TUTTI_ASSIGN(one_shot_[t], FindKernel(fmt::format("tutti_{}_oneshot", kTypeNames[t])));
    TUTTI_ASSIGN(trees_[t], FindKernel(fmt::format("tutti_{}_tree", kTypeNames[t])));
  }
  TUTTI_ASSIGN(channel_.move, FindKernel("tutti_move_channel"));
  return Status::Ok();
}

Status Device::FindFamily(const char* protocol, Family& family) const {
  for (size_t t = 0; t < kTypeNames.size(); ++t) {
    TUTTI_ASSIGN(family.reductions[t],
                 FindKernel(fmt::format("tutti_{}_{}", protocol, kTypeNames[t])));
  }
  TUTTI_ASSIGN(family.move, FindKernel(fmt::format("tutti_{}_move", protocol)));
  return Status::Ok();
}

Result<Function> Device::FindKernel(const std::string& name) const {
  // The name of a kernel ends in the name of its image. Only this image is searched, because memory
  // checkers report failed calls.
  const auto images = DeviceImages();
  const auto image = std::find_if(images.begin(), images.end(), [&](const auto& candidate) {
    return name.ends_with(fmt::format("_{}", candidate.name));
  });
  if (image == images.end()) return InternalError("the library has no kernel {}", name);
  const std::string loading = fmt::format("loading the kernel {}", name);
  Function function = nullptr;
  TUTTI_TRY(driver_.Check(
      driver_.ModuleGetFunction(&function, modules_[static_cast<size_t>(image - images.begin())],
                                name.c_str()),
      loading));
  // This query makes a lazily loading driver load the kernel now.
  int registers = 0;
  TUTTI_TRY(
      driver_.Check(driver_.FunctionGetAttribute(&registers, kNumRegisters, function), loading));
  return function;
}

Status Device::Launch(const MeshArgs& args, DataType type, const LaunchShape& shape,
                      Stream stream) const {
  const Family& family = IsRing(args.algorithm) ? ring_ : mesh_[static_cast<size_t>(args.protocol)];
  const Function function = family.For(args.algorithm, type);
  return LaunchFunction(function, const_cast<MeshArgs*>(&args), shape, stream);
}

Status Device::Launch(const SymmetricArgs& args, DataType type, const LaunchShape& shape,
                      Stream stream) const {
  return LaunchFunction(symmetric_.For(args.algorithm, type), const_cast<SymmetricArgs*>(&args),
                        shape, stream);
}

Status Device::Launch(const MessageArgs& args, uint32_t most_early, Stream stream,
                      Event begun) const {
  MessageArgs arranged = args;
  Arrange(arranged);
  const uint32_t blocks = arranged.blocks;
  return LaunchFunction(messages_, &arranged,
                        {blocks, arranged.threads, blocks <= most_early, begun}, stream);
}

// Copies any number of pieces by as few launches as their arguments allow.
Status Device::Copy(std::span<const CopyPiece> pieces, Stream stream) const {
  for (; !pieces.empty(); pieces = pieces.subspan(std::min(pieces.size(), kMostCopies))) {
    CopyArgs args;
    size_t slices = 0;
    for (const CopyPiece& piece : pieces.first(std::min(pieces.size(), kMostCopies))) {
      args.pieces[args.num_pieces++] = piece;
      slices += (piece.bytes + kCopySlice - 1) / kCopySlice;
    }
    const auto most = static_cast<size_t>(multiprocessors_) * kCopyBlocksEach;
    args.blocks = static_cast<uint32_t>(std::clamp<size_t>(slices, 1, std::max<size_t>(1, most)));
    TUTTI_TRY(LaunchFunction(copies_, &args, {args.blocks, kCopyThreads}, stream));
  }
  return Status::Ok();
}

Status Device::Launch(const ChannelArgs& args, DataType type, Stream stream, Event begun) const {
  if (args.one_shot)
    return LaunchFunction(one_shot_[static_cast<size_t>(type)], const_cast<ChannelArgs*>(&args),
                          {args.channels, kOneShotThreads, /*early=*/false, begun}, stream);
  const Function function =
      Reduces(args.collective) ? channel_.reductions[static_cast<size_t>(type)] : channel_.move;
  return LaunchFunction(function, const_cast<ChannelArgs*>(&args),
                        {args.channels, kChannelThreads, /*early=*/false, begun}, stream);
}

Status Device::Launch(const TreeArgs& args, DataType type, Stream stream, Event begun) const {
  return LaunchFunction(trees_[static_cast<size_t>(type)], const_cast<TreeArgs*>(&args),
                        {args.num_nodes, kChannelThreads, /*early=*/false, begun}, stream);
}

Status Device::Launch(const FlowArgs& args, Stream stream, Event begun) const {
  return LaunchFunction(flows_, const_cast<FlowArgs*>(&args),
                        {args.num_flows, kChannelThreads, /*early=*/false, begun}, stream);
}

Status Device::Launch(AdasumArgs& args, Stream stream) const {
  size_t units = 0;
  for (uint32_t p = 0; p < args.num_pieces; ++p) units += UnitsOf(args.step, args.pieces[p]);
  if (units == 0) return Status::Ok();
  const auto most = static_cast<size_t>(std::max(1, multiprocessors_ * kAdasumBlocksEach));
  args.blocks = static_cast<uint32_t>(std::min(units, most));
  return LaunchFunction(adasum_, &args, {args.blocks, kAdasumThreads}, stream);
}

// A launch is on the path of every operation, hence rare attributes are added only when needed.
Status Device::LaunchFunction(Function function, void* args, const LaunchShape& shape,
                              Stream stream) const {
  LaunchAttribute attributes[2];
  LaunchConfig config;
  config.grid[0] = shape.blocks;
  config.block[0] = shape.threads;
  config.stream = stream;
  config.attributes = attributes;
  if (shape.early && knows_early_ && shape.blocks <= kEarlyBlocks)
    attributes[config.num_attributes++] = {kAttributeEarly, {1}};
  const bool records = shape.begun != nullptr && driver_.version() >= kBegunDriver;
  if (records) [[unlikely]] {
    LaunchAttribute& begun = attributes[config.num_attributes++];
    begun.id = kAttributeBegun;
    std::memcpy(begun.value, &shape.begun, sizeof(shape.begun));
  }
  void* parameters[] = {args};
  int result = driver_.LaunchKernel(&config, function, parameters, nullptr);
  // The driver takes no event that keeps time, or that other processes share. The kernel is then
  // launched without the event.
  if ((result == kInvalidValue || result == kNotSupported) && records) {
    --config.num_attributes;
    result = driver_.LaunchKernel(&config, function, parameters, nullptr);
  }
  if (result == 0) [[likely]]
    return Status::Ok();
  return driver_.Check(result, fmt::format("launching on CUDA device {} ({})", ordinal_, name_));
}

}  // namespace tutti::cuda
