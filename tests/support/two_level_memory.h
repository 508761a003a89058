// A two-level memory for checking the IO model: slow memory holds matrices, fast memory holds at
// most M bytes of tiles, and arithmetic can only be done on tiles. Every byte that crosses between
// the two is counted, and a tile that does not fit is a failure. With Values::kSkip only the bytes
// are followed, so that long problems can be counted.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace tilewise::testing {

enum class Values { kMove, kSkip };

class TwoLevelMemory {
 public:
  TwoLevelMemory(double fast_bytes, Values values) : fast_bytes_(fast_bytes), values_(values) {}
  ~TwoLevelMemory() { EXPECT_EQ(resident_, 0) << "tiles left in fast memory"; }
  TwoLevelMemory(const TwoLevelMemory&) = delete;

  void take(double bytes) {
    resident_ += bytes;
    if (resident_ > peak_) peak_ = resident_;
    if (resident_ > fast_bytes_ && !overflowed_) {
      overflowed_ = true;
      ADD_FAILURE() << resident_ << " bytes resident in a fast memory of " << fast_bytes_;
    }
  }
  void give_back(double bytes) { resident_ -= bytes; }
  void move(double bytes) { moved_ += bytes; }

  bool has_values() const { return values_ == Values::kMove; }
  double capacity() const { return fast_bytes_; }
  double peak() const { return peak_; }    // most bytes ever resident
  double moved() const { return moved_; }  // bytes between fast and slow memory, both ways

 private:
  double fast_bytes_;
  Values values_;
  double resident_ = 0, peak_ = 0, moved_ = 0;
  bool overflowed_ = false;
};

// A matrix in slow memory. Values are kept as float whatever `element_bytes` says.
struct SlowMatrix {
  std::int64_t rows = 0, cols = 0;
  double element_bytes = 4;
  std::vector<float> data;  // empty when only bytes are followed

  float& at(std::int64_t i, std::int64_t j) { return data[i * cols + j]; }
  float at(std::int64_t i, std::int64_t j) const { return data[i * cols + j]; }
};

// Where a tile lies in its matrix.
struct Corner {
  std::int64_t row = 0, col = 0;
};

// A block of fast memory, resident as long as it lives; starts as zeros.
class FastTile {
 public:
  FastTile(TwoLevelMemory& memory, std::int64_t rows, std::int64_t cols, double element_bytes = 4)
      : memory_(memory), rows_(rows), cols_(cols), bytes_(rows * cols * element_bytes) {
    memory_.take(bytes_);
    if (memory_.has_values()) data_.resize(rows * cols);
  }
  // A tile of the matrix' own type, loaded.
  FastTile(TwoLevelMemory& memory, const SlowMatrix& from, Corner at, Corner size)
      : FastTile(memory, size.row, size.col, from.element_bytes) {
    load(from, at);
  }
  ~FastTile() { memory_.give_back(bytes_); }
  FastTile(const FastTile&) = delete;

  void load(const SlowMatrix& from, Corner at) {
    memory_.move(rows_ * cols_ * from.element_bytes);
    if (!memory_.has_values()) return;
    for (std::int64_t i = 0; i < rows_; ++i)
      for (std::int64_t j = 0; j < cols_; ++j) (*this)(i, j) = from.at(at.row + i, at.col + j);
  }
  void store(SlowMatrix& to, Corner at) const {
    memory_.move(rows_ * cols_ * to.element_bytes);
    if (!memory_.has_values()) return;
    for (std::int64_t i = 0; i < rows_; ++i)
      for (std::int64_t j = 0; j < cols_; ++j) to.at(at.row + i, at.col + j) = (*this)(i, j);
  }

  float& operator()(std::int64_t i, std::int64_t j) { return data_[i * cols_ + j]; }
  float operator()(std::int64_t i, std::int64_t j) const { return data_[i * cols_ + j]; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  bool has_values() const { return memory_.has_values(); }

 private:
  TwoLevelMemory& memory_;
  std::int64_t rows_, cols_;
  double bytes_;
  std::vector<float> data_;
};

}  // namespace tilewise::testing
