// A shared library that may or may not be on this machine.
#pragma once

#include <initializer_list>
#include <string>

#include "tilewise/status.hpp"

namespace tilewise::cuda {

class Library {
 public:
  // The first of `names` that the dynamic linker finds stays open for the life of the process.
  static Expected<Library> open(std::initializer_list<const char*> names);

  // Fills `function` with the symbol; false when the library lacks it.
  template <class Function>
  bool find(const char* symbol, Function*& function) const {
    function = reinterpret_cast<Function*>(address(symbol));
    return function != nullptr;
  }
  const std::string& name() const { return name_; }

 private:
  void* address(const char* symbol) const;
  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace tilewise::cuda
