// The plans of calls seen before, found by what decides a plan: the settings, and the dtypes,
// shapes and presence of the operands. In Python the same would cost as much as a short attention's
// launch.
#pragma once

#include <nanobind/nanobind.h>

namespace tilewise::python {

// What `remember` was given for such operands (ten, as inputs_of takes them) and this settings
// object; None if nothing, or if an operand is no tensor that exchange.h reads, or they lie on
// several devices.
nanobind::object find_seen(nanobind::handle operands, nanobind::handle settings);
void remember_seen(nanobind::handle operands, nanobind::handle settings, nanobind::object plan);

}  // namespace tilewise::python
