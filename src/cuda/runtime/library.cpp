#include "cuda/runtime/library.h"

#include <dlfcn.h>

#include "core/format.h"

namespace tilewise::cuda {

Expected<Library> Library::open(std::initializer_list<const char*> names) {
  std::string tried;
  for (const char* name : names) {
    if (!name) continue;
    if (void* const handle = dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
      Library library;
      library.handle_ = handle;
      library.name_ = name;
      return library;
    }
    tried += format_text("{}{}", tried.empty() ? "" : ", ", name);
  }
  return Status(StatusCode::kUnavailable, format_text("none of {} could be loaded", tried));
}

void* Library::address(const char* symbol) const {
  return dlsym(handle_, symbol);
}

}  // namespace tilewise::cuda
