// A thread that copies in order, as a GPU's stream does. Callers queue work and continue; events signal completion.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "aegaeon/events.hpp"
#include "aegaeon/mover.hpp"

namespace aegaeon {

class CopyLane {
 public:
  using Tag = std::uint64_t;  // 0: not to be cancelled

  static constexpr std::size_t kChunkBytes = std::size_t{4} << 20;

  explicit CopyLane(const std::string& name, std::size_t chunk_bytes = kChunkBytes,
                    std::unique_ptr<Mover> mover = memory_mover());
  virtual ~CopyLane();  // as drop()
  CopyLane(const CopyLane&) = delete;
  CopyLane& operator=(const CopyLane&) = delete;

  void copy(std::byte* dst, const std::byte* src, std::size_t bytes, Tag tag = 0);
  void copy_blocks(std::byte* dst, const std::byte* src, std::size_t block_bytes, std::vector<std::int32_t> dst_blocks,
                   std::vector<std::int32_t> src_blocks, Tag tag = 0);
  void record(EventPtr event);
  void wait(EventPtr event);
  void cancel(Tag tag);
  // Whether a copy with this tag was truncated or skipped. Drops the cancellation once no such copy is pending.
  bool cancelled(Tag tag);
  // False when `time` passed before everything queued was done. Small copies that were not begun are done here.
  bool synchronize(std::chrono::nanoseconds time);
  std::uint64_t bytes_copied() const { return bytes_copied_.load(std::memory_order_relaxed); }
  std::size_t pending() const;
  void close();  // finishes what is queued
  void drop();   // drops what is queued

 private:
  struct Copy {
    std::byte* dst;
    const std::byte* src;
    std::size_t bytes;
  };
  struct Blocks {
    std::byte* dst;
    const std::byte* src;
    std::size_t block_bytes;
    std::vector<std::int32_t> dst_blocks;
    std::vector<std::int32_t> src_blocks;
  };
  struct Record {
    EventPtr event;
  };
  struct Wait {
    EventPtr event;
  };
  struct Work {
    std::variant<Copy, Blocks, Record, Wait> what;
    Tag tag = 0;
  };
  struct TagState {
    std::size_t pending = 0;
    bool cancelled = false;
    bool cut = false;
  };

  void push(Work work);
  void rethrow();
  void run();
  void run_front(std::unique_lock<std::mutex>& lock);
  bool is_small(const Work& work) const;
  void perform(const Work& work);
  void perform_copy(const Copy& copy, Tag tag);
  void perform_blocks(const Blocks& blocks, Tag tag);
  void perform_record(const Record& record);
  void perform_wait(const Wait& wait);
  bool cut_now(Tag tag);
  bool none_queued() const;
  void finish(Tag tag);
  void fail(std::exception_ptr error);
  void join();

  const std::size_t chunk_bytes_;
  const std::unique_ptr<Mover> mover_;
  mutable std::mutex mutex_;
  std::condition_variable queued_;
  std::condition_variable idle_;
  std::deque<Work> queue_;
  std::unordered_map<Tag, TagState> tags_;
  std::exception_ptr error_;
  bool running_ = false;  // a work item is being performed
  bool closing_ = false;
  std::atomic<bool> dropping_{false};
  std::atomic<std::uint64_t> bytes_copied_{0};
  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace aegaeon
