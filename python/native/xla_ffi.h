// What tilewise needs of XLA's foreign function interface, version 0: the layout of its C structs,
// so that one wheel serves every jaxlib and none is needed to build it. Names and order of fields
// are XLA's; structs that are only passed through are opaque.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tilewise::python::xla {

struct Extension {
  std::size_t struct_size;
  int type;  // kMetadata
  Extension* next;
};
inline constexpr int kMetadata = 1;

struct ApiVersion {
  std::size_t struct_size;
  Extension* extension_start;
  int major_version, minor_version;
};
inline constexpr int kMajor = 0, kMinor = 1;  // the oldest that has all of this

struct Metadata {
  std::size_t struct_size;
  ApiVersion api_version;
  std::uint32_t traits;
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

enum ErrorCode : int { kInvalidArgument = 3, kUnimplemented = 12, kInternal = 13 };
struct Error;
struct ErrorCreateArgs {
  std::size_t struct_size;
  Extension* extension_start;
  const char* message;
  ErrorCode code;
};

struct Context;
struct StreamGetArgs {
  std::size_t struct_size;
  Extension* extension_start;
  Context* context;
  void* stream;  // out: a CUstream
};

struct Api {
  std::size_t struct_size;
  Extension* extension_start;
  ApiVersion api_version;
  const void* internal_api;
  Error* (*error_create)(ErrorCreateArgs*);
  void* error_get_message;
  void* error_destroy;
  void* handler_register;
  Error* (*stream_get)(StreamGetArgs*);
};

enum DataType : int { kU8 = 6, kS32 = 4, kF16 = 10, kF32 = 11, kBF16 = 16 };
struct Buffer {
  std::size_t struct_size;
  Extension* extension_start;
  DataType dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};

// Arguments and results alike; every one of ours is a Buffer.
struct Buffers {
  std::size_t struct_size;
  Extension* extension_start;
  std::int64_t size;
  int* types;
  Buffer** buffers;
};

struct ByteSpan {
  const char* begin;
  std::size_t size;
};
struct Scalar {
  DataType dtype;
  void* value;
};
enum AttributeType : int { kScalar = 3, kString = 4 };
struct Attributes {
  std::size_t struct_size;
  Extension* extension_start;
  std::int64_t size;
  int* types;
  ByteSpan** names;
  void** values;  // Scalar* or ByteSpan*
};

enum Stage : int { kExecute = 3 };
struct CallFrame {
  std::size_t struct_size;
  Extension* extension_start;
  const Api* api;
  Context* context;
  Stage stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
  void* future;
};

}  // namespace tilewise::python::xla
