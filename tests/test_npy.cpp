// .npy: what NumPy writes is read exactly, what we write NumPy reads, and every broken file is an
// error that names the file, what was found and what is accepted.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "io/npy.h"
#include "io/tensor_file.h"
#include "support/scratch_folder.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TILEWISE_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TILEWISE_SANITIZED 1
#endif
#endif

namespace tilewise::io {
namespace {

// An .npy file of `version`.0; `claimed` is the header length that it states.
std::string npy_bytes(const std::string& dict, const std::string& data, int version = 1,
                      std::int64_t claimed = -1) {
  const std::uint32_t length = static_cast<std::uint32_t>(claimed < 0 ? dict.size() : claimed);
  std::string out = "\x93NUMPY";
  out += static_cast<char>(version);
  out += '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) out += static_cast<char>(length >> 8 * i);
  return out + dict + data;
}

std::string dict_of(const std::string& descr, const std::string& shape,
                    const std::string& fortran = "False") {
  return fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': {}, }}   \n", descr, fortran,
                     shape);
}

template <class T>
std::string raw(std::initializer_list<T> values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.begin(), bytes.size());
  return bytes;
}

Expected<HostTensor> read(const std::string& bytes, Role role = Role::kNumbers) {
  return read_npy(Source(std::as_bytes(std::span(bytes)), "x.npy"), role);
}

template <class T>
std::vector<T> values(const HostTensor& t) {
  return {t.as<T>().begin(), t.as<T>().end()};
}

TEST(Npy, ReadsEveryDtypeAndVersion) {
  for (int version : {1, 2, 3}) {
    const auto f4 =
        read(npy_bytes(dict_of("<f4", "(2, 3)"), raw<float>({1, -2, 3, 4, 5, 6}), version));
    ASSERT_TRUE(f4.ok()) << f4.status().message();
    EXPECT_EQ(values<float>(*f4), (std::vector<float>{1, -2, 3, 4, 5, 6}));
    EXPECT_EQ(shape_text(f4->shape()), "(2, 3)");
    EXPECT_EQ(f4->view().strides[0], 3);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(f4->data()) % 64, 0u);
  }
  const auto f2 = read(npy_bytes(dict_of("<f2", "(2,)"), raw<std::uint16_t>({0x3C00, 0xFC00})));
  ASSERT_TRUE(f2.ok());
  EXPECT_EQ(f2->dtype(), DType::kF16);
  EXPECT_EQ(f2->as<std::uint16_t>()[1], 0xFC00);
  const auto f8 = read(npy_bytes(dict_of("<f8", "(3,)"), raw<double>({0.1, -1e300, 1e-320})));
  ASSERT_TRUE(f8.ok());
  EXPECT_EQ(values<float>(*f8),
            (std::vector<float>{0.1f, -std::numeric_limits<float>::infinity(), 0.0f}));
  const auto i4 = read(npy_bytes(dict_of("<i4", "(2,)"), raw<int>({0, 9})), Role::kIndices);
  ASSERT_TRUE(i4.ok());
  EXPECT_EQ(values<std::int32_t>(*i4), (std::vector<std::int32_t>{0, 9}));
}

TEST(Npy, NarrowsIndicesOfManyChunksAndFindsTheOneThatDoesNotFit) {
  std::string data(20000 * 8, '\0');
  auto set = [&](std::int64_t at, std::int64_t x) { std::memcpy(data.data() + at * 8, &x, 8); };
  set(19999, -7);
  const std::string dict = dict_of("<i8", "(20000,)");
  const auto good = read(npy_bytes(dict, data), Role::kIndices);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good->as<std::int32_t>()[19999], -7);
  set(12345, std::int64_t{1} << 31);
  const auto bad = read(npy_bytes(dict, data), Role::kIndices);
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().message(),
            "x.npy: the array[12345] is 2147483648; an index fits in int32");
}

