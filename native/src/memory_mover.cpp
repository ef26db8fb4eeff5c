#include <cstring>

#include "aegaeon/mover.hpp"
#include "aegaeon/stream_copy.hpp"

namespace aegaeon {

namespace {

using Copy = void (*)(std::byte* dst, const std::byte* src, std::size_t bytes);

void plain_copy(std::byte* dst, const std::byte* src, std::size_t bytes) { std::memcpy(dst, src, bytes); }

Copy copy_for(std::size_t whole) { return whole < kStreamingBytes ? plain_copy : stream_copy; }

class MemoryMover final : public Mover {
 public:
  void copy(std::byte* dst, const std::byte* src, std::size_t bytes, std::size_t whole) override {
    copy_for(whole)(dst, src, bytes);
  }

  void copy_blocks(std::byte* dst, const std::byte* src, std::size_t block_bytes,
                   std::span<const std::int32_t> dst_blocks, std::span<const std::int32_t> src_blocks,
                   std::size_t whole) override {
    const auto move = copy_for(whole);
    for (std::size_t i = 0; i < dst_blocks.size(); ++i) {
      const auto to = static_cast<std::size_t>(dst_blocks[i]);
      const auto from = static_cast<std::size_t>(src_blocks[i]);
      move(dst + to * block_bytes, src + from * block_bytes, block_bytes);
    }
  }

  void finish() override {}
  bool any_thread() const override { return true; }
};

}  // namespace

std::unique_ptr<Mover> memory_mover() { return std::make_unique<MemoryMover>(); }

}  // namespace aegaeon
