// See judge.h.
#include "judge.h"

namespace tilewise::tools {

std::vector<reference::Verdict> judge_run(const Problem& problem, const reference::Oracle& oracle,
                                          const Outputs& out, const Gradients* grads) {
  std::vector<reference::Verdict> verdicts = {judge(measure_output(problem, oracle, out))};
  for (reference::Verdict& v : judge_lse(oracle, out)) verdicts.push_back(std::move(v));
  if (grads)
    for (const reference::Errors& e : measure_gradients(problem, oracle, *grads))
      verdicts.push_back(judge(e));
  return verdicts;
}

}  // namespace tilewise::tools
