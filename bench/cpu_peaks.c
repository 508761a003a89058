/* What one core can do in registers, in FLOP/s: f32 multiply-adds, bf16 dot products, AMX tile
 * products. 0 where the processor or the operating system lacks them. bench/cpu_peers.py compiles
 * and calls this. The tiles hold random numbers: on zeros they run a quarter faster than power
 * allows on data. */
#define _GNU_SOURCE
#include <immintrin.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum { kRounds = 10, kSteps = 200000 };

/* Ten independent sums of the instruction; the best of a few rounds. */
#define TEN_SUMS(INSTRUCTION)                                                              \
  double best = 1e9;                                                                       \
  for (int round = 0; round < kRounds; ++round) {                                          \
    const double begin = now();                                                            \
    for (int i = 0; i < kSteps; ++i)                                                       \
      __asm__ volatile(INSTRUCTION(16) INSTRUCTION(17) INSTRUCTION(18) INSTRUCTION(19)     \
                           INSTRUCTION(20) INSTRUCTION(21) INSTRUCTION(22) INSTRUCTION(23) \
                               INSTRUCTION(24) INSTRUCTION(25)::                           \
                                   : "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", \
                                     "xmm22", "xmm23", "xmm24", "xmm25");                  \
    const double taken = now() - begin;                                                    \
    if (taken < best) best = taken;                                                        \
  }
#define FMA(n) "vfmadd231ps %%zmm0, %%zmm0, %%zmm" #n "\n\t"
#define DOT(n) "vdpbf16ps %%zmm0, %%zmm0, %%zmm" #n "\n\t"

__attribute__((target("avx512f"))) double peak_fma(void) {
  if (!__builtin_cpu_supports("avx512f")) return 0;
  __asm__ volatile("vpxord %%zmm0, %%zmm0, %%zmm0" ::: "xmm0");
  TEN_SUMS(FMA)
  return 10.0 * kSteps * 2 * 16 / best;
}

__attribute__((target("avx512f"))) double peak_dot(void) {
  if (!__builtin_cpu_supports("avx512bf16")) return 0;
  __asm__ volatile("vpxord %%zmm0, %%zmm0, %%zmm0" ::: "xmm0");
  TEN_SUMS(DOT)
  return 10.0 * kSteps * 4 * 16 / best;
}

double peak_amx(void) {
  const long kRequestPermission = 0x1023, kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return 0;
  static const struct {
    unsigned char palette, start_row, reserved[14];
    unsigned short row_bytes[16];
    unsigned char rows[16];
  } __attribute__((aligned(64)))
  config = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
  unsigned short numbers[512];
  for (int i = 0; i < 512; ++i)
    numbers[i] = (unsigned short)(0x3F00 + rand() % 256 + (rand() % 2 << 15));
  __asm__ volatile("ldtilecfg %0" ::"m"(config));
  const long stride = 64;
  __asm__ volatile(
      "tileloadd (%0,%1,1), %%tmm4\n\ttileloadd (%0,%1,1), %%tmm5\n\t"
      "tileloadd (%0,%1,1), %%tmm6\n\ttileloadd (%0,%1,1), %%tmm7" ::"r"(numbers),
      "r"(stride)
      : "memory");
  double best = 1e9;
  for (int round = 0; round < kRounds; ++round) {
    __asm__ volatile("tilezero %tmm0\n\ttilezero %tmm1\n\ttilezero %tmm2\n\ttilezero %tmm3");
    const double begin = now();
    for (int i = 0; i < kSteps; ++i)
      __asm__ volatile(
          "tdpbf16ps %tmm6, %tmm4, %tmm0\n\ttdpbf16ps %tmm6, %tmm5, %tmm1\n\t"
          "tdpbf16ps %tmm7, %tmm4, %tmm2\n\ttdpbf16ps %tmm7, %tmm5, %tmm3");
    const double taken = now() - begin;
    if (taken < best) best = taken;
  }
  __asm__ volatile("tilerelease");
  return 4.0 * kSteps * 2 * 16 * 16 * 32 / best;
}
