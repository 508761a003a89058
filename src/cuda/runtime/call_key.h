// A call of forward or backward as words that compare fast: whoever calls with a plan and tensors
// seen before, as every training loop and captured graph does, pays neither for the checks nor for
// the parameters again.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tilewise/attention.hpp"

namespace tilewise::cuda {

class CallKey {
 public:
  void add(std::uint64_t word) {
    if (count_ < words_.size()) words_[count_] = word;
    hash_ = (hash_ ^ word) * 0x9E3779B97F4A7C15u;
    hash_ ^= hash_ >> 29;
    ++count_;
  }
  void add_text(const std::string& text) {
    add(text.size());
    for (std::size_t at = 0; at < text.size(); at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, text.data() + at, std::min<std::size_t>(8, text.size() - at));
      add(word);
    }
  }
  void add_tensor(const Tensor& t) {
    add(reinterpret_cast<std::uintptr_t>(t.data));
    if (!t.given()) return;
    add(static_cast<std::uint64_t>(t.dtype) | static_cast<std::uint64_t>(t.device.kind) << 8 |
        static_cast<std::uint64_t>(static_cast<std::uint8_t>(t.rank)) << 16 |
        static_cast<std::uint64_t>(static_cast<std::uint32_t>(t.device.index)) << 32);
    for (int i = 0; i < t.rank && i < kMaxRank; ++i) {
      add(static_cast<std::uint64_t>(t.shape[i]));
      add(static_cast<std::uint64_t>(t.strides[i]));
    }
  }
  void add_problem(const Problem& p);
  void add_plan(const Plan& plan, const PassPlan& pass);
  void add_inputs(const Inputs& in);  // but for seed and offset, which change with every call

  bool operator==(const CallKey& other) const {
    return count_ == other.count_ && count_ <= words_.size() &&
           std::memcmp(words_.data(), other.words_.data(), count_ * sizeof words_[0]) == 0;
  }
  std::uint64_t hash() const { return hash_; }

 private:
  static constexpr std::size_t kMostWords = 320;  // 20 tensors of rank 4, and the plan
  std::array<std::uint64_t, kMostWords> words_;
  std::size_t count_ = 0;
  std::uint64_t hash_ = 0;
};

// What was prepared for the calls that one thread made last.
template <class Prepared>
class Memo {
 public:
  // Null when the call is new. Valid until the next keep().
  Prepared* find(const CallKey& key) {
    Slot* const slot = slots_.empty() ? nullptr : slots_[place(key)].get();
    return slot && slot->key == key ? &slot->prepared : nullptr;
  }
  void keep(const CallKey& key, const Prepared& prepared) {
    slots_.resize(kSlots);
    slots_[place(key)] = std::make_unique<Slot>(Slot{key, prepared});
  }

 private:
  static constexpr std::size_t kSlots = 256;  // layers times micro-batches, at 3 KiB each
  struct Slot {
    CallKey key;
    Prepared prepared;
  };
  static std::size_t place(const CallKey& key) { return key.hash() >> 32 & (kSlots - 1); }
  std::vector<std::unique_ptr<Slot>> slots_;
};

inline void CallKey::add_problem(const Problem& p) {
  static_assert(sizeof(Problem) == 144, "a new field of Problem joins the key below");
  const auto flags = [](std::initializer_list<unsigned> values, int bits) {
    std::uint64_t word = 0;
    for (const unsigned v : values) word = word << bits | v;
    return word;
  };
  for (const std::int64_t n :
       {p.batch, p.heads_q, p.heads_kv, p.seq_q, p.seq_kv, p.head_dim, p.head_dim_v, p.mask.left,
        p.mask.right, p.varlen.total_q, p.varlen.total_kv})
    add(static_cast<std::uint64_t>(n));
  add(flags(
      {static_cast<unsigned>(p.dtype), p.out_dtype ? 1u + static_cast<unsigned>(*p.out_dtype) : 0u,
       p.mask.causal, static_cast<unsigned>(p.mask.align), static_cast<unsigned>(p.alibi),
       static_cast<unsigned>(p.bias.dtype), p.sink, p.scale.has_value()},
      8));
  const Bias& b = p.bias;
  const Varlen& v = p.varlen;
  add(flags({b.present, b.broadcast_batch, b.broadcast_heads, b.broadcast_q, b.broadcast_kv,
             v.cu_seqlens_q, v.cu_seqlens_kv, v.seqused_q, v.seqused_kv},
            1));
  add(std::bit_cast<std::uint32_t>(p.scale.value_or(0.0f)) |
      static_cast<std::uint64_t>(std::bit_cast<std::uint32_t>(p.softcap)) << 32);
  add(std::bit_cast<std::uint32_t>(p.dropout_p));
}

inline void CallKey::add_plan(const Plan& plan, const PassPlan& pass) {
  add_problem(plan.problem);
  add(static_cast<std::uint64_t>(plan.device.index));
  add(plan.options.deterministic);
  add_text(plan.options.kernel);
  add_text(pass.kernel);
  add(static_cast<std::uint64_t>(pass.tile_q));
  add(static_cast<std::uint64_t>(pass.tile_kv));
  add(pass.workspace_bytes);
}

inline void CallKey::add_inputs(const Inputs& in) {
  for (const Tensor* t : {&in.q, &in.k, &in.v, &in.alibi_slopes, &in.bias, &in.sink,
                          &in.cu_seqlens_q, &in.cu_seqlens_kv, &in.seqused_q, &in.seqused_kv})
    add_tensor(*t);
}

}  // namespace tilewise::cuda
