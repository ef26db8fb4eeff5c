// Python's view of the core; _core.pyi is the contract. Every call that may block or map memory lets the GIL go.
#include "bindings.hpp"

#include <nanobind/nanobind.h>

NB_MODULE(_core, m) {
  m.doc() = "Slabs, ranges, KV blocks, copy lanes, events, the stage ring, and the likeliest tokens.";
  nb::set_leak_warnings(false);  // views that live until the interpreter ends are no leak
  const auto native_error = nb::exception<aegaeon::NativeError>(m, "NativeError", PyExc_RuntimeError);
  nb::exception<aegaeon::OutOfSlabs>(m, "OutOfSlabs", native_error);
  nb::exception<aegaeon::FileSystemFullError>(m, "FileSystemFullError", native_error);
  bind_cuda(m);
  bind_memory(m);
  bind_lanes(m);
  bind_logits(m);
  bind_stage(m);
}
