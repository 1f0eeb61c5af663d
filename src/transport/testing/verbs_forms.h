#pragma once

// Runs the contract tests of networks for each form in which verbs carry messages.

#include <functional>
#include <string>
#include <vector>

#include "config/settings.h"
#include "transport/testing/net_link.h"

namespace tutti {

// A form, and its change of the settings.
struct VerbsForm {
  const char* name;
  void (*change)(Settings& settings);
};
inline constexpr VerbsForm kVerbsForms[] = {
    {"OneQueuePair", [](Settings&) {}},
    {"InTurn", [](Settings& s) { s.ib_qps = 3; }},
    {"Split",
     [](Settings& s) {
       s.ib_qps = 4;
       s.ib_split_data = true;
     }},
    {"SeparateEnd",
     [](Settings& s) {
       s.ib_adaptive_routing = "1";
       s.ib_ar_threshold = 1000;
     }},
    {"Inline", [](Settings& s) { s.ib_use_inline = true; }},
    {"Notices", [](Settings& s) { s.ib_send_notices = true; }},
    {"NoticesSplit",
     [](Settings& s) {
       s.ib_send_notices = true;
       s.ib_qps = 4;
       s.ib_split_data = true;
     }},
};

// Returns the factory of each form.
inline std::vector<NetFactory> ForEachVerbsForm(
    const std::function<NetFactory(const std::string& name,
                                   const std::function<void(Settings&)>& change)>& factory) {
  std::vector<NetFactory> all;
  for (const VerbsForm& form : kVerbsForms) all.push_back(factory(form.name, form.change));
  return all;
}

}  // namespace tutti
