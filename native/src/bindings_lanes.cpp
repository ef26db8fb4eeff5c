#include <algorithm>
#include <chrono>
#include <limits>

#include "aegaeon/copylane.hpp"
#include "aegaeon/cuda/stream_mover.hpp"
#include "aegaeon/events.hpp"
#include "bindings.hpp"

namespace {

using aegaeon::CopyLane;
using aegaeon::Event;
using aegaeon::EventPtr;
using aegaeon::EventTable;
using aegaeon::NativeError;
using aegaeon::cuda::SharedDevice;
using aegaeon::cuda::StreamMover;
using Seconds = std::chrono::duration<double>;

constexpr double kSliceSeconds = 0.1;

std::chrono::nanoseconds to_time(double seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Seconds(seconds));
}

// Waits without the GIL, in slices so that Ctrl-C is seen between them.
template <typename Step>
bool wait_in_slices(double timeout_s, Step step) {
  if (!(timeout_s >= 0)) throw NativeError("wait: the timeout must be 0 or more seconds");
  const auto begin = Event::Clock::now();
  while (true) {
    const double left = timeout_s - Seconds(Event::Clock::now() - begin).count();
    {
      const nb::gil_scoped_release release;
      if (step(to_time(std::clamp(left, 0.0, kSliceSeconds)))) return true;
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (left <= kSliceSeconds) return false;
  }
}

// Its end waits for the lane's thread, which may need the GIL to let go of an event that Python made.
class Lane final : public CopyLane {
 public:
  using CopyLane::CopyLane;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  ~Lane() override {
    const nb::gil_scoped_release release;
    drop();
  }
};
static_assert(sizeof(Lane) == sizeof(CopyLane));  // it lives where nanobind made room for a CopyLane

std::byte* pointer(std::uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

void copy_blocks(CopyLane& lane, std::uintptr_t dst, std::uintptr_t src, std::size_t block_bytes,
                 const Int32Array& dst_blocks, const Int32Array& src_blocks, CopyLane::Tag tag) {
  const auto to = span_of(dst_blocks);
  const auto from = span_of(src_blocks);
  lane.copy_blocks(pointer(dst), pointer(src), block_bytes, {to.begin(), to.end()}, {from.begin(), from.end()}, tag);
}

void make_lane(CopyLane* lane, const std::string& name, std::size_t chunk_bytes, const SharedDevice& device,
               std::size_t burst_bytes) {
  std::unique_ptr<aegaeon::Mover> mover = aegaeon::memory_mover();
  if (device) mover = std::make_unique<StreamMover>(device, burst_bytes);
  new (lane) Lane(name, chunk_bytes, std::move(mover));
}

void bind_events(nb::module_& m) {
  nb::class_<Event>(m, "Event", nb::is_final())
      .def_prop_ro("handle", [](const Event& event) { return std::pair(event.slot(), event.generation()); })
      .def_prop_ro("done", &Event::done)
      .def("set", &Event::set)
      .def(
          "wait",
          [](const Event& event, double timeout_s) {
            return wait_in_slices(timeout_s, [&](std::chrono::nanoseconds time) { return event.wait_for(time); });
          },
          "timeout_s"_a);
  nb::class_<EventTable>(m, "EventTable", nb::is_final())
      .def_static("create", &EventTable::create, "path"_a, "slots"_a)
      .def_static("attach", &EventTable::attach, "path"_a)
      .def_static("private", &EventTable::create_private, "slots"_a)
      .def("event", &EventTable::event)
      .def("open", &EventTable::open, "slot"_a, "generation"_a)
      .def_prop_ro("in_use", &EventTable::in_use)
      .def("close", &EventTable::close);
}

void bind_copy_lane(nb::module_& m) {
  nb::class_<CopyLane>(m, "CopyLane", nb::is_final())
      .def("__init__", &make_lane, "name"_a, "chunk_bytes"_a = CopyLane::kChunkBytes, "device"_a = nb::none(),
           "burst_bytes"_a = StreamMover::kBurstBytes)
      .def(
          "copy",
          [](CopyLane& lane, std::uintptr_t dst, std::uintptr_t src, std::size_t nbytes, CopyLane::Tag tag) {
            lane.copy(pointer(dst), pointer(src), nbytes, tag);
          },
          "dst"_a, "src"_a, "nbytes"_a, "tag"_a = 0)
      .def("copy_blocks", &copy_blocks, "dst"_a, "src"_a, "block_bytes"_a, "dst_blocks"_a, "src_blocks"_a, "tag"_a = 0)
      .def("record", &CopyLane::record, "event"_a)
      .def("wait", &CopyLane::wait, "event"_a)
      .def("cancel", &CopyLane::cancel, "tag"_a)
      .def("cancelled", &CopyLane::cancelled, "tag"_a)
      .def(
          "synchronize",
          [](CopyLane& lane, double timeout_s) {
            return wait_in_slices(timeout_s, [&](std::chrono::nanoseconds time) { return lane.synchronize(time); });
          },
          "timeout_s"_a = std::numeric_limits<double>::infinity())
      .def_prop_ro("bytes_copied", &CopyLane::bytes_copied)
      .def_prop_ro("pending", &CopyLane::pending)
      .def("close", &CopyLane::close, GilFree());
}

}  // namespace

void bind_lanes(nb::module_& m) {
  bind_events(m);
  bind_copy_lane(m);
}
