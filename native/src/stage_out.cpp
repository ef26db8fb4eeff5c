#include "aegaeon/stage_out.hpp"

#include <algorithm>

#include "aegaeon/cuda/stream_mover.hpp"
#include "aegaeon/files.hpp"

namespace aegaeon {

namespace {

using cuda::StreamMover;

constexpr std::size_t kPiece = StageOut::kPieceBytes / 2;  // 16 bits may become 32; stays in the processor's cache

std::unique_ptr<Mover> device_mover(const StageJob& job, const cuda::SharedDevice& device) {
  if (job.on_device == nullptr) return nullptr;
  return std::make_unique<StreamMover>(device);
}

}  // namespace

StageOut::StageOut(const StageJob& job, std::byte* piece, const cuda::SharedDevice& device)
    : job_(job), piece_(piece), memory_(memory_mover()), device_(device_mover(job, device)) {}

void StageOut::write(const StagePart& part, const std::byte* src) {
  if (part.of == job_.format) {
    copy(part.to, src, part.bytes);
  } else {
    convert_and_copy(part, src);
  }
}

void StageOut::convert_and_copy(const StagePart& part, const std::byte* src) {
  const std::size_t to_item = item_bytes(job_.format);
  const std::size_t of_item = item_bytes(part.of);
  const std::size_t items = part.bytes / of_item;
  for (std::size_t first = 0; first < items; first += kPiece / of_item) {
    const std::size_t count = std::min(items - first, kPiece / of_item);
    finish();  // the piece is free again
    convert(piece_, job_.format, src + first * of_item, part.of, count);
    copy(part.to + first * to_item, piece_, count * to_item);
  }
}

void StageOut::copy(std::uint64_t to, const std::byte* src, std::size_t bytes) {
  if (device_) device_->copy(job_.on_device + to, src, bytes, bytes);
  for (std::byte* destination : job_.destinations) memory_->copy(destination + to, src, bytes, bytes);
  if (job_.into_file >= 0) write_at(job_.into_file, src, bytes, to);
}

void StageOut::finish() {
  memory_->finish();
  if (device_) device_->finish();
}

}  // namespace aegaeon
