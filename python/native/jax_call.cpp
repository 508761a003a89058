#include "jax_call.h"

#include <new>
#include <string>
#include <string_view>

#include "spec.h"

namespace tilewise::python {
namespace {

using xla::CallFrame;

xla::Error* error_of(const CallFrame& frame, const Status& status) {
  if (status.ok()) return nullptr;
  xla::ErrorCode code = xla::kInternal;
  if (status.code() == StatusCode::kInvalidArgument) code = xla::kInvalidArgument;
  if (status.code() == StatusCode::kUnsupported) code = xla::kUnimplemented;
  xla::ErrorCreateArgs args{sizeof args, nullptr, status.message().c_str(), code};
  return frame.api->error_create(&args);
}

struct Attributes {
  std::string_view spec;
  std::int64_t given = 0, seed = 0;
};

Attributes attributes_of(const CallFrame& frame) {
  Attributes out;
  for (std::int64_t i = 0; i < frame.attributes.size; ++i) {
    const xla::ByteSpan& n = *frame.attributes.names[i];
    const std::string_view name(n.begin, n.size);
    const void* value = frame.attributes.values[i];
    if (frame.attributes.types[i] == xla::kString) {
      const auto& text = *static_cast<const xla::ByteSpan*>(value);
      if (name == "spec") out.spec = {text.begin, text.size};
    } else if (frame.attributes.types[i] == xla::kScalar) {
      const auto number =
          *static_cast<const std::int64_t*>(static_cast<const xla::Scalar*>(value)->value);
      if (name == "given") out.given = number;
      if (name == "seed") out.seed = number;
    }
  }
  return out;
}

DType dtype_of(xla::DataType dtype) {
  switch (dtype) {
    case xla::kF16:
      return DType::kF16;
    case xla::kBF16:
      return DType::kBF16;
    case xla::kF32:
      return DType::kF32;
    default:
      return DType::kI32;
  }
}

// Takes the buffers one after the other. XLA's are dense and row-major.
class Reader {
 public:
  Reader(const xla::Buffers& buffers, Device device) : buffers_(buffers), device_(device) {}
  Tensor next() {
    if (at_ == buffers_.size) return {};
    const xla::Buffer& b = *buffers_.buffers[at_++];
    Tensor t;
    if (b.rank > kMaxRank) return t;  // refused as a missing tensor; Python has checked the ranks
    t.data = b.data;
    t.dtype = dtype_of(b.dtype);
    t.device = device_;
    t.rank = static_cast<int>(b.rank);
    std::int64_t stride = 1;
    for (int i = t.rank - 1; i >= 0; --i) {
      t.shape[i] = b.dims[i];
      t.strides[i] = stride;
      stride *= b.dims[i];
    }
    return t;
  }

 private:
  const xla::Buffers& buffers_;
  Device device_;
  std::int64_t at_ = 0;
};

Inputs inputs_of(Reader& arguments, const Attributes& attributes) {
  Inputs in;
  Tensor* const tensors[] = {&in.q,
                             &in.k,
                             &in.v,
                             &in.alibi_slopes,
                             &in.bias,
                             &in.sink,
                             &in.cu_seqlens_q,
                             &in.cu_seqlens_kv,
                             &in.seqused_q,
                             &in.seqused_kv};
  for (int i = 0; i < 10; ++i)
    if (attributes.given >> i & 1) *tensors[i] = arguments.next();
  in.dropout_seed = static_cast<std::uint64_t>(attributes.seed);
  return in;
}

// The stream and, as the last result, the workspace of a GPU; a workspace of the host's otherwise.
struct Room {
  Room(const CallFrame& frame, const Plan& plan, const PassPlan& pass, Reader& results)
      : own(plan.device.kind == Device::Kind::kCpu ? pass : PassPlan{}), at(own.launch()) {
    if (plan.device.kind == Device::Kind::kCpu) return;
    at.workspace = results.next().data;
    at.workspace_bytes = pass.workspace_bytes;
    xla::StreamGetArgs args{sizeof args, nullptr, frame.context, nullptr};
    error = frame.api->stream_get(&args);
    at.stream = args.stream;
  }
  Workspace own;
  Launch at;
  xla::Error* error = nullptr;
};

xla::Error* run_forward(const CallFrame& frame, const Plan& plan, const Attributes& attributes) {
  Reader arguments(frame.arguments, plan.device), results(frame.results, plan.device);
  const Inputs in = inputs_of(arguments, attributes);
  Outputs out;
  out.o = results.next();
  out.lse = results.next();
  const Room room(frame, plan, plan.forward, results);
  return room.error ? room.error : error_of(frame, forward(plan, in, out, room.at));
}

xla::Error* run_backward(const CallFrame& frame, const Plan& plan, const Attributes& attributes) {
  Reader arguments(frame.arguments, plan.device), results(frame.results, plan.device);
  const Inputs in = inputs_of(arguments, attributes);
  Gradients g;
  for (Tensor* t : {&g.o, &g.lse, &g.d_o, &g.d_lse}) *t = arguments.next();
  for (Tensor* t : {&g.dq, &g.dk, &g.dv}) *t = results.next();
  if (in.bias.rank) g.dbias = results.next();
  if (in.sink.rank) g.dsink = results.next();
  const Room room(frame, plan, plan.backward, results);
  return room.error ? room.error : error_of(frame, backward(plan, in, g, room.at));
}

// True where XLA only asks which version of the interface this is.
bool answered(const CallFrame& frame) {
  if (!frame.extension_start || frame.extension_start->type != xla::kMetadata) return false;
  auto* metadata = reinterpret_cast<xla::MetadataExtension*>(frame.extension_start)->metadata;
  metadata->api_version.major_version = xla::kMajor;
  metadata->api_version.minor_version =
      frame.api ? frame.api->api_version.minor_version : xla::kMinor;
  metadata->traits = 0;
  return true;
}

using Run = xla::Error* (*)(const CallFrame&, const Plan&, const Attributes&);

xla::Error* call(CallFrame* frame, Run run) {
  if (answered(*frame) || frame->stage != xla::kExecute) return nullptr;
  try {
    const Attributes attributes = attributes_of(*frame);
    const auto plan = plan_of_spec(attributes.spec);
    return plan.ok() ? run(*frame, **plan, attributes) : error_of(*frame, plan.status());
  } catch (const std::bad_alloc&) {
    return error_of(*frame, {StatusCode::kOutOfMemory, "the host has no memory left"});
  }
}

}  // namespace

xla::Error* jax_forward(CallFrame* frame) {
  return call(frame, run_forward);
}

xla::Error* jax_backward(CallFrame* frame) {
  return call(frame, run_backward);
}

}  // namespace tilewise::python
