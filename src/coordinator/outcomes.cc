// Comparison of outcomes of a step that all ranks of a group tried.

#include <vector>

#include "base/text.h"
#include "coordinator/operations_plugin.h"

namespace tutti::coordinator {
namespace {

// The message of a rank in the gather, of fixed size. Longer sentences are cut off.
struct Outcome {
  char text[512];
  bool failed;
  bool derived;
};

}  // namespace

Result<FirstFailure> CompareOutcomes(
    const std::function<Status(const void* mine, size_t bytes, void* all)>& gather,
    size_t num_ranks, const Status& mine, bool derived) {
  Outcome my = {};
  my.failed = !mine.ok();
  my.derived = derived;
  mine.message().copy(my.text, sizeof(my.text) - 1);
  std::vector<Outcome> all(num_ranks);
  TUTTI_TRY(gather(&my, sizeof(my), all.data()));
  // A failure that another rank caused counts only when no rank failed by itself.
  FirstFailure first;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i].failed) continue;
    all[i].text[sizeof(all[i].text) - 1] = '\0';
    if (!first) first = {i, Printable(all[i].text)};
    if (!all[i].derived) return FirstFailure({i, Printable(all[i].text)});
  }
  return first;
}

}  // namespace tutti::coordinator
