// Status and Expected<T>: how every function of the library reports failure. Nothing throws across
// the public boundary, prints or exits; a message names the argument, its value and what is
// accepted.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace tilewise {

enum class StatusCode {
  kOk = 0,
  kInvalidArgument = 1,  // the caller handed in something that can never work
  kUnsupported = 2,      // a valid problem for which no kernel row exists
  kOutOfMemory = 3,      // host memory, or a workspace smaller than the plan asks for
  kUnavailable = 4,      // a device, driver or compiler that is not there
  kInternal = 5,         // a bug in the library
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// Either a value or the Status that says why there is none.
template <class T>
class [[nodiscard]] Expected {
 public:
  Expected(T value) : value_(std::move(value)) {}
  Expected(Status status) : status_(std::move(status)) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() { return *value_; }
  const T& value() const { return *value_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace tilewise
