// `tilewise demo`: attention on the Q, K and V of a real model, tiled against standard: time,
// memory, error against float64, and the plan in words.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <random>

#include "command.h"
#include "cpu/machine.h"
#include "demo_layer.h"
#include "io/bench_record.h"
#include "io/safetensors.h"
#include "numbers.h"
#include "progress.h"
#include "report.h"

namespace tilewise::tools {
namespace {

// NAME of every NAME.q, NAME.k, NAME.v in the file.
Expected<std::vector<std::string>> layers_in(const std::string& path) {
  const Expected<io::Source> source = io::Source::open(path);
  if (!source.ok()) return source.status();
  const Expected<io::SafetensorsHeader> header = io::parse_safetensors(*source);
  if (!header.ok()) return header.status();
  std::vector<std::string> layers;
  for (const auto& [name, entry] : header->tensors) {
    const std::string layer = name.substr(0, name.rfind('.'));
    if (name.ends_with(".q") && header->tensors.count(layer + ".k") &&
        header->tensors.count(layer + ".v"))
      layers.push_back(layer);
  }
  if (layers.empty())
    return source->bad("has no layer; accepted are tensors NAME.q, NAME.k and NAME.v of one layer");
  for (const auto& [key, text] : header->metadata) fmt::print("  {}: {}\n", key, text);
  return layers;
}

void print_head() {
  fmt::print("\n{:<10} {:<5} {:<10} {:>9} {:>10} {:>11} {:>11} {:>11} {:>10}\n", "layer", "dtype",
             "kernel", "forward", "backward", "workspace", "O error", "dQ error", "rule");
}

void print_row(const std::string& layer, const DemoRow& r) {
  const auto error = [](const reference::Verdict& v) { return fmt::format("{:.1e}", v.max_error); };
  fmt::print("{:<10} {:<5} {:<10} {:>6.2f} ms {:>7.2f} ms {:>11} {:>11} {:>11} {:>10}\n", layer,
             name_of(r.dtype), r.kernel, r.forward_ms, r.backward_ms,
             bytes_text(static_cast<double>(r.workspace_bytes)), error(r.verdicts.front()),
             error(r.verdicts[2]), r.pass ? "kept" : "BROKEN");
  for (const reference::Verdict& v : r.verdicts)
    if (!v.pass) fmt::print("    X {}\n", v.text);
}

// What the same heads would take if the text were longer.
Status print_growth(const Problem& problem) {
  fmt::print("\nworkspace for longer texts  {:>12} {:>12}\n", "tiled", "standard");
  for (const std::int64_t s : {512, 4096, 32768, 65536}) {
    Problem p = problem;
    p.seq_q = p.seq_kv = s;
    std::vector<std::string> cells;
    for (const char* kernel : {"auto", "standard"}) {
      Options options;
      options.kernel = kernel;
      options.threads = 1;  // how it grows, not how it spreads
      const Expected<Plan> plan = make_plan(p, {}, options);
      if (!plan.ok()) return plan.status();
      cells.push_back(bytes_text(static_cast<double>(plan->forward.workspace_bytes)));
    }
    fmt::print("  S = {:<22} {:>12} {:>12}\n", s, cells[0], cells[1]);
  }
  return {};
}

Expected<bool> demo(const std::string& path, int repeat) {
  fmt::print("{} on {}\n", path, "CPU " + cpu::machine().model);
  const Expected<std::vector<std::string>> layers = layers_in(path);
  if (!layers.ok()) return layers.status();
  bool pass = true;
  std::optional<Plan> shown;
  print_head();
  {
    Progress progress("demo", static_cast<std::int64_t>(layers->size()) * 2);
    for (const std::string& layer : *layers)
      for (const DType dtype : {DType::kF32, DType::kF16}) {
        Expected<DemoLayer> run = DemoLayer::load(path, layer, dtype);
        if (!run.ok()) return run.status();
        for (const char* kernel : {"auto", "fa1", "standard"}) {
          const Expected<DemoRow> row = run->run(kernel, repeat);
          if (!row.ok()) return row.status();
          pass = pass && row->pass;
          print_row(layer, *row);
          if (!shown) shown = row->plan;
        }
        progress.advance();
      }
  }
  if (Status s = print_growth(shown->problem); !s.ok()) return s;
  fmt::print("\nThe plan of the first row:\n{}\n", shown->describe());
  fmt::print("{}\n", pass ? "Every result is within the accuracy rule."
                          : "A result breaks the accuracy rule.");
  return pass;
}

}  // namespace

void add_demo(CLI::App& app, Run& run) {
  CLI::App* sub =
      app.add_subcommand("demo", "attention on a real model's tensors, tiled against standard");
  const auto path = std::make_shared<std::string>();
  const auto repeat = std::make_shared<int>(9);
  sub->add_option("file", *path, "a .safetensors file with NAME.q, NAME.k, NAME.v of layers")
      ->required()
      ->type_name("FILE");
  sub->add_option("--repeat", *repeat, "timed runs of each; the median counts; default 9")
      ->check(whole_number(1))
      ->type_name("N");
  sub->footer(
      "Exit code 1 when an error is out of the rule.\n\n"
      "Example:\n  tilewise demo examples/data/minilm_qkv.safetensors");
  sub->callback([path, repeat, &run] {
    run = [path, repeat] {
      const Expected<bool> pass = demo(*path, *repeat);
      if (!pass.ok()) return fail("demo", pass.status());
      return *pass ? kExitOk : kExitFailedCheck;
    };
  });
}

}  // namespace tilewise::tools
