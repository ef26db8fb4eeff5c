#include <array>
#include <memory>
#include <utility>

#include "aegaeon/stage.hpp"
#include "bindings.hpp"

namespace {

using aegaeon::Float;
using aegaeon::StageChunk;
using aegaeon::StageJob;
using aegaeon::StagePart;
using aegaeon::StageRing;
using aegaeon::cuda::SharedDevice;

using Table = nb::ndarray<const std::uint64_t, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;

constexpr std::array kFormats{"F32", "F16", "BF16"};  // by the order of Float

Float format_of(std::uint64_t code) {
  if (code >= kFormats.size()) throw aegaeon::NativeError("stage ring: " + std::to_string(code) + " is no format");
  return static_cast<Float>(code);
}

std::vector<StageChunk> chunks_of(const Table& chunks, const Table& parts) {
  std::vector<StageChunk> made;
  std::size_t part = 0;
  for (std::size_t i = 0; i < chunks.shape(0); ++i) {
    StageChunk chunk{chunks(i, 0), chunks(i, 1), chunks(i, 2), {}};
    if (chunks(i, 3) > parts.shape(0) - part) throw aegaeon::NativeError("stage ring: fewer parts than chunks name");
    for (std::size_t end = part + chunks(i, 3); part < end; ++part) {
      chunk.parts.push_back({parts(part, 0), parts(part, 1), format_of(parts(part, 2)), parts(part, 3)});
    }
    made.push_back(std::move(chunk));
  }
  return made;
}

bool run(StageRing& ring, std::vector<std::string> files, const Table& chunks, const Table& parts,
         const std::vector<std::uintptr_t>& destinations, int into_file, std::uintptr_t on_device, std::uint64_t format,
         const nb::object& inspect, const nb::callable& watch) {
  StageJob job;
  job.files = std::move(files);
  job.chunks = chunks_of(chunks, parts);
  for (const std::uintptr_t address : destinations) job.destinations.push_back(reinterpret_cast<std::byte*>(address));
  job.into_file = into_file;
  job.on_device = reinterpret_cast<std::byte*>(on_device);
  job.format = format_of(format);
  if (!inspect.is_none()) {
    job.inspect = [&](std::size_t chunk, const std::byte* data) {
      const nb::gil_scoped_acquire acquire;
      auto* bytes = const_cast<std::uint8_t*>(reinterpret_cast<const std::uint8_t*>(data));
      inspect(chunk, ByteView(bytes, {job.chunks[chunk].bytes}, nb::none()));
    };
  }
  job.watch = [&](std::uint64_t done) {
    const nb::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    return nb::cast<bool>(watch(done));
  };
  const nb::gil_scoped_release release;
  return ring.run(job);
}

}  // namespace

void bind_stage(nb::module_& m) {
  nb::class_<StageRing>(m, "StageRing", nb::is_final())
      .def(nb::init<std::size_t, std::size_t, std::size_t, SharedDevice>(), "chunk_bytes"_a, "depth"_a, "readers"_a,
           "device"_a = nb::none())
      .def_static("formats", [] { return std::vector<std::string>(kFormats.begin(), kFormats.end()); })
      .def("run", &run, "files"_a, "chunks"_a, "parts"_a, "destinations"_a, "into_file"_a, "on_device"_a, "format"_a,
           "inspect"_a.none(), "watch"_a);
}
