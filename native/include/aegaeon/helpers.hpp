// Threads that take part in a computation where a processor is free for them at once.
//
// Its caller computes all of it that no helper has taken by then, and waits only for parts that helpers are at. So
// where other programs use the processors it takes as long as alone; OpenMP's threads all have to come, and may be late
// by the system's time slice each time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace aegaeon {

class Helpers {
 public:
  // `take` is called by several threads at once, with the parts [0, parts) of a computation, each once.
  using Take = void (*)(const void* context, std::size_t part) noexcept;

  Helpers() = default;
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;
  Helpers(Helpers&&) = delete;
  Helpers& operator=(Helpers&&) = delete;
  ~Helpers();

  // From now on there are so many. Not while anything is computed.
  void set_count(std::size_t count);

  [[nodiscard]] std::size_t count() const { return threads_.size(); }

  // Returns when all parts are computed. One computation at a time has helpers; another one has its caller alone.
  void compute(std::size_t parts, Take take, const void* context);

 private:
  struct Job {
    Take take;
    const void* context;
    std::size_t parts;
    std::atomic<std::size_t> next = 0;

    void run();
  };

  void help(const std::stop_token& stop);
  void stop();

  std::mutex busy_;
  std::atomic<Job*> job_ = nullptr;
  std::atomic<std::size_t> inside_ = 0;    // helpers that may hold the job's address
  std::atomic<std::uint32_t> number_ = 0;  // of the newest job; what idle helpers wait for
  std::vector<std::jthread> threads_;
};

// Those of row products. None until `set_count`.
Helpers& product_helpers();

}  // namespace aegaeon
