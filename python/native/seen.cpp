#include "seen.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <unordered_map>

#include "exchange.h"
#include "views.h"

namespace tilewise::python {
namespace {

namespace nb = nanobind;

class Key {
 public:
  // False if these operands are none that a plan is remembered for.
  bool read(nb::handle operands, nb::handle settings) {
    add(reinterpret_cast<std::uintptr_t>(settings.ptr()));
    Device device;
    for (int i = 0; i < kOperands; ++i) {
      const nb::handle operand = PyTuple_GetItem(operands.ptr(), i);
      if (operand.is_none()) {
        add(~std::uint64_t{0});
        continue;
      }
      Tensor t;
      if (!is_exchanged(operand) || !read_exchanged(operand, t)) return false;
      if (i == 0) device = t.device;
      if (t.device.kind != device.kind || t.device.index != device.index) return false;
      add(static_cast<std::uint64_t>(t.dtype) | static_cast<std::uint64_t>(t.rank) << 8 |
          static_cast<std::uint64_t>(t.device.kind) << 16 |
          static_cast<std::uint64_t>(static_cast<std::uint32_t>(t.device.index)) << 32);
      for (int d = 0; d < t.rank; ++d) add(static_cast<std::uint64_t>(t.shape[d]));
    }
    return true;
  }
  bool operator==(const Key& other) const {
    return count_ == other.count_ &&
           std::memcmp(words_.data(), other.words_.data(), count_ * sizeof words_[0]) == 0;
  }
  std::size_t hash() const { return hash_; }

 private:
  void add(std::uint64_t word) {
    words_[count_++] = word;
    hash_ = (hash_ ^ word) * 0x9E3779B97F4A7C15u;
    hash_ ^= hash_ >> 29;
  }
  std::array<std::uint64_t, 1 + kOperands*(1 + kMaxRank)> words_;
  std::size_t count_ = 0;
  std::uint64_t hash_ = 0;
};

struct Hash {
  std::size_t operator()(const Key& key) const { return key.hash(); }
};

struct Seen {
  nb::object plan;
  nb::object settings;  // kept, so that no other object takes its address
};

// Guarded by the GIL. Never destroyed: Python may be gone by then.
std::unordered_map<Key, Seen, Hash>& table() {
  static auto* const seen = new std::unordered_map<Key, Seen, Hash>;
  return *seen;
}

}  // namespace

nb::object find_seen(nb::handle operands, nb::handle settings) {
  expect_count(operands, kOperands);
  Key key;
  if (!key.read(operands, settings)) return nb::none();
  const auto found = table().find(key);
  return found == table().end() ? nb::none() : found->second.plan;
}

void remember_seen(nb::handle operands, nb::handle settings, nb::object plan) {
  constexpr std::size_t kMost = 4096;
  expect_count(operands, kOperands);
  Key key;
  if (!key.read(operands, settings)) return;
  if (table().size() >= kMost) table().clear();
  table().insert_or_assign(key, Seen{std::move(plan), nb::borrow(settings)});
}

}  // namespace tilewise::python
