// `tilewise plan`: what would run and what it would cost, in words, as JSON or as a chart.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "command.h"
#include "load.h"
#include "numbers.h"
#include "report.h"
#include "sweep_chart.h"

namespace tilewise::tools {
namespace {

struct Flags {
  ProblemFlags problem;
  RunFlags run;
  std::int64_t sweep = 0;
  std::string chart = "traffic.svg";
};

Status plan(const Flags& f) {
  const Expected<Loaded> loaded = load_problem(f.problem);
  if (!loaded.ok()) return loaded.status();
  const Expected<Plan> made = make_plan(loaded->problem, f.run.device, f.run.options);
  if (!made.ok()) return made.status();
  if (f.sweep) {
    if (Status s = write_sweep_chart(loaded->problem, f.run.options, f.sweep, f.chart); !s.ok())
      return s;
  }
  fmt::print("{}\n", f.run.json ? to_json(*made).dump(2) : made->describe());
  if (f.sweep && !f.run.json) fmt::print("{}: predicted traffic up to N = {}\n", f.chart, f.sweep);
  return {};
}

}  // namespace

void add_plan(CLI::App& app, Run& run) {
  CLI::App* sub =
      app.add_subcommand("plan", "which kernel would run, its tiles, memory and traffic");
  const auto f = std::make_shared<Flags>();
  add_problem_flags(*sub, f->problem, From::kTensorsOrSizes);
  add_run_flags(*sub, f->run);
  sub->add_option("--fast-memory", f->run.options.fast_memory_bytes,
                  "M of the IO model in bytes; default the device's (L2 on a CPU)")
      ->check(whole_number())
      ->type_name("M");
  CLI::Option* sweep =
      sub->add_option("--sweep", f->sweep, "draw the traffic against N = Sq = Sk up to this")
          ->check(whole_number(2, 1 << 30))
          ->type_name("N");
  CLI::Option* chart =
      sub->add_option("-o,--chart", f->chart, "where the SVG chart goes; default traffic.svg")
          ->type_name("FILE");
  chart->needs(sweep);
  sub->footer(
      "Example:\n"
      "  tilewise plan --batch 1 --heads-q 32 --heads-kv 8 --seq-q 4096 --head-dim 128 --dtype "
      "bf16 \\\n"
      "    --causal --sweep 65536 -o traffic.svg");
  sub->callback([f, &run] {
    run = [f] {
      const Status s = plan(*f);
      return s.ok() ? kExitOk : fail("plan", s);
    };
  });
}

}  // namespace tilewise::tools
