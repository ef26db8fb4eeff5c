#include "aegaeon/helpers.hpp"

#include <chrono>

namespace aegaeon {

namespace {

// Products of a step follow each other within some 20 us, and to wake a thread takes as long.
constexpr auto kSpin = std::chrono::microseconds{30};
constexpr int kPausesPerLook = 16;
constexpr int kPausesPerYield = 2000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void Helpers::Job::run() {
  for (std::size_t part = next.fetch_add(1); part < parts; part = next.fetch_add(1)) take(context, part);
}

Helpers::~Helpers() { stop(); }

void Helpers::stop() {
  for (auto& thread : threads_) thread.request_stop();
  ++number_;
  number_.notify_all();
  threads_.clear();
}

void Helpers::set_count(std::size_t count) {
  const std::lock_guard lock(busy_);
  stop();
  for (std::size_t i = 0; i < count; ++i) threads_.emplace_back([this](const std::stop_token& stop) { help(stop); });
}

void Helpers::compute(std::size_t parts, Take take, const void* context) {
  Job job{take, context, parts};
  const std::unique_lock lock(busy_, std::try_to_lock);
  if (!lock || threads_.empty() || parts < 2) return job.run();
  job_ = &job;
  ++number_;
  number_.notify_all();
  job.run();
  job_ = nullptr;  // a helper that comes now sees no job; who came before is waited for
  for (int pauses = 1; inside_ != 0; ++pauses) pauses % kPausesPerYield == 0 ? std::this_thread::yield() : pause();
}

void Helpers::help(const std::stop_token& stop) {
  for (std::uint32_t seen = 0; !stop.stop_requested(); seen = number_) {
    ++inside_;
    if (Job* job = job_) job->run();
    --inside_;
    const auto until = std::chrono::steady_clock::now() + kSpin;
    while (number_ == seen && std::chrono::steady_clock::now() < until)
      for (int i = 0; i < kPausesPerLook; ++i) pause();
    number_.wait(seen);
  }
}

Helpers& product_helpers() {
  static auto* helpers = new Helpers;  // never destroyed: threads of the interpreter may compute until the process ends
  return *helpers;
}

}  // namespace aegaeon
