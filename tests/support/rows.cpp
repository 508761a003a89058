// See rows.h.
#include "support/rows.h"

#include <gtest/gtest.h>

namespace tilewise_test {

using namespace tilewise;
using namespace tilewise::reference;

Options Row::options(int threads) const {
  Options o;
  o.kernel = kernel, o.isa = isa, o.threads = threads;
  return o;
}

std::vector<Row> all_rows() {
  std::vector<Row> rows;
  for (const std::string& kernel : kernel_names()) {
    if (kernel == "reference") {
      rows.push_back({kernel, "auto"});
      continue;
    }
    for (const std::string& isa : isa_names()) rows.push_back({kernel, isa});
  }
  return rows;
}

void expect_rows_pass(const Case& c, const Trial::Adjust& adjust) {
  Trial trial(c, seed(), adjust);
  int ran = 0;
  for (const Row& row : all_rows()) {
    const Report report = check(trial, row.options());
    if (report.unsupported) continue;
    ++ran;
    for (const std::string& failure : report.failures)
      ADD_FAILURE() << row.name() << " [" << c.name << "]: " << failure;
  }
  EXPECT_GT(ran, 0) << c.name;
}

void run_forward(const Problem& p, const Options& options, const Inputs& in, const Outputs& out) {
  const Expected<Plan> plan = make_plan(p, {}, options);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const Workspace space(plan->forward);
  const Status status = tilewise::forward(*plan, in, out, space.launch());
  ASSERT_TRUE(status.ok()) << status.message();
}

void run_backward(const Problem& p, const Options& options, const Inputs& in,
                  const Gradients& grads) {
  const Expected<Plan> plan = make_plan(p, {}, options);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const Workspace space(plan->backward);
  const Status status = tilewise::backward(*plan, in, grads, space.launch());
  ASSERT_TRUE(status.ok()) << status.message();
}

}  // namespace tilewise_test
