// The flags that subcommands share, and the structs that they fill.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tilewise/plan.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tilewise::tools {

// Tensors by path, empty when not given. Where sizes may stand in for tensors, --alibi, --bias and
// --sink may hold kSwitchedOn, and --bias a shape such as "1,8,512,512".
struct TensorFlags {
  std::string q, k, v;
  std::string alibi, bias, sink;
  std::string cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k;
  std::vector<std::string> paths() const {
    return {q, k, v, alibi, bias, sink, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k};
  }
};
inline constexpr const char* kSwitchedOn = "on";

struct ScoreFlags {
  std::optional<DType> dtype;
  bool causal = false;
  std::string window;  // "LEFT,RIGHT"
  Align align = Align::kBottomRight;
  std::optional<float> scale;
  float softcap = 0;
  float dropout = 0;
  std::uint64_t seed = 0, offset = 0;
};

// -1: not given.
struct SizeFlags {
  std::int64_t batch = -1, heads_q = -1, heads_kv = -1, seq_q = -1, seq_kv = -1, head_dim = -1,
               head_dim_v = -1;
};

struct ProblemFlags {
  TensorFlags tensors;
  ScoreFlags score;
  SizeFlags sizes;
};

struct RunFlags {
  Device device;
  Options options;
  bool json = false;
};

enum class From { kTensors, kTensorsOrSizes };

// --q ... --seqused-k and the score flags; with kTensorsOrSizes also --batch ... --head-dim-v, and
// nothing is required.
void add_problem_flags(CLI::App& app, ProblemFlags& flags, From from);

// --device --kernel --isa --threads --deterministic --tile-q --tile-kv --json
void add_run_flags(CLI::App& app, RunFlags& flags);

// --device cpu|cuda[:N]
CLI::Option* add_device_flag(CLI::App& app, Device& device);

// --dtype f32|f16|bf16
CLI::Option* add_dtype_flag(CLI::App& app, std::optional<DType>& dtype, const std::string& help);

}  // namespace tilewise::tools
