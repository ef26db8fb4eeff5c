// What the binding files share: the types in which Python hands over lists and gets arrays.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <span>
#include <vector>

#include "aegaeon/errors.hpp"

namespace nb = nanobind;
using namespace nb::literals;

using GilFree = nb::call_guard<nb::gil_scoped_release>;
using Int32s = std::vector<std::int32_t>;
using Int32Array = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ByteView = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;

using DeviceView = nb::ndarray<std::uint8_t, nb::ndim<1>>;

inline std::span<const std::int32_t> span_of(const Int32Array& array) { return {array.data(), array.size()}; }

void bind_memory(nb::module_& m);
void bind_lanes(nb::module_& m);
void bind_logits(nb::module_& m);
void bind_cuda(nb::module_& m);
void bind_stage(nb::module_& m);
