#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <optional>

#include "aegaeon/cpu_level.hpp"
#include "aegaeon/helpers.hpp"
#include "aegaeon/likeliest.hpp"
#include "aegaeon/row_product.hpp"
#include "bindings.hpp"

namespace {

constexpr std::size_t kManyItems = std::size_t{1} << 20;  // up to it the work takes less than another thread's turn

// By address: to look at a tensor any other way takes longer than what is done here.
std::vector<std::int32_t> likeliest(std::uintptr_t logits, std::size_t rows, std::size_t columns, std::size_t stride) {
  std::optional<nb::gil_scoped_release> released;
  if (rows * columns > kManyItems) released.emplace();
  std::vector<std::int32_t> tokens(rows);
  for (std::size_t row = 0; row < rows; ++row)
    tokens[row] = aegaeon::likeliest({reinterpret_cast<const float*>(logits) + row * stride, columns});
  return tokens;
}

// The arrays of a decode step, each sequence one token further.
void advance(const Int32s& tokens, std::uintptr_t ids, std::uintptr_t places, std::uintptr_t ends) {
  const std::size_t rows = tokens.size();
  std::ranges::copy(tokens, reinterpret_cast<std::int32_t*>(ids));
  for (std::int64_t& place : std::span{reinterpret_cast<std::int64_t*>(places), 2 * rows}) ++place;
  for (std::int32_t& end : std::span{reinterpret_cast<std::int32_t*>(ends), rows}) ++end;
}

void row_product(std::uintptr_t x, std::uintptr_t weights, std::uintptr_t out, std::size_t rows, std::size_t outer,
                 std::size_t inner) {
  const nb::gil_scoped_release released;
  aegaeon::row_product({reinterpret_cast<const float*>(x), reinterpret_cast<const float*>(weights),
                        reinterpret_cast<float*>(out), rows, outer, inner});
}

}  // namespace

void bind_logits(nb::module_& m) {
  m.attr("NO_TOKEN") = aegaeon::kNoToken;
  m.def("likeliest", &likeliest, "logits"_a, "rows"_a, "columns"_a, "stride"_a);
  m.def("row_product", &row_product, "x"_a, "weights"_a, "out"_a, "rows"_a, "outer"_a, "inner"_a);
  m.def("cpu_level", [] { return std::string(aegaeon::cpu_level_name(aegaeon::cpu_level())); });
  m.def(
      "set_product_helpers", [](std::size_t count) { aegaeon::product_helpers().set_count(count); }, "count"_a,
      nb::call_guard<nb::gil_scoped_release>());
  m.def("row_product_supported", [] { return aegaeon::row_product_supported(); });
  m.def("advance", &advance, "tokens"_a, "ids"_a, "places"_a, "ends"_a);
}
