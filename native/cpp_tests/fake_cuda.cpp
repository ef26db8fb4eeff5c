// The double's devices and contexts, and what tests tell it.
#include "fake_cuda.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "fake_cuda_world.hpp"

using namespace fake_cuda;

namespace fake_cuda {

World& world() {
  static World the_world;
  return the_world;
}

// Of whole processes, which no test reaches: a file of lines "CALL CODE SKIP", as of fake_fail.
World::World() {
  const char* path = std::getenv("FAKE_CUDA_RULES");
  if (path == nullptr) return;
  std::ifstream rules(path);
  std::string name;
  for (int code = 0, skip = 0; rules >> name >> code >> skip;) failures[name] = {skip, code};
}

thread_local std::vector<Context> contexts;

namespace {

bool is_sticky(Result code) {
  static const std::set<Result> codes{46, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999};
  return codes.contains(code);
}

}  // namespace

// Not every GPU has page locks for reading alone; this one does not until a test sets the attribute.
int attribute_of(int device, int which) {
  static const std::map<int, int> usual{{kAttributeMajor, 9}, {kAttributeMinor, 0}, {kAttributeReadOnlyLocks, 0}};
  const auto& own = world().gpus[static_cast<std::size_t>(device)].attributes;
  if (const auto set = own.find(which); set != own.end()) return set->second;
  const auto found = usual.find(which);
  return found == usual.end() ? 1 : found->second;
}

Result entered(const char* name) {
  World& w = world();
  const std::scoped_lock lock(w.mutex);
  ++w.calls[name];
  const auto failure = w.failures.find(name);
  if (failure == w.failures.end() || failure->second.first-- > 0) return kSuccess;
  const int code = failure->second.second;
  w.failures.erase(failure);
  if (is_sticky(code) && !contexts.empty()) current().lost = code;
  return code;
}

Result entered_with_context(const char* name) {
  if (const Result failed = entered(name); failed != kSuccess) return failed;
  return contexts.empty() ? kInvalidContext : current().lost.load();
}

}  // namespace fake_cuda

extern "C" {

FakeLive fake_live() {
  World& w = world();
  const std::scoped_lock lock(w.mutex);
  const auto count = [](const auto& things) { return static_cast<int>(things.size()); };
  int retained = 0;
  for (const Gpu& gpu : w.gpus) retained += gpu.retained;
  return {retained, count(w.handles), count(w.mappings), count(w.reservations), count(w.locked), w.streams, w.events};
}

void fake_fail(const char* name, int code, int skip) {
  const std::scoped_lock lock(world().mutex);
  world().failures[name] = {skip, code};
}

void fake_hold(bool held) {
  const std::scoped_lock lock(world().mutex);
  world().held = held;
  world().changed.notify_all();
}

void fake_late(bool late) { world().late = late; }

int fake_calls(const char* name) {
  const std::scoped_lock lock(world().mutex);
  return world().calls[name];
}

void fake_attribute(int device, int which, int value) {
  const std::scoped_lock lock(world().mutex);
  world().gpus.at(static_cast<std::size_t>(device)).attributes[which] = value;
}

void fake_granularity(int device, std::size_t bytes) {
  const std::scoped_lock lock(world().mutex);
  world().gpus.at(static_cast<std::size_t>(device)).unit = bytes;
}

void fake_take(int device, std::size_t bytes) {
  const std::scoped_lock lock(world().mutex);
  world().gpus.at(static_cast<std::size_t>(device)).taken = bytes;
}

std::size_t fake_longest_lock() {
  const std::scoped_lock lock(world().mutex);
  return world().longest_lock;
}

std::size_t fake_longest_burst() { return world().longest_burst; }

std::size_t fake_pageable() {
  const std::scoped_lock lock(world().mutex);
  return world().pageable;
}

void fake_reset() {
  fake_hold(false);
  fake_late(false);
  const std::scoped_lock lock(world().mutex);
  World& w = world();
  w.failures.clear();
  w.longest_lock = w.pageable = 0;
  w.longest_burst = 0;
  for (Gpu& gpu : w.gpus) {
    gpu.lost = kSuccess;
    gpu.taken = 0;
    gpu.unit = kUnit;
    gpu.attributes.clear();
  }
}

Result cuGetErrorString(Result code, const char** text) {
  static const std::map<Result, const char*> texts{{kOutOfMemory, "out of memory"},
                                                   {kInvalidContext, "invalid device context"},
                                                   {kInvalidHandle, "invalid resource handle"},
                                                   {kIllegalAddress, "an illegal memory access was encountered"},
                                                   {kNotSupported, "operation not supported"}};
  const auto known = texts.find(code);
  *text = known == texts.end() ? "a fake error" : known->second;
  return kSuccess;
}

Result cuInit(unsigned) {
  ENTER();
  return kSuccess;
}

Result cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}

Result cuDeviceGetCount(int* count) {
  *count = static_cast<int>(world().gpus.size());
  return kSuccess;
}

Result cuDeviceGet(DeviceId* device, int ordinal) {
  if (!is_gpu(ordinal)) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

Result cuDeviceGetName(char* name, int, DeviceId) {
  std::strcpy(name, "Fake GPU");
  return kSuccess;
}

Result cuDeviceGetPCIBusId(char* name, int, DeviceId device) {
  std::strcpy(name, device == 0 ? "0000:0a:00.0" : "0000:8a:00.0");
  return kSuccess;
}

Result cuDeviceGetUuid_v2(Uuid* uuid, DeviceId device) {
  if (!is_gpu(device)) return kInvalidDevice;
  std::fill(std::begin(uuid->bytes), std::end(uuid->bytes), static_cast<unsigned char>(0xa0 + device));
  return kSuccess;
}

Result cuDeviceTotalMem_v2(std::size_t* bytes, DeviceId) {
  *bytes = kTotal;
  return kSuccess;
}

Result cuDeviceGetAttribute(int* value, int which, DeviceId device) {
  const std::scoped_lock lock(world().mutex);
  if (!is_gpu(device)) return kInvalidDevice;
  *value = attribute_of(device, which);
  return kSuccess;
}

Result cuDevicePrimaryCtxRetain(Context* context, DeviceId device) {
  ENTER();
  if (!is_gpu(device)) return kInvalidDevice;
  const std::scoped_lock lock(world().mutex);
  Gpu& gpu = world().gpus[static_cast<std::size_t>(device)];
  ++gpu.retained;
  *context = &gpu.context;
  return kSuccess;
}

Result cuDevicePrimaryCtxRelease_v2(DeviceId device) {
  const std::scoped_lock lock(world().mutex);
  Gpu& gpu = world().gpus.at(static_cast<std::size_t>(device));
  if (--gpu.retained == 0) gpu.lost = kSuccess;  // the next to retain it gets a new one
  return kSuccess;
}

Result cuCtxPushCurrent_v2(Context context) {
  contexts.push_back(context);
  return kSuccess;
}

Result cuCtxPopCurrent_v2(Context* context) {
  if (contexts.empty()) return kInvalidContext;
  *context = contexts.back();
  contexts.pop_back();
  return kSuccess;
}

}  // extern "C"
