#include "transport/net/verbs/fault.h"

#include <cerrno>

namespace tutti {
namespace {

// The meaning of a status for the user: whether the peer or the way to the peer is the cause, and
// advice on the next step.
struct Meaning {
  bool remote;
  std::string_view advice;
};

Meaning MeaningOf(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
      return {true,
              "the other end did not answer: its process may have ended, or the way to it loses "
              "packets. Look at the link and the switch, on RoCE at flow control and MTU, and "
              "whether NCCL_IB_GID_INDEX fits both ends"};
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return {true, "the other end had no receive posted, although it granted the message"};
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
      return {true, "the other end does not let its memory be written there"};
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_ABORT_ERR:
      return {true, "the other end's NIC failed; its own log tells more"};
    case IBV_WC_WR_FLUSH_ERR:
      return {true, "the queue pair had failed before"};
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
      return {false, "the memory is not registered, or was unmapped while it was used"};
    default:
      return {false, "this host's NIC refused; the kernel's log may tell more"};
  }
}

}  // namespace

Status DescribeCompletion(const VerbsLibrary& library, const ibv_wc& completion,
                          std::string_view doing, std::string_view local, std::string_view remote,
                          const VerbsOptions& options) {
  const Meaning meaning = MeaningOf(completion.status);
  std::string sentence =
      fmt::format("{} failed from {} to {}: {} (status {}, vendor error {:#x}); {}", doing, local,
                  remote, library.wc_status_str(completion.status),
                  static_cast<int>(completion.status), completion.vendor_err, meaning.advice);
  if (completion.status == IBV_WC_RETRY_EXC_ERR) {
    sentence += fmt::format(
        "; it was tried {} times (NCCL_IB_RETRY_CNT), {} ms each at least "
        "(NCCL_IB_TIMEOUT={})",
        options.retry_count + 1, (uint64_t{4096} << options.timeout) / 1'000'000, options.timeout);
  }
  return Status(meaning.remote ? Code::kRemoteError : Code::kSystemError, std::move(sentence));
}

// The remaining statuses report a forbidden access or a mistake, which a renewal would only repeat.
bool MayRecover(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
    case IBV_WC_WR_FLUSH_ERR:
    case IBV_WC_REM_ABORT_ERR:
    case IBV_WC_FATAL_ERR:
      return true;
    default:
      return false;
  }
}

// A port that goes down is no fatal event: the port may come back, and queue pairs can move.
bool IsFatal(ibv_event_type event) {
  switch (event) {
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_DEVICE_FATAL:
      return true;
    default:
      return false;
  }
}

std::string DescribeEvent(const VerbsLibrary& library, ibv_event_type event,
                          std::string_view device, int port) {
  const std::string where =
      port > 0 ? fmt::format("{} port {}", device, port) : std::string(device);
  std::string sentence = fmt::format("{}: {}", where, library.event_type_str(event));
  if (event == IBV_EVENT_PORT_ERR) {
    sentence +=
        "; what is under way is tried again until NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT "
        "end it";
  }
  return sentence;
}

Status DescribeRefusal(int error, std::string_view what, std::string_view device) {
  const Status plain = ErrnoError(error, fmt::format("{}: {}", device, what));
  if (error == ENOMEM) {
    return SystemError("{}; the limit of locked memory may be too low: ulimit -l unlimited",
                       plain.message());
  }
  return plain;
}

}  // namespace tutti
