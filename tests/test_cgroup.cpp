// The processors that a control group grants, from a made-up file system.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cpu/cgroup.h"

namespace tilewise::cpu {
namespace {

namespace fs = std::filesystem;

class Cgroup : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / ("tilewise-cgroup-" + std::to_string(getpid()));
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void put(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  double granted() const { return granted_processors(root_.string()); }

  fs::path root_;
};

TEST_F(Cgroup, NothingThereMeansNoLimit) {
  EXPECT_EQ(granted(), 0);
  put("proc/self/cgroup", "");
  EXPECT_EQ(granted(), 0);
  put("proc/self/cgroup", "nonsense\n");
  EXPECT_EQ(granted(), 0);
}

TEST_F(Cgroup, Version2TakesTheLeastOfItsAncestors) {
  put("proc/self/cgroup", "0::/a/b\n");
  put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(granted(), 0);
  put("sys/fs/cgroup/a/cpu.max", "250000 100000\n");
  EXPECT_EQ(granted(), 2.5);
  put("sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
  EXPECT_EQ(granted(), 0.5);
}

TEST_F(Cgroup, AContainerSeesItsOwnAtTheTop) {
  put("proc/self/cgroup", "0::/../host/path\n");
  put("sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_EQ(granted(), 2);
}

TEST_F(Cgroup, Version1) {
  put("proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/docker/1\n");
  put("sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu/docker/1/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(granted(), 0);
  put("sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "150000\n");
  EXPECT_EQ(granted(), 1.5);
}

}  // namespace
}  // namespace tilewise::cpu
