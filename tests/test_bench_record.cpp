// The benchmark schema: names, order, nulls, and appending.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "io/bench_record.h"

namespace tilewise {
namespace {

io::BenchRecord example() {
  io::BenchRecord r;
  r.pass = "fwd";
  r.problem.seq_q = r.problem.seq_kv = 4096;
  r.problem.head_dim = r.problem.head_dim_v = 64;
  r.problem.mask.causal = true;
  r.device = "CPU of \"test\"";
  r.kernel = "fa2";
  r.ms_median = 2;
  r.flops = 4e9;
  r.peak_extra_bytes = 1024;
  return r;
}

TEST(BenchRecord, HasTheSchemasFieldsInOrder) {
  const auto json = nlohmann::ordered_json::parse(io::to_json_line(example()));
  const char* names[] = {"pass",
                         "dtype",
                         "d",
                         "dv",
                         "sq",
                         "sk",
                         "batch",
                         "hq",
                         "hkv",
                         "mask",
                         "device",
                         "threads",
                         "impl",
                         "kernel",
                         "ms_median",
                         "tflops",
                         "ceiling_tflops",
                         "peak_extra_bytes",
                         "date"};
  std::size_t i = 0;
  for (const auto& item : json.items()) {
    ASSERT_LT(i, std::size(names));
    EXPECT_EQ(item.key(), names[i++]);
  }
  EXPECT_EQ(i, std::size(names));
  EXPECT_EQ(json["dtype"], "f32");
  EXPECT_EQ(json["mask"], "causal");
  EXPECT_EQ(json["device"], "CPU of \"test\"");
  EXPECT_DOUBLE_EQ(json["tflops"], 2.0);
  EXPECT_TRUE(json["ceiling_tflops"].is_null());
}

TEST(BenchRecord, NamesWindows) {
  io::BenchRecord r = example();
  r.problem.mask = {.left = 128, .right = 0};
  EXPECT_EQ(nlohmann::json::parse(io::to_json_line(r))["mask"], "window 128,0");
  r.problem.mask = {};
  EXPECT_EQ(nlohmann::json::parse(io::to_json_line(r))["mask"], "full");
}

TEST(BenchRecord, AppendsALineEach) {
  const std::string path = ::testing::TempDir() + "tilewise_bench_record.jsonl";
  std::remove(path.c_str());
  EXPECT_TRUE(io::append_record(path, example()).ok());
  EXPECT_TRUE(io::append_record(path, example()).ok());
  std::ifstream file(path);
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines)
    EXPECT_EQ(nlohmann::json::parse(line)["kernel"], "fa2");
  EXPECT_EQ(lines, 2);
  std::remove(path.c_str());
}

TEST(BenchRecord, NamesThePathThatCannotBeWritten) {
  const Status status = io::append_record("/nowhere/at/all.jsonl", example());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("/nowhere/at/all.jsonl"), std::string::npos);
}

}  // namespace
}  // namespace tilewise
