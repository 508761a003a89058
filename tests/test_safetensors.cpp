// .safetensors: reading, writing, several outputs in one file, all or nothing on disk, and a table
// of broken headers.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "io/safetensors.h"
#include "io/tensor_file.h"
#include "support/scratch_folder.h"

namespace tilewise::io {
namespace {

std::string file_bytes(const std::string& json, const std::string& data,
                       std::int64_t claimed = -1) {
  const std::uint64_t length = claimed < 0 ? json.size() : static_cast<std::uint64_t>(claimed);
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(length >> 8 * i);
  return out + json + data;
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{}]}})", name, dtype,
                     shape, offsets);
}

std::string object(const std::string& fields) {
  return fmt::format("{{{}}}", fields);
}

Source memory(const std::string& bytes) {
  return Source(std::as_bytes(std::span(bytes)), "x.safetensors");
}

HostTensor numbers(DType dtype, std::initializer_list<std::int64_t> shape, float first) {
  HostTensor f32 =
      std::move(*HostTensor::create(DType::kF32, std::span(shape.begin(), shape.end())));
  for (float& x : f32.as<float>()) x = first++;
  return std::move(*convert(f32, dtype));
}

TEST(Safetensors, ReadsOneTensorAndMindsNoOther) {
  const std::string json =
      object(fmt::format("{},{},{},{},{}", entry("q", "BF16", "1,2", "0,4"),
                         entry("fp4", "F4_E2M1", "3", "4,6"), entry("r5", "U8", "1,1,1,1,2", "6,8"),
                         entry("i", "I64", "1", "8,16"), R"("__metadata__":{"licence":"CC0"})")) +
      "  ";
  std::string data(16, '\0');
  data[1] = 0x40;  // bf16 2.0
  data[8] = 5;
  const std::string bytes = file_bytes(json, data);
  const Source source = memory(bytes);
  const auto header = parse_safetensors(source);
  ASSERT_TRUE(header.ok()) << header.status().message();
  EXPECT_EQ(header->metadata.at("licence"), "CC0");
  EXPECT_EQ(header->tensors.size(), 4u);
  const auto q = read_safetensors(source, "q", Role::kNumbers);
  ASSERT_TRUE(q.ok()) << q.status().message();
  EXPECT_EQ(q->dtype(), DType::kBF16);
  EXPECT_EQ(q->as<std::uint16_t>()[0], 0x4000);
  const auto i = read_safetensors(source, "i", Role::kIndices);
  ASSERT_TRUE(i.ok()) << i.status().message();
  EXPECT_EQ(i->as<std::int32_t>()[0], 5);

  const auto message = [&](const char* name, Role role) {
    const auto t = read_safetensors(source, name, role);
    return t.ok() ? "" : t.status().message();
  };
  EXPECT_EQ(message("k", Role::kNumbers),
            "x.safetensors: has no tensor \"k\"; it has fp4, i, q, r5");
  EXPECT_NE(message("fp4", Role::kNumbers).find("dtype F4_E2M1; accepted are F32"),
            std::string::npos);
  EXPECT_NE(message("r5", Role::kNumbers).find("dtype U8"), std::string::npos);
  EXPECT_NE(message("i", Role::kNumbers).find("is i64; accepted is f32"), std::string::npos);
  EXPECT_NE(message("q", Role::kIndices).find("is bf16; accepted is i32 or i64"),
            std::string::npos);
}

