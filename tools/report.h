// A plan and a finished run as JSON for programs, and what a run wrote as words for people.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "core/bytes_text.h"
#include "io/tensor_file.h"
#include "tilewise/plan.hpp"

namespace tilewise::tools {

nlohmann::ordered_json to_json(const Problem& problem);
nlohmann::ordered_json to_json(const PassPlan& pass);
nlohmann::ordered_json to_json(const Plan& plan);

struct RunReport {
  const Plan& plan;
  const PassPlan& pass;
  double ms;
  std::span<const io::Output> written;
};

// On stdout: one line for each file, or one JSON object.
void print_run(const RunReport& report, bool json);

}  // namespace tilewise::tools