TEST(Npy, AcceptsWhatPythonAllows) {
  EXPECT_TRUE(read(npy_bytes("{\"shape\":(2L,1,),'fortran_order':True,\"descr\":'<f4'}",
                             raw<float>({1, 2})))
                  .ok())
      << "any key order, both quotes, Fortran order that equals C order";
  const auto empty = read(npy_bytes(dict_of("<f4", "(0, 5)"), ""));
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE(empty->given());
  EXPECT_EQ(empty->elements(), 0);
}

struct Broken {
  const char* what;
  std::string bytes;
  const char* message;  // part of it
};

TEST(Npy, EveryBrokenFileIsAnError) {
  const std::string data(24, 'x');
  const std::string good = npy_bytes(dict_of("<f4", "(2, 3)"), data);
  const std::vector<Broken> table = {
      {"empty", "", "not an .npy file"},
      {"magic only", good.substr(0, 6), "not an .npy file"},
      {"other magic", "PK" + good.substr(2), "not an .npy file"},
      {"version 9", npy_bytes(dict_of("<f4", "(2, 3)"), data, 9), "version 9.0; accepted are 1.0"},
      {"cut prefix", npy_bytes("", "", 2).substr(0, 11), "truncated"},
      {"header past end", npy_bytes(dict_of("<f4", "(2, 3)"), "", 1, 60000), "claims 60000 bytes"},
      {"4 GiB header", npy_bytes("{", "", 2, 0xFFFFFFFF), "claims 4294967295 bytes"},
      {"huge header", npy_bytes(std::string(2 << 20, ' '), "", 2), "accepted are at most 1048576"},
      {"empty header", npy_bytes("", ""), "where '{' is expected"},
      {"not a dict", npy_bytes("[1, 2]\n", ""), "where '{' is expected"},
      {"unclosed", npy_bytes("{'descr': '<f4', ", data), "a key in quotes"},
      {"open string", npy_bytes("{'descr", data), "a key in quotes"},
      {"no colon", npy_bytes("{'descr' '<f4'}", data), "where ':' is expected"},
      {"no shape", npy_bytes("{'descr': '<f4', 'fortran_order': False}", data), "no key 'shape'"},
      {"twice", npy_bytes("{'descr': '<f4', 'descr': '<f4'}", data), "'descr' twice"},
      {"extra key", npy_bytes("{'evil': 1}", data), "the key 'evil'"},
      {"junk after", npy_bytes(dict_of("<f4", "(2, 3)") + "x", data), "the end of the header"},
      {"negative", npy_bytes(dict_of("<f4", "(-2, 3)"), data), "an extent from 0 to 2^63 - 1"},
      {"huge extent", npy_bytes(dict_of("<f4", "(99999999999999999999,)"), data),
       "an extent from 0"},
      {"int, not tuple", npy_bytes(dict_of("<f4", "(6)"), data), "where ',' is expected"},
      {"bare int", npy_bytes(dict_of("<f4", "6"), data), "'(' of the shape"},
      {"not bool", npy_bytes(dict_of("<f4", "(2, 3)", "0"), data), "True or False"},
      {"product overflows", npy_bytes(dict_of("<f4", "(4294967296, 4294967296, 4)"), data),
       "more than 2^63"},
      {"zero hides overflow", npy_bytes(dict_of("<f4", "(0, 4294967296, 4294967296)"), data),
       "more than 2^63"},
      {"many extents", npy_bytes(dict_of("<f4", fmt::format("({:,>150})", "")), data), "extent"},
      {"rank 65",
       npy_bytes(dict_of("<f4",
                         [] {
                           std::string s = "(";
                           for (int i = 0; i < 65; ++i) s += "1,";
                           return s + ")";
                         }()),
                 data),
       "more than 64 extents"},
      {"truncated", good.substr(0, good.size() - 1),
       "truncated: the header describes f32 (2, 3), 24 "},
      {"oversized", good + "x", "oversized: the header describes f32 (2, 3), 24 bytes, but 25"},
      {"big endian", npy_bytes(dict_of(">f4", "(2, 3)"), data), "big endian"},
      {"bfloat16", npy_bytes(dict_of("<V2", "(2, 6)"), data), "keep bf16 in .safetensors"},
      {"bool", npy_bytes(dict_of("|b1", "(24,)"), data), "dtype '|b1' is not supported; accepted"},
      {"object", npy_bytes(dict_of("|O", "(3,)"), data), "not supported"},
      {"structured",
       npy_bytes("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (6,)}", data),
       "structured dtype"},
      {"fortran", npy_bytes(dict_of("<f4", "(2, 3)", "True"), data), "Fortran order, shape (2, 3)"},
      {"rank 0", npy_bytes(dict_of("<f4", "()"), data.substr(0, 4)),
       "rank 0; accepted is rank 1 to 4"},
      {"rank 5", npy_bytes(dict_of("<f4", "(1, 1, 1, 2, 3)"), data),
       "rank 5; accepted is rank 1 to 4"},
      {"integers", npy_bytes(dict_of("<i4", "(2, 3)"), data),
       "is i32; accepted is f32, f16, bf16 or f64"},
  };
  for (const Broken& b : table) {
    const auto result = read(b.bytes);
    ASSERT_FALSE(result.ok()) << b.what;
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument) << b.what;
    EXPECT_EQ(result.status().message().find("x.npy: "), 0u) << result.status().message();
    EXPECT_NE(result.status().message().find(b.message), std::string::npos)
        << b.what << ": " << result.status().message();
  }
  // A good file stays good, and no prefix of it is.
  EXPECT_TRUE(read(good).ok());
  for (std::size_t n = 0; n < good.size(); ++n) EXPECT_FALSE(read(good.substr(0, n)).ok()) << n;
  EXPECT_FALSE(read(good, Role::kIndices).ok()) << "floats are no indices";
}

