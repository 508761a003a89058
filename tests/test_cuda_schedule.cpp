// The longest-first schedule loads the multiprocessors evenly at the lengths that are benchmarked.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cuda/schedule.h"

namespace tilewise::cuda {
namespace {

TEST(CudaSchedule, CausalIsBalanced) {
  for (const int d : {64, 128, 256})
    for (std::int64_t s = 512; s <= 16384; s *= 2) {
      const BandMask band = make_band({s, s, true, -1, -1, true});
      const ScheduleShape shape{16384 / s * 2048 / d, 1, s * d * 4, band, 128, 128, 132};
      EXPECT_LT(imbalance(shape, section_heads(shape)), 1.06) << fmt::format("d {} s {}", d, s);
    }
}

TEST(CudaSchedule, OddShapes) {
  const BandMask unseen = make_band({300, 0, true, -1, -1, true});
  EXPECT_GE(section_heads({3, 1, 0, unseen, 128, 128, 132}), 1);
  const BandMask tall = make_band({700, 100, true, -1, -1, true});
  const int section = section_heads({7, 7, 51200, tall, 128, 64, 132});
  EXPECT_GE(section, 1);
  EXPECT_LE(section, 7);
}

}  // namespace
}  // namespace tilewise::cuda