TEST(Safetensors, EveryBrokenFileIsAnError) {
  const std::string data(8, 'x'), q = entry("q", "F32", "2", "0,8");
  const std::string good = file_bytes(object(q), data);
  struct Broken {
    const char* what;
    std::string bytes;
    const char* message;
  };
  auto with = [&](const std::string& json) { return file_bytes(json, data); };
  const std::vector<Broken> table = {
      {"empty", "", "truncated: a .safetensors file begins with 8 bytes"},
      {"7 bytes", good.substr(0, 7), "this one has 7 bytes"},
      {"length past end", file_bytes("{}", "", 1000), "claims 1000 bytes, the file has 2"},
      {"length 2^63", file_bytes("{}", "", std::int64_t{1} << 62),
       "accepted are at most 100000000"},
      {"no JSON", with("hello"), "is not JSON at byte"},
      {"cut JSON", with("{\"q\":"), "is not JSON"},
      {"junk after JSON", with("{} x"), "is not JSON"},
      {"not UTF-8", with("{\"\xff\":1}"), "is not JSON"},
      {"array", with("[]"), "is an array, not an object"},
      {"number", with("7"), "is a number, not an object"},
      {"deep", with(std::string(100000, '[')), "is an array"},
      {"deep objects", with(R"({"q":{"dtype":{"a":1}}})"), "has an object at \"dtype\""},
      {"deep shape", with(R"({"q":{"shape":[[1]]}})"), "has an array at \"shape\""},
      {"tensor is null", with(R"({"q":null})"), "has null at \"q\""},
      {"name twice", with(object(fmt::format("{0},{0}", q))), "has the tensor \"q\" twice"},
      {"key twice", with(R"({"q":{"dtype":"F32","dtype":"F32"}})"), "the key dtype twice"},
      {"metadata twice", with(R"({"__metadata__":{},"__metadata__":{}})"), "__metadata__ twice"},
      {"metadata number", with(R"({"__metadata__":{"a":1}})"), "has a number at \"a\""},
      {"unknown key", with(R"({"q":{"offset":1}})"),
       "the key \"offset\"; accepted are dtype, shape"},
      {"no offsets", with(R"({"q":{"dtype":"F32","shape":[2]}})"), "no data_offsets"},
      {"one offset", with(object(entry("q", "F32", "2", "0"))), "1 offsets, not 2"},
      {"three offsets", with(object(entry("q", "F32", "2", "0,4,8"))), "more than 2 offsets"},
      {"negative extent", with(object(entry("q", "F32", "-2", "0,8"))), "a negative number"},
      {"fraction", with(object(entry("q", "F32", "2.0", "0,8"))), "a fraction"},
      {"extent past 2^64", with(object(entry("q", "F32", "99999999999999999999", "0,8"))),
       "a fraction"},
      {"extent past 2^63", with(object(entry("q", "F32", "9223372036854775808", "0,8"))),
       "past 2^63"},
      {"product overflows", with(object(entry("q", "F32", "4294967296,4294967296", "0,8"))),
       "more than 2^63"},
      {"zero hides overflow", with(object(entry("q", "F32", "0,4294967296,4294967296", "0,0"))),
       "more than 2^63"},
      {"ends before it begins", with(object(entry("q", "F32", "2", "8,0"))),
       "ends before it begins"},
      {"past the end", with(object(entry("q", "F32", "4", "0,16"))), "the file has 8 (truncated?)"},
      {"wrong size", with(object(entry("q", "F32", "3", "0,8"))), "8 bytes, but F32 (3,) has 12"},
      {"overlap", with(object(fmt::format("{},", q) + entry("k", "F32", "1", "4,8"))),
       "overlaps a tensor that ends at 8"},
      {"gap", with(object(entry("q", "F32", "1", "4,8"))), "leaves a gap from 0"},
      {"oversized", with(object(entry("q", "F32", "1", "0,4"))), "describes 4 bytes, but 8 follow"},
      {"nothing described", with("{}"), "describes 0 bytes, but 8 follow"},
  };
  for (const Broken& b : table) {
    const Source source = memory(b.bytes);
    const auto result = read_safetensors(source, "q", Role::kNumbers);
    ASSERT_FALSE(result.ok()) << b.what;
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument) << b.what;
    EXPECT_EQ(result.status().message().find("x.safetensors: "), 0u) << result.status().message();
    EXPECT_NE(result.status().message().find(b.message), std::string::npos)
        << b.what << ": " << result.status().message();
  }
  EXPECT_TRUE(read_safetensors(memory(good), "q", Role::kNumbers).ok());
  for (std::size_t n = 0; n < good.size(); ++n) {
    const std::string cut = good.substr(0, n);
    EXPECT_FALSE(parse_safetensors(memory(cut)).ok()) << n;
  }
}