TEST(Npy, WritesWhatItReads) {
  const test::ScratchFolder folder;
  const std::int64_t shape[] = {3, 7};
  auto bf16 = HostTensor::create(DType::kBF16, shape);
  ASSERT_TRUE(bf16.ok());
  for (std::size_t i = 0; i < 21; ++i)
    bf16->as<std::uint16_t>()[i] = static_cast<std::uint16_t>(0x3F80 + i);
  ASSERT_TRUE(write_tensors({{{folder / "x.npy", bf16->view()}}}).ok());
  const std::string bytes = folder.read("x.npy");
  EXPECT_EQ((bytes.size() - 21 * 4) % 64, 0u) << "the array begins at a multiple of 64";
  const auto back = read_tensor(folder / "x.npy", Role::kNumbers);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->dtype(), DType::kF32) << "16-bit numbers become float32";
  const auto wide = convert(*bf16, DType::kF32);
  EXPECT_EQ(values<float>(*back), values<float>(*wide));
  EXPECT_EQ(folder.list(), std::vector<std::string>{"x.npy"});
}

TEST(HostTensor, ConvertsWithRounding) {
  const std::int64_t shape[] = {2};
  auto x = HostTensor::create(DType::kF32, shape);
  x->as<float>()[0] = 1.00390625f;  // halfway between two bf16 numbers: to even
  x->as<float>()[1] = 65520.0f;     // rounds to infinity in f16
  const auto bf16 = convert(*x, DType::kBF16), f16 = convert(*x, DType::kF16);
  EXPECT_EQ(bf16->as<std::uint16_t>()[0], 0x3F80);
  EXPECT_EQ(f16->as<std::uint16_t>()[1], 0x7C00);
  EXPECT_FALSE(convert(*x, DType::kI32).ok());
}

TEST(HostTensor, RefusesWhatNoMemoryHolds) {
  const std::int64_t huge[] = {std::int64_t{1} << 60, 4}, negative[] = {-1},
                     big[] = {std::int64_t{1} << 50};
  EXPECT_EQ(HostTensor::create(DType::kF32, huge).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(HostTensor::create(DType::kF32, negative).status().code(),
            StatusCode::kInvalidArgument);
#ifndef TILEWISE_SANITIZED  // they abort on such a size
  EXPECT_EQ(HostTensor::create(DType::kF32, big).status().code(), StatusCode::kOutOfMemory);
#endif
}

}  // namespace
}  // namespace tilewise::io
