// The agreements of a coordinator's ranks at the beginning of a job: settings that must be the same
// everywhere, and the plugins that all ranks have.

#include <cstring>
#include <utility>

#include "base/log.h"
#include "bootstrap/wire.h"
#include "coordinator/coordinator.h"

namespace tutti::coordinator {

// Rank 0 decides the settings that must be the same everywhere, and where the communicator's ranks
// meet.
Result<Coordinator::Common> Coordinator::AgreeOnSettings(ncclUniqueId* id) {
  Bytes mine;
  if (options_.rank == 0) {
    TUTTI_TRY(FromNccl(ncclGetUniqueId(id)));
    WireWriter writer;
    WriteText(writer, std::string_view(id->internal, sizeof(id->internal)));
    writer.U64(static_cast<uint64_t>(common_.tuning.fusion_threshold));
    writer.U64(static_cast<uint64_t>(common_.tuning.window_ns));
    writer.U64(common_.cache_capacity);
    writer.U8(common_.tuning.hierarchical_allreduce ? 1 : 0);
    writer.U8(common_.tuning.hierarchical_allgather ? 1 : 0);
    writer.U8(common_.fuse_groups ? 1 : 0);
    writer.U8(common_.autotune ? 1 : 0);
    writer.U8(common_.encrypt ? 1 : 0);
    WriteText(writer, common_.controller);
    WriteText(writer, common_.cpu_operations);
    for (const std::string& list : common_.gpu_operations) WriteText(writer, list);
    mine = std::move(writer).Take();
  }
  TUTTI_ASSIGN(
      const std::vector<Bytes> all,
      bootstrap_->AllGatherV(mine, Deadline::AfterSeconds(options_.settings.init_timeout_s)));
  WireReader reader(all.front());
  std::string meeting;
  if (!ReadBytes(reader, sizeof(id->internal), meeting)) {
    return RemoteError("rank 0 sent no unique id");
  }
  std::memcpy(id->internal, meeting.data(), meeting.size());
  Common common;
  common.tuning.fusion_threshold = static_cast<int64_t>(reader.U64());
  common.tuning.window_ns = static_cast<int64_t>(reader.U64());
  common.cache_capacity = reader.U64();
  common.tuning.hierarchical_allreduce = reader.U8() != 0;
  common.tuning.hierarchical_allgather = reader.U8() != 0;
  common.fuse_groups = reader.U8() != 0;
  common.autotune = reader.U8() != 0;
  common.encrypt = reader.U8() != 0;
  bool lists = ReadName(reader, common.controller) && ReadName(reader, common.cpu_operations);
  for (std::string& list : common.gpu_operations) lists = lists && ReadName(reader, list);
  if (!lists || reader.failed() || !reader.AtEnd()) {
    return RemoteError("rank 0 sent settings that this version does not understand");
  }
  if (!common.tuning.sane() || common.cache_capacity > HighestSettings::cache_capacity) {
    return RemoteError(
        "rank 0 sent settings beyond their bounds: HOROVOD_FUSION_THRESHOLD of {} bytes, "
        "HOROVOD_CYCLE_TIME of {} ns, HOROVOD_CACHE_CAPACITY of {} tensors",
        common.tuning.fusion_threshold, common.tuning.window_ns, common.cache_capacity);
  }
  return common;
}

// Returns a function that gathers every rank's text, by rank, in printable form.
GatherTexts Coordinator::TextGatherer() const {
  return [this](const std::string& mine) -> Result<std::vector<std::string>> {
    TUTTI_ASSIGN(const std::vector<Bytes> all,
                 bootstrap_->AllGatherV(std::as_bytes(std::span(mine)),
                                        Deadline::AfterSeconds(options_.settings.init_timeout_s)));
    std::vector<std::string> texts;
    for (const Bytes& bytes : all) texts.push_back(PrintableText(bytes));
    return texts;
  };
}

// Chooses the first entry of a list that every rank has. Every rank has Tutti's own. `list` is rank
// 0's, and `own` is the list of this rank's environment.
Result<std::shared_ptr<OperationsPlugin>> Coordinator::ChooseFor(std::string_view variable,
                                                                 const std::string& list,
                                                                 const std::string& own) {
  if (list.empty()) return std::shared_ptr<OperationsPlugin>();
  const auto find = [&](const std::string& name, int rank,
                        int num_ranks) -> Result<std::shared_ptr<OperationsPlugin>> {
    TUTTI_TRY(MayLoad(name, variable, own));
    TUTTI_TRY(MayCarryPlain(common_.encrypt, name, list));
    return options_.find_plugin(name, rank, num_ranks);
  };
  TUTTI_ASSIGN(const PluginChoice choice,
               ChoosePlugin(list, options_.rank, options_.num_ranks, TextGatherer(), find));
  if (choice.plugin && common_.encrypt) WarnOfPlain(variable, choice.plugin->name());
  if (!choice.why.empty() && options_.rank == 0) {
    TUTTI_WARN("{} asks for {}, which cannot be had: {}. {} is used.", variable, list, choice.why,
               choice.plugin ? choice.plugin->name() : "Tutti's own");
  }
  return choice.plugin;
}

}  // namespace tutti::coordinator