TEST(TensorFile, SeveralOutputsOfOneFileLandInIt) {
  const test::ScratchFolder folder;
  const HostTensor dq = numbers(DType::kF16, {1, 3}, 1), dk = numbers(DType::kF32, {2, 1}, 5),
                   dv = numbers(DType::kBF16, {5}, 9);
  const std::string g = folder / "g.safetensors";
  const Output outputs[] = {{g + ":dq", dq.view()},
                            {folder / "lse.npy", dk.view()},
                            {g + ":dk", dk.view()},
                            {g + ":a \"name\"", dv.view()}};
  const Status written = write_tensors(outputs);
  ASSERT_TRUE(written.ok()) << written.message();
  EXPECT_EQ(folder.list(), (std::vector<std::string>{"g.safetensors", "lse.npy"}));
  for (const Output& o : outputs) {
    const auto back = read_tensor(o.path, Role::kNumbers);
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(back->dtype(), o.tensor.dtype) << "safetensors keep the dtype";
    EXPECT_EQ(std::memcmp(back->data(), o.tensor.data, static_cast<std::size_t>(back->bytes())), 0);
  }
  EXPECT_EQ(folder.read("g.safetensors").size() % 2, 0u);
}

TEST(TensorFile, NamesAreParsed) {
  const auto path = [](const char* text) { return parse_tensor_path(text); };
  EXPECT_EQ(path("a.b/q.npy")->file, "a.b/q.npy");
  EXPECT_EQ(path("m.safetensors:layer0.q")->file, "m.safetensors");
  EXPECT_EQ(path("m.safetensors:layer:0")->name, "layer:0");
  for (const char* wrong : {"", "q", ".npy", "q.txt", "m.safetensors", "m.safetensors:", "m.npz"}) {
    const auto p = path(wrong);
    ASSERT_FALSE(p.ok()) << wrong;
    EXPECT_NE(p.status().message().find("accepted are FILE.npy and FILE.safetensors:NAME"),
              std::string::npos);
  }
}

TEST(TensorFile, UnreadablePathsAreErrors) {
  const test::ScratchFolder folder;
  ::mkdir((folder / "folder.npy").c_str(), 0700);
  ASSERT_EQ(::mkfifo((folder / "pipe.npy").c_str(), 0600), 0);
  const auto message = [&](const char* name) {
    return read_tensor(folder / name, Role::kNumbers).status().message();
  };
  EXPECT_NE(message("absent.npy").find("absent.npy: can't be read: No such file"),
            std::string::npos);
  EXPECT_NE(message("folder.npy").find("it is a directory"), std::string::npos);
  EXPECT_NE(message("pipe.npy").find("pipe or device"), std::string::npos);
}

TEST(TensorFile, AFailedWriteLeavesNothingBehind) {
  const test::ScratchFolder folder;
  folder.write("old.npy", "old");
  ::mkdir((folder / "folder.npy").c_str(), 0700);
  const HostTensor x = numbers(DType::kF32, {4}, 0);
  const auto before = folder.list();
  const std::vector<std::vector<std::string>> failing = {
      {folder / "old.npy", folder / "no/such/x.npy"},
      {folder / "old.npy", folder / "folder.npy"},
      {folder / "old.npy", folder / "old.npy"},
      {folder / "a.safetensors:x", folder / "a.safetensors:x"},
      {folder / "a.npy", folder / "b.txt"},
  };
  for (const auto& paths : failing) {
    std::vector<Output> outputs;
    for (const std::string& p : paths) outputs.push_back({p, x.view()});
    EXPECT_FALSE(check_outputs(paths).ok()) << paths.back();
    EXPECT_FALSE(write_tensors(outputs).ok()) << paths.back();
    EXPECT_EQ(folder.list(), before) << paths.back();
    EXPECT_EQ(folder.read("old.npy"), "old");
  }
  const std::string fine[] = {folder / "old.npy", folder / "new.npy"};
  EXPECT_TRUE(check_outputs(fine).ok());
  EXPECT_EQ(folder.list(), before) << "a check writes nothing";
}

TEST(TensorFile, FollowsSymbolicLinks) {
  const test::ScratchFolder folder;
  folder.write("target.npy", "old");
  ASSERT_EQ(::symlink("target.npy", (folder / "link.npy").c_str()), 0);
  const HostTensor x = numbers(DType::kF32, {4}, 0);
  ASSERT_TRUE(write_tensors({{{folder / "link.npy", x.view()}}}).ok());
  struct stat info {};
  ASSERT_EQ(::lstat((folder / "link.npy").c_str(), &info), 0);
  EXPECT_TRUE(S_ISLNK(info.st_mode));
  EXPECT_TRUE(read_tensor(folder / "target.npy", Role::kNumbers).ok());
}

}  // namespace
}  // namespace tilewise::io
